"""A user's mistakes: one clear line and exit code 1."""

from __future__ import annotations

import errno
import io
import os
import threading
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from processes import wait_until

from collage_core import Bundle, Group, Placement, Subgraph, Target, plain_variant, save
from collage_core.cli.main import main
from collage_core.costs import CostDatabase, CostKey, CostRecord, Policy
from collage_core.formats import Array
from collage_core.ir import from_model
from collage_core.report.summary import placement_json
from collage_core.runtime.bundle import read
from collage_core.worker.worker import _spawner

if TYPE_CHECKING:
    from collage_command import Collage

    from tests.cli.conftest import Mistake

_MODEL = """<ir_version: 10, opset_import: ["" : 20]> g (float[2,3] x) => (float y) { [relu] y = Relu(x) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "relu.onnx"
    onnx.save(onnx.parser.parse_model(_MODEL), path)
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A placement made by hand, on the reference."""
    graph = from_model(onnx.parser.parse_model(_MODEL))
    whole = Subgraph(graph, graph.all_nodes)
    group = Group("reference", tuple(n.id for n in graph.nodes), plain_variant(whole))
    path = tmp_path / "relu.collage"
    save(Bundle(graph, Placement((group,), (), Target("cpu", 1))), path)
    return path


@pytest.fixture
def junk(tmp_path: Path) -> Path:
    path = tmp_path / "junk"
    path.write_text("neither a model nor a bundle\n")
    return path


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder of what is no regular file."""
    path = tmp_path / "odd"
    path.mkdir()
    os.mkfifo(path / "pipe")
    (path / "folder").mkdir()
    (path / "device").symlink_to(os.devnull)
    (path / "loop").symlink_to(path / "back")
    (path / "back").symlink_to(path / "loop")
    return path


@pytest.mark.parametrize("command", ["optimize", "bench", "run", "explain"])
def test_files_that_are_not_there_or_something_else(
    command: str, junk: Path, tmp_path: Path, mistake: Mistake
) -> None:
    assert mistake(command, tmp_path / "none") == f"collage: {tmp_path}/none: no such file"
    what = "bundle" if command in ("run", "explain") else "ONNX model"
    assert f"{junk}: not a" in mistake(command, junk)
    assert what in mistake(command, junk)
    (tmp_path / "empty").touch()
    assert f"not a{'n' * what.startswith('O')} {what}" in mistake(command, tmp_path / "empty")
    assert str(tmp_path) in mistake(command, tmp_path)


@pytest.mark.parametrize("command", ["optimize", "tune", "bench", "run", "explain", "check"])
def test_what_is_read_is_a_regular_file(command: str, odd: Path, mistake: Mistake) -> None:
    for name in ("pipe", "folder", "device"):
        said = mistake(command, odd / name)
        assert said.startswith(f"collage: {odd / name}: ")
        assert "no regular file" in said
    assert os.strerror(errno.ELOOP) in mistake(command, odd / "loop")


def test_what_is_written_is_a_file_or_takes_it_at_once(
    odd: Path, bundle: Path, model: Path, mistake: Mistake, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    run = ("run", bundle, "--input", f"x={tmp_path}/x.npy", "--output")
    for name, said, of_bundle in (
        ("pipe", "nobody reads from it", "it is no file"),
        ("folder", os.strerror(errno.EISDIR), "it is a folder"),
        ("loop", os.strerror(errno.ELOOP), os.strerror(errno.ELOOP)),
    ):
        refusal = f"collage: cannot write {odd / name}: "
        assert mistake(*run, f"y={odd / name}") == refusal + said
        assert mistake("costs", "export", odd / name) == refusal + said
        assert mistake("optimize", model, "-o", odd / name) == refusal + of_bundle
    assert (odd / "loop").is_symlink()
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((odd / "pipe").read_bytes()), daemon=True)
    reader.start()
    # Until the reader is there.
    assert wait_until(lambda: main([str(a) for a in (*run, f"y={odd / 'pipe'}")]) == 0)
    assert wait_until(lambda: bool(read))
    assert np.load(io.BytesIO(read[0])).shape == (2, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backends", "quick,dnnl"], "unknown backend 'quick'; installed: cublas, "),
        (["--exclude", "dnnl:"], "--exclude dnnl:: expected BACKEND or BACKEND:NODES"),
        (
            ["--pin", "relu=dnnl", "--exclude", "dnnl"],
            "is pinned to 'dnnl', which is excluded from it",
        ),
        (["--exclude", "quick:Conv"], "unknown backend 'quick'; installed: cublas, "),
        (["--devices", "cpu,abacus"], "unknown device 'abacus'"),
        (["--threads", "0"], "threads must be 1 to 1024, not 0"),
        (["--rounds", "0"], "--rounds must be 1 to 10000"),
        (["--rounds", "1" + "0" * 20], "--rounds must be 1 to 10000"),
        (["--shape", "x=2,4"], "the model declares x=2,3"),
        (
            ["-o", "/no/such/folder/m.collage"],
            "cannot write /no/such/folder/m.collage: there is no such folder",
        ),
        (["-o", "/"], "cannot write /: it is a folder"),
        (["-o", ""], "collage: argument output: it is empty"),
        (["--calibrate", "/no/x.npz", "--max-error", "1"], "--calibrate /no/x.npz: no such file"),
        (["--pin", ""], "collage: argument pin: it is empty"),
        (["--costs", "/"], "cost database / cannot be opened"),
        (["--costs", "/no/such/folder/c"], "--costs /no/such/folder/c: there is no such folder"),
        (
            ["--exclude", "reference", "--backends", "dnnl", "--exclude", "dnnl"],
            "no backend that is left offers to run node 'relu' (Relu); excluded: dnnl, reference",
        ),
    ],
)
def test_options_of_optimize(options: list[str], said: str, model: Path, mistake: Mistake) -> None:
    assert said in mistake("optimize", model, *options)


def test_errors_and_calibrations_of_optimize(model: Path, tmp_path: Path, mistake: Mistake) -> None:
    one, array, broken, objects = (tmp_path / n for n in ("one.npz", "x.npy", "broken.npz", "objects.npz"))
    np.savez(one, x=np.ones((1, 2, 3), np.float32))
    np.save(array, np.ones((2, 2, 3), np.float32))
    broken.write_bytes(b"PK\x03\x04 and nothing else")
    np.savez(objects, x=np.array([{}], object))
    for options, said in (
        (["--max-error", "2"], "max_error must be above 0 and below 1, not 2"),
        (["--calibrate", one], "--calibrate says nothing without --max-error"),
        (["--metric", "m.py:f"], "--metric says nothing without --max-error"),
        (["--max-error", "2", "--metric", "m.py"], "metric 'm.py': FILE.py:FUNCTION is needed"),
        (["--max-error", "1e-2", "--calibrate", one], "calibration: 1 samples; at least 2 are needed"),
        (
            ["--max-error", "1e-2", "--calibrate", array],
            f"--calibrate {array}: it holds one array; arrays by",
        ),
        (["--max-error", "1e-2", "--calibrate", broken], f"--calibrate {broken}: "),
        (["--max-error", "1e-2", "--calibrate", objects], f"--calibrate {objects}: Object arrays cannot be"),
        (["--max-error", "1e-2", "--calibrate", tmp_path], f"--calibrate {tmp_path}: "),
    ):
        assert said in mistake("optimize", model, *options)


@pytest.mark.parametrize("way", ["itself", "another way", "a link"])
def test_the_model_is_not_written_over(way: str, model: Path, tmp_path: Path, mistake: Mistake) -> None:
    before = model.read_bytes()
    (tmp_path / "link.collage").symlink_to(model)
    ways = {
        "itself": model,
        "another way": model.parent / "." / ".." / model.parent.name / model.name,
        "a link": tmp_path / "link.collage",
    }
    assert (
        mistake("optimize", model, "-o", ways[way]) == f"collage: cannot write {ways[way]}: it is the model"
    )
    assert model.read_bytes() == before


def test_a_bundle_is_not_the_cost_database(model: Path, tmp_path: Path, mistake: Mistake) -> None:
    """Of one name it would take the place of what was measured for it."""
    file = tmp_path / "both"
    said = mistake("optimize", model, "--costs", file, "-o", file)
    assert said == f"collage: cannot write {file}: it is the cost database"
    assert not file.exists()


def test_what_is_no_bundle_is_not_written_over(model: Path, tmp_path: Path, mistake: Mistake) -> None:
    """Such as the model's external data."""
    data = tmp_path / "model.data"
    data.write_bytes(b"weights")
    said = mistake("optimize", model, "-o", data)
    assert said == f"collage: cannot write {data}: there is a file that is no bundle"
    assert data.read_bytes() == b"weights"


@pytest.mark.parametrize(
    "variable", ["COLLAGE_WORKER_MEMORY_MIB", "COLLAGE_CANDIDATE_LIMIT_S", "COLLAGE_SETTLING_LIMIT_S"]
)
def test_what_the_environment_says_is_read_first(
    variable: str, mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "much")
    assert variable in mistake("optimize", tmp_path / "there is no such model.onnx")


@pytest.mark.parametrize("command", ["check", "bench", "tune"])
def test_what_the_environment_says_is_read_before_anything_runs(
    command: str, bundle: Path, model: Path, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_WORKER_MEMORY_MIB", "much")
    said = mistake(command, model if command == "tune" else bundle)
    assert said == "collage: COLLAGE_WORKER_MEMORY_MIB must be a positive number; it is 'much'"


def test_calibration_is_on_or_off(model: Path, mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "nonsense")
    said = mistake("optimize", model, "--backends", "dnnl", "--budget", "1s")
    assert said.endswith("COLLAGE_CALIBRATION must be on or off, not 'nonsense'")


def test_options_of_bench(bundle: Path, model: Path, mistake: Mistake) -> None:
    assert mistake("bench", bundle, "--against", "nobody") == (
        "collage: unknown peer 'nobody'; installed: onnxruntime, openvino"
    )
    assert "--rounds must be 1 to 10000" in mistake("bench", bundle, "--rounds", "0")
    assert "--concurrency must be 1 to 1024" in mistake("bench", bundle, "--concurrency", "0")
    assert mistake("bench", bundle, "--original", "none.onnx") == "collage: none.onnx: no such file"
    assert f"--original goes with a bundle; {model} is none" in mistake("bench", model, "--original", model)


def test_inputs_of_run(bundle: Path, junk: Path, odd: Path, tmp_path: Path, mistake: Mistake) -> None:
    arrays: dict[str, Array] = {
        "right": np.zeros((2, 3), np.float32),
        "wide": np.zeros((2, 4), np.float32),
        "double": np.zeros((2, 3)),
    }
    files = {name: tmp_path / f"{name}.npy" for name in arrays}
    for name, array in arrays.items():
        np.save(files[name], array)
    np.savez(tmp_path / "many.npz", x=arrays["right"])

    def run(*arguments: str) -> str:
        return mistake("run", bundle, *arguments)

    right = ("--input", f"x={files['right']}")
    assert "input 'x' (float32[2,3]) is missing" in run()
    assert "input 'x' has shape [2, 4]; the model's is [2, 3]" in run("--input", f"x={files['wide']}")
    assert "input 'x' has dtype float64; the model's is float32" in run("--input", f"x={files['double']}")
    assert "no input 'q'; its inputs: x" in run(*right, "--input", f"q={files['right']}")
    assert "no input 'q'; its inputs: x" in run("--input", f"q={files['right']}")
    assert "not a .npy file" in run("--input", f"x={junk}")
    assert "input" in run("--input", f"x={tmp_path}/many.npz")
    assert "no such file" in run("--input", f"x={tmp_path}/none.npy")
    for name in ("pipe", "folder", "device"):
        assert run("--input", f"x={odd / name}").endswith(f"{odd / name}: no regular file")
    assert "expected NAME=VALUE" in run("--input", "x")
    assert "the model's outputs are y" in run(*right, "--output", f"q={tmp_path}/q.npy")
    assert "cannot write /no/such/folder/y.npy" in run(*right, "--output", "y=/no/such/folder/y.npy")
    assert "--repeat must be at least 1" in run(*right, "--repeat", "0")
    assert run(*right, "--output", f"y={bundle}").endswith(f"cannot write {bundle}: it is read")
    assert run(*right, "--output", f"y={files['right']}").endswith(f"{files['right']}: it is read")


@pytest.mark.parametrize("entry", ["manifest.json", "placement.json", "model.onnx"])
@pytest.mark.parametrize("content", [b"junk", b"[]", None])
def test_damaged_bundles(
    entry: str, content: bytes | None, bundle: Path, tmp_path: Path, mistake: Mistake
) -> None:
    damaged = tmp_path / "damaged.collage"
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            if name != entry:
                target.writestr(name, source.read(name))
            elif content is not None:
                target.writestr(name, content)
    assert "not a " in mistake("explain", damaged)


def test_a_front_is_drawn_where_an_error_was_limited(
    bundle: Path, tmp_path: Path, mistake: Mistake, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "front.svg"
    said = mistake("explain", bundle, "--front", picture)
    assert "no error was limited by --max-error, and no front is known" in said
    tried = {"predicted_ms": 1.0, "error": 2e-3, "held_out_error": None, "is_on_front": True}
    made = read(bundle)
    report = placement_json(made.graph, made.placement)
    limit = {"most": 1e-2, "metric": None, "tried": [tried]}
    save(replace(made, report={**report, "error_limit": limit}), bundle)
    assert main(["explain", str(bundle), "--front", str(picture)]) == 0
    assert "time against error" in capsys.readouterr().out
    assert picture.read_text().startswith("<svg ")
    damaged = {**report, "error_limit": {"most": "a lot", "tried": [{}]}}
    save(replace(made, report=damaged), bundle)
    assert "its report is damaged" in mistake("explain", bundle, "--front", picture)


def test_explain_of_a_placement_made_by_hand(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(bundle)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("groups in order, ms\n")
    assert "reference" in text
    assert "relu" in text


def test_costs(junk: Path, tmp_path: Path, mistake: Mistake) -> None:
    assert "cannot read" in mistake("costs", "import", tmp_path / "none")
    assert "line 1 is no exported cost" in mistake("costs", "import", junk)
    (empty := tmp_path / "empty.jsonl").write_text("{}\n")
    assert "line 1 is no exported cost: it has no 'key'" in mistake("costs", "import", empty)
    assert "cannot write" in mistake("costs", "export", tmp_path)
    assert "say what to prune" in mistake("costs", "prune")
    assert "cannot be opened" in mistake("costs", "--costs", junk, "show")
    assert "cannot be opened" in mistake("costs", "show", "--costs", junk)


@pytest.mark.parametrize("days", ["-5", "nan", "inf"])
def test_days_that_mean_nothing_prune_nothing(days: str, tmp_path: Path, mistake: Mistake) -> None:
    key = CostKey("kernel", "k", "v", "a", {}, Policy())
    with CostDatabase(tmp_path / "costs") as database:
        database.put(key, CostRecord("ok", 1.0))
        said = mistake("costs", "--costs", tmp_path / "costs", "prune", "--older-than", days)
        assert said == f"collage: --older-than {days}: expected a number of days, 0 or more"
        assert len(database) == 1
    assert main(["costs", "--costs", str(tmp_path / "costs"), "prune", "--older-than", "0"]) == 0


def test_a_backend_of_which_nothing_is_known_prunes_nothing(tmp_path: Path, mistake: Mistake) -> None:
    with CostDatabase(tmp_path / "costs"):
        pass
    said = mistake("costs", "--costs", tmp_path / "costs", "prune", "--backend", "nobody")
    assert "--backend 'nobody': costs are known of none" in said
    assert main(["costs", "--costs", str(tmp_path / "costs"), "prune", "--backend", "reference"]) == 0


def test_costs_are_exported_to_standard_output_by_its_usual_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with CostDatabase(tmp_path / "costs"):
        pass
    assert main(["costs", "--costs", str(tmp_path / "costs"), "export", "-"]) == 0
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("action", [["show"], ["export"], ["prune", "--failed"], ["priors", "tvm"]])
def test_a_mistyped_database_is_not_made(action: list[str], tmp_path: Path, mistake: Mistake) -> None:
    for name, said in (("typo", "no such file"), ("none/costs", "there is no such folder")):
        path = tmp_path / name
        assert mistake("costs", "--costs", path, *action) == f"collage: --costs {path}: {said}"
    assert not list(tmp_path.iterdir())


def test_a_database_is_a_regular_file(odd: Path, mistake: Mistake) -> None:
    before = sorted(odd.iterdir())
    for name in ("pipe", "device", "folder"):
        assert mistake("costs", "--costs", odd / name, "show") == (
            f"collage: cost database {odd / name} cannot be opened: no regular file"
        )
    assert sorted(odd.iterdir()) == before


def test_no_room_for_a_thread(model: Path, mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    monkeypatch.setattr("collage_core.worker.worker._spawner", cache(_spawner.__wrapped__))
    said = mistake("optimize", model, "--backends", "reference")
    assert said == "collage: a worker process cannot be started: can't start new thread"
    monkeypatch.setattr("collage_core.cli.commands.explain.read_profiles", none_left)
    said = mistake("explain", model)
    assert said == "collage: out of memory or of processes: can't start new thread"


def test_as_processes(collage: Collage, model: Path) -> None:
    process = collage.start("optimize", model, "--backends", "quick")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert [line for line in err.splitlines() if line.startswith("collage: ")] == err.splitlines()[-1:]
    assert "Traceback" not in err
    collage.run("optimize", code=2)
