"""Files and devices that may not be written, databases that are none, and models of over 2 GB."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper
from small_models import relu_model, vector

from collage_core import BundleError, save
from collage_core.cli.main import main
from collage_core.cli.output import drop
from collage_core.costs import CostDatabase, CostKey, CostRecord, Policy
from collage_core.errors import CostDatabaseError
from collage_core.runtime import read

if TYPE_CHECKING:
    from collage_command import Collage

    from tests.cli.conftest import Mistake, Refused

_FUZZED = Path(__file__).parents[1] / "support" / "fuzzed_files.py"
_OPTIONS = ("--backends", "reference", "--threads", "1", "--rounds", "4")


@pytest.fixture
def model(collage: Collage) -> Path:
    path = collage.folder / "m.onnx"
    onnx.save(relu_model(), path)
    return path


@pytest.mark.ci
def test_a_device_that_is_full(model: Path, refused: Refused, collage: Collage) -> None:
    for device in ("/dev/full", "/dev/null"):
        said = refused("optimize", model, *_OPTIONS, "-o", device)
        assert said == f"collage: cannot write {device}: it is no file"
    bundle = collage.folder / "m.collage"
    collage.run("optimize", model, *_OPTIONS, "-o", bundle)
    for device in ("/dev/full", "/dev/null"):
        with pytest.raises(BundleError, match="it is no file"):
            save(read(bundle), device)
        assert Path(device).is_char_device(), "nor one to be replaced"
    np.save(collage.folder / "x.npy", np.zeros((2, 3), np.float32))
    run = ("run", bundle, "--input", f"x={collage.folder}/x.npy", "--output")
    full = "collage: cannot write /dev/full: No space left on device"
    assert refused(*run, "y=/dev/full") == full
    assert refused("costs", "export", "/dev/full") == full
    collage.run(*run, "y=/dev/null")
    assert all(Path(device).is_char_device() for device in ("/dev/full", "/dev/null"))


@pytest.mark.ci
def test_databases_that_are_none(model: Path, collage: Collage, refused: Refused, mistake: Mistake) -> None:
    path = collage.folder / "costs.sqlite"
    with CostDatabase(path):
        pass
    whole = path.read_bytes()
    for content in (b"these are no costs" * 500, whole[:100], whole[: len(whole) // 2]):
        path.write_bytes(content)
        said = mistake("optimize", model, *_OPTIONS, "--costs", path)
        assert said.startswith(f"collage: cost database {path} cannot be opened: ")
        assert path.read_bytes() == content
    assert "move the file away" in refused("optimize", model, *_OPTIONS, "--costs", path)
    assert "cannot be opened" in refused("optimize", model, *_OPTIONS, "--costs", collage.folder)

    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE costs (what)")
    connection.execute("CREATE TABLE places (what)")
    connection.close()
    before = path.read_bytes()
    said = refused("optimize", model, *_OPTIONS, "--costs", path)
    assert said == f"collage: {path} is a database of something else, not of costs"
    assert path.read_bytes() == before
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(CostDatabaseError, match="something else"):
        CostDatabase(path)

    path.unlink()
    with CostDatabase(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = path.read_bytes()
    assert "has the newer version 7; this Collage reads up to" in refused(
        "optimize", model, *_OPTIONS, "--costs", path
    )
    assert path.read_bytes() == before


@pytest.mark.ci
def test_damaged_databases_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    with CostDatabase(path) as database:
        for i in range(40):
            key = CostKey("kernel", f"k{i}", "v", "a", {"cpu": "x"}, Policy())
            database.put(key, CostRecord("ok", float(i), details={"some": i}))
    command = [sys.executable, str(_FUZZED), "database", str(path), "200", "0"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, (result.stdout[-20:], result.stderr[-2000:])
    assert 10 < int(result.stdout.split()[-1]) < 190, "some of the damage must matter, and some must not"


@pytest.mark.ci
def test_texts_in_a_database_that_are_no_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    key = CostKey("kernel", "k", "v", "a", {}, Policy())
    with CostDatabase(path) as database:
        database.put(key, CostRecord("ok", 1.0))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE costs SET record = CAST(x'd4d4' AS TEXT)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with CostDatabase(path) as database:
        for read_it in (lambda: database.get(key), lambda: list(database.items())):
            with pytest.raises(CostDatabaseError, match="cannot be read: "):
                read_it()
    data = path.read_bytes()
    assert b"tablecostscosts" in data
    path.write_bytes(data.replace(b"tablecostscosts", b"tablecost\xd4costs"))
    with pytest.raises(CostDatabaseError, match="cannot be opened: "):
        CostDatabase(path)


def _obey_permissions() -> None:
    """The superuser may write anywhere by a capability, which can be given up for good."""
    drop_from_bounding_set, may_ignore_permissions = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, may_ignore_permissions, 0, 0, 0)


@pytest.fixture
def protected(tmp_path: Path) -> Iterator[Path]:
    """A folder with a model and a cost database, none of which may be written to."""
    path = tmp_path / "protected"
    path.mkdir()
    with CostDatabase(path / "costs.sqlite"):
        pass
    onnx.save(relu_model(), path / "m.onnx")
    for file in path.iterdir():
        file.chmod(0o444)
    path.chmod(0o555)
    yield path
    path.chmod(0o755)


@pytest.mark.ci
def test_files_and_folders_that_may_only_be_read(protected: Path) -> None:
    def started(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).parent / "collage"), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
            env={**os.environ, "COLLAGE_LOCK": "/dev/null"},
            preexec_fn=_obey_permissions,
        )

    def said(*arguments: str | Path) -> str:
        result = started(*arguments)
        assert (result.returncode, result.stdout) == (1, ""), result.stderr
        return result.stderr.splitlines()[-1]

    before = {p: p.read_bytes() for p in protected.iterdir()}
    model, costs = protected / "m.onnx", protected / "costs.sqlite"
    readable = f"collage: cost database {costs} cannot be opened: "
    shown = started("costs", "--costs", costs, "show")
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, f"0 costs in {costs}"), shown.stderr
    assert said("optimize", model, *_OPTIONS, "--costs", costs).startswith(readable)
    assert "cannot be opened" in said("optimize", model, *_OPTIONS, "--costs", protected / "new.sqlite")
    assert said("optimize", model, "-o", protected / "m.collage") == (
        f"collage: cannot write {protected}/m.collage: its folder may not be written to"
    )
    assert {p: p.read_bytes() for p in protected.iterdir()} == before


@pytest.mark.ci
def test_a_database_that_is_locked_for_long(
    model: Path, tmp_path: Path, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage_core.costs.database._BUSY_MS", 200)
    path = tmp_path / "costs.sqlite"
    with CostDatabase(path):
        pass
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert mistake("optimize", model, *_OPTIONS, "--costs", path) == (
        f"collage: cost database {path} cannot be opened: database is locked"
    )
    holder.close()


@pytest.mark.ci
def test_progress_that_cannot_be_written_is_dropped(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = model.with_suffix(".collage")
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115  (closed when it is full no more)
    monkeypatch.setattr(sys, "stderr", full)
    assert main(["optimize", str(model), *_OPTIONS, "--budget", "1s", "-o", str(bundle)]) == 0
    assert main(["explain", str(model)]) == 1
    assert sys.stderr is full
    drop(full)
    full.close()
    assert "saved as" in capsys.readouterr().out
    read(bundle)


@pytest.mark.slow
def test_a_model_of_over_2_gb(collage: Collage) -> None:
    """All of it but the last row is a hole in the file; the bundle is as large as it says."""
    rows, columns = 560_000, 1000
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=(rows, columns))
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value="table.bin")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="gather"),
        helper.make_node("Relu", ["e"], ["y"], name="relu"),
    ]
    graph = helper.make_graph(
        nodes, "g", [vector("ids", (3,), TensorProto.INT64)], [vector("y", (3, columns))], [table]
    )
    model, bundle = collage.folder / "m.onnx", collage.folder / "m.collage"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), model)
    last = np.arange(columns, dtype=np.float32)
    with (collage.folder / "table.bin").open("wb") as file:
        file.seek((rows - 1) * columns * 4)
        file.write(last.tobytes())
    report = collage.json(
        "optimize", model, "--backends", "dnnl", "--threads", "1", "--rounds", "4", "-o", bundle
    )
    assert {n: g["backend"] for g in report["groups"] for n in g["nodes"]}["gather"] == "reference"
    assert bundle.stat().st_size > 1 << 31
    np.save(collage.folder / "ids.npy", np.array([rows - 1, 0, rows - 1]))
    y = collage.folder / "y.npy"
    collage.run("run", bundle, "--input", f"ids={collage.folder}/ids.npy", "--output", f"y={y}")
    np.testing.assert_array_equal(np.load(y), np.stack([last, np.zeros_like(last), last]))
    data = bundle.open("r+b")
    data.seek(1 << 31)
    data.write(b"x")
    data.close()
    with pytest.raises(BundleError, match=r"Bad CRC-32 for file .weights\.bin"):
        read(bundle, check_weights=True)
