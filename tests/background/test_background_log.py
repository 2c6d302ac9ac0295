"""A log of events keeps nobody waiting."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import wait_until

from collage_core.background.log import EventLog
from collage_core.errors import CollageError

_LIMIT_S = 20.0


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def stalled(pipe: Path) -> Iterator[int]:
    """The descriptor of who reads from the pipe, or does not."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("text_bytes", [10, 10_000])
def test_who_does_not_read_is_not_waited_for(pipe: Path, stalled: int, text_bytes: int) -> None:
    """Of short lines a pipe takes all or nothing, and of long ones it may take a part."""
    log = EventLog(pipe)

    def write() -> None:
        number = 0
        while log.is_kept:
            number += 1
            log.add("note", number=number, text="x" * text_bytes)

    writing = threading.Thread(target=write, daemon=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        writing.start()
        writing.join(_LIMIT_S)
        assert not writing.is_alive()
        assert wait_until(lambda: bool(said))
    assert "pipe: no more events are kept: whoever reads them does not keep up" in str(said[0].message)
    read = b""
    while part := os.read(stalled, 1 << 20):
        read += part
    whole = read[: read.rfind(b"\n") + 1].splitlines()
    assert [json.loads(line)["number"] for line in whole] == list(range(1, len(whole) + 1))
    assert whole


def test_a_pipe_that_nobody_reads_from_is_none(pipe: Path) -> None:
    with pytest.raises(CollageError, match=r"cannot write .*pipe: nobody reads from it"):
        EventLog(pipe)


def test_a_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("what an earlier session has told\n")
    log = EventLog(path)
    log.add("note", text="é")
    log.close()
    log.add("note", text="later")
    [line] = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["text"] == "é"
