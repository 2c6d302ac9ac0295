"""Disks that are full: told by a limit on what a file may hold."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import relu_model

from collage_core import Bundle, Group, Placement, Subgraph, Target, plain_variant, save
from collage_core.costs import CostDatabase
from collage_core.ir import from_model, to_model
from collage_core.runtime import read

if TYPE_CHECKING:
    from collage_command import Collage

_OPTIONS = ("--backends", "reference", "--threads", "1", "--rounds", "4")


def _bundle(weights: int) -> Bundle:
    """y = x + w, of so many weights."""
    source = relu_model()
    source.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "w"], ["y"], name="sum"))
    data = np.arange(3 * weights, dtype=np.float32).reshape(weights, 1, 3)
    source.graph.initializer.append(onnx.numpy_helper.from_array(data, "w"))
    source.graph.output[0].type.tensor_type.ClearField("shape")
    graph = from_model(source)
    group = Group("reference", (graph.nodes[0].id,), plain_variant(Subgraph(graph, graph.all_nodes)))
    return Bundle(graph, Placement((group,), (), Target("cpu", 1)))


def _with_small_files(
    code: str, limit_bytes: int, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """Python in a process that cannot write files of more than so many bytes: as on a disk that is full, the
    write that goes beyond fails.
    """
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )


_RESAVE = """
import sys
from collage_core import BundleError, save
from collage_core.runtime import read
try:
    save(read(sys.argv[1]), sys.argv[2])
except BundleError as error:
    print(error)
"""


@pytest.mark.ci
def test_no_room_for_a_bundle(tmp_path: Path) -> None:
    large, kept = tmp_path / "large.collage", tmp_path / "kept.collage"
    save(_bundle(50_000), large)
    save(_bundle(1), kept)
    before = kept.read_bytes()
    for limit_bytes in (1000, 100_000, large.stat().st_size - 100):
        result = _with_small_files(_RESAVE, limit_bytes, large, kept)
        assert result.stdout == f"cannot write {kept}: File too large\n", result.stderr
        assert kept.read_bytes() == before
        assert {p.name for p in tmp_path.iterdir()} == {"large.collage", "kept.collage"}
    assert _with_small_files(_RESAVE, large.stat().st_size + 100, large, kept).stdout == ""
    assert read(kept).graph.constants["w"].shape == (50_000, 1, 3)


_COMMAND = "import sys; from collage_core.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.ci
def test_no_room_for_what_a_command_writes(tmp_path: Path) -> None:
    """The file is told, and nothing of it is left."""
    bundle, backend = tmp_path / "m.collage", tmp_path / "backend"
    save(_bundle(1), bundle)
    before = bundle.read_bytes()
    for option, name in (("--html", "m.html"), ("--placement", "m.yaml"), ("--dot", "m.dot")):
        told = _with_small_files(_COMMAND, 100, "explain", bundle, option, tmp_path / name)
        assert told.stderr == f"collage: cannot write {tmp_path / name}: File too large\n"
    backend.mkdir()
    told = _with_small_files(_COMMAND, 1000, "new-backend", "mine", "-o", backend)
    assert told.stderr.startswith(f"collage: cannot write {backend}/")
    assert told.stderr.endswith(": File too large\n")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["backend", "m.collage"]
    assert bundle.read_bytes() == before


_FILL = """
import sys
from collage_core.costs import CostDatabase, CostKey, CostRecord, Policy
from collage_core.errors import CostDatabaseError
with CostDatabase(sys.argv[1]) as database:
    for i in range(100_000):
        try:
            database.put(CostKey("kernel", f"k{i}", "", "a", {}, Policy()), CostRecord("ok", float(i)))
        except CostDatabaseError as error:
            print(i, error)
            break
"""


@pytest.mark.ci
def test_no_room_for_a_cost(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    result = _with_small_files(_FILL, 300_000, path)
    stored, _, said = result.stdout.partition(" ")
    assert said.startswith(f"cost database {path} cannot be written: "), result.stderr
    assert len(said.splitlines()) == 1
    with CostDatabase(path) as database:
        assert len(database) == int(stored) > 10
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def _optimize_with_small_files(collage: Collage, limit_bytes: int, model: Path) -> str:
    """The one line that `collage optimize` ends with; there may be no bundle then."""
    bundle = collage.folder / "m.collage"
    command = [f"ulimit -f {limit_bytes // 1024}; exec collage optimize {model} -o {bundle}", *_OPTIONS]
    result = subprocess.run(
        ["bash", "-c", " ".join(command)],
        capture_output=True,
        text=True,
        env={**collage.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        timeout=120,
    )
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    lines = result.stderr.splitlines()
    assert [line for line in lines if line.startswith("collage: ")] == lines[-1:]
    assert not bundle.exists()
    assert not list(collage.temporary.iterdir())
    return lines[-1]


@pytest.mark.ci
def test_no_room_for_the_costs_of_a_model(collage: Collage) -> None:
    """What had been stored before is there the next time."""
    model = collage.folder / "m.onnx"
    onnx.save(relu_model(), model)
    filled = collage.home / "costs.sqlite"
    filled.parent.mkdir()
    _with_small_files(_FILL, 300_000, filled)
    with CostDatabase(filled) as database:
        before = len(database)
    said = _optimize_with_small_files(collage, filled.stat().st_size, model)
    assert said.startswith(f"collage: cost database {filled} cannot be ")
    with CostDatabase(filled) as database:
        assert len(database) >= before


@pytest.mark.ci
def test_no_room_for_the_weights_on_their_way_to_a_worker(collage: Collage) -> None:
    path = collage.folder / "m.onnx"
    onnx.save(to_model(_bundle(50_000).graph), path)
    said = _optimize_with_small_files(collage, 300_000, path)
    assert said.startswith(f"collage: cannot write the model to {collage.temporary}/collage-")
    assert said.endswith("/original: File too large")
