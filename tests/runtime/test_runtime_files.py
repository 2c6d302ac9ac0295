"""What is written takes the place of a file, or goes to the device or pipe that a name stands for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from collage_run.files import destination, replacing


def test_a_pipe_without_a_name_is_written_to() -> None:
    """As of /dev/stdout, where somebody reads it."""
    theirs, ours = os.pipe()
    try:
        with replacing(f"/dev/fd/{ours}") as path:
            path.write_bytes(b"answer")
        assert os.read(theirs, 100) == b"answer"
    finally:
        os.close(theirs)
        os.close(ours)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to("file")
    with replacing(tmp_path / "link") as path:
        path.write_bytes(b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"after"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "link"}


def test_who_may_read_it_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(0o600)
    with replacing(file) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        path.write_bytes(b"after")
    assert file.stat().st_mode & 0o777 == 0o600


def test_of_several_writers_each_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Threads, and processes of the same number, as in containers that share a folder."""
    file = tmp_path / "file"
    with replacing(file) as first, replacing(file) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
        with replacing(file) as third:
            third.write_bytes(b"third")
        assert (first.read_bytes(), second.read_bytes()) == (b"first", b"second")
    assert file.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_open_is_not_replaced(tmp_path: Path) -> None:
    """As /dev/stdout, redirected: whoever has it open would not see what is written."""
    file = tmp_path / "log"
    file.write_bytes(b"before")
    with file.open("ab") as opened:
        (tmp_path / "link").symlink_to(f"/dev/fd/{opened.fileno()}")
        for name in (f"/dev/fd/{opened.fileno()}", f"/proc/self/fd/{opened.fileno()}", tmp_path / "link"):
            with pytest.raises(OSError, match="a file that is open"), replacing(name):
                pass
    assert file.read_bytes() == b"before"


@pytest.mark.parametrize("name", ["x" * 255, "\N{EURO SIGN}" * 85])
def test_names_may_be_as_long_as_names_can_be(tmp_path: Path, name: str) -> None:
    with replacing(tmp_path / name) as path:
        path.write_bytes(b"whole")
    assert (tmp_path / name).read_bytes() == b"whole"


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".file.4711.partial").write_bytes(b"half")
    with replacing(tmp_path / "file") as path:
        path.write_bytes(b"whole")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        destination(tmp_path / "one")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)), replacing(tmp_path / "one"):
        pass
    assert (tmp_path / "one").is_symlink()
