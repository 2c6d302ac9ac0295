"""Ctrl-C while measuring: nothing is left behind, and what was measured is kept."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx.parser
import pytest
from collage_command import INTERRUPTED_MODEL
from processes import wait_until

from collage_core.costs import CostDatabase
from collage_core.pipeline.original import ORIGINAL

if TYPE_CHECKING:
    from collage_command import Collage


def _processes_of(collage: Collage) -> set[int]:
    """Processes that live in the command's folder: their environment says so."""
    mark = f"COLLAGE_HOME={collage.home}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def _costs(collage: Collage) -> int:
    """How many there are: that the model was compared with its original is none."""
    if not (collage.home / "costs.sqlite").exists():
        return 0
    with CostDatabase(collage.home / "costs.sqlite") as database:
        return sum(c.key.kind != ORIGINAL for c in database.items())


@pytest.mark.ci
def test_interrupted_while_measuring(collage: Collage) -> None:
    model = collage.folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(INTERRUPTED_MODEL), model)
    arguments = ("optimize", model, "--threads", "1", "--rounds", "4", "--backends", "dnnl,tvm")
    process = collage.start(*arguments)
    deadline = time.monotonic() + 600
    while _costs(collage) < 5:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(_processes_of(collage)) >= 2
    assert list(collage.temporary.glob("collage-*/graph"))

    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == "collage: interrupted; what was measured is kept"
    assert "Traceback" not in err
    assert wait_until(lambda: not _processes_of(collage))
    assert not list(collage.temporary.iterdir())

    kept = _costs(collage)
    assert kept >= 5
    report = collage.json(*arguments)
    # Some are of the network that constants are learnt on.
    assert 0 < report["search"]["cached"] <= kept
    assert report["search"]["measured"] > 0
    assert not list(collage.temporary.iterdir())


@pytest.mark.ci
@pytest.mark.parametrize(
    "options",
    [
        ("bench", "--against", "onnxruntime", "--rounds", "10000"),
        ("check", "--backends", "onnxruntime", "--budget", "1h"),
    ],
    ids=["bench", "check"],
)
def test_interrupted_while_comparing(options: tuple[str, ...], collage: Collage) -> None:
    model, bundle = collage.folder / "m.onnx", collage.folder / "m.collage"
    onnx.save(onnx.parser.parse_model(INTERRUPTED_MODEL), model)
    collage.run("optimize", model, "--threads", "1", "--rounds", "4", "--backends", "reference", "-o", bundle)
    command, *others = options
    process = collage.start(command, bundle, *others)
    deadline = time.monotonic() + 600
    while len(_processes_of(collage)) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert wait_until(lambda: not _processes_of(collage))
    assert not list(collage.temporary.iterdir())


def _trials(collage: Collage) -> int:
    """How many placements have been measured end to end by a search."""
    if not _costs(collage):
        return 0
    with CostDatabase(collage.home / "costs.sqlite") as database:
        return sum(cost.key.variant == "trial" for cost in database.items())


@pytest.mark.ci
def test_interrupted_at_the_graph_level_it_keeps_the_best_so_far(collage: Collage) -> None:
    model = collage.folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(INTERRUPTED_MODEL), model)
    backends = ("--threads", "1", "--rounds", "4", "--backends", "dnnl,onnxruntime")
    process = collage.start("optimize", model, *backends, "--level", "graph", "--json")
    deadline = time.monotonic() + 600
    while _trials(collage) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["second_level"]["stopped_by"] == "interrupted"
    assert report["contenders"]["collage"]["median_ms"] > 0
    assert wait_until(lambda: not _processes_of(collage))
    assert not list(collage.temporary.iterdir())
