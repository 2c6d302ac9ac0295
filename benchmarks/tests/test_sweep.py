"""Sweeps of settings: what is compared runs and is checked, and the conclusion follows from the figures."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_benchmarks.evidence.machine import processor_json, slug_of
from collage_benchmarks.evidence.repository import Commit
from collage_benchmarks.networks import NETWORKS
from collage_benchmarks.sweep import __main__ as command
from collage_benchmarks.sweep import measuring
from collage_benchmarks.sweep.contending import open_backend, open_peer, pieces_of
from collage_benchmarks.sweep.grid import IN_USE, OPERATORS, PIECES, USES, Choice, Use, choices
from collage_benchmarks.sweep.page import conclusion, page

from collage_core.cli.progress import ProgressBars
from collage_core.costs.sittings import Sitting, Turn
from collage_core.errors import BackendError, CollageError
from collage_core.formats import Array
from collage_core.ir import Graph, load_model, save_stored
from collage_core.ir.passes import normalise
from collage_core.measuring.workspace import Workspace
from collage_core.plugins import default_registry
from collage_core.reference import evaluate
from collage_core.runtime.session import save_arrays
from collage_core.target import Target

_ROOT = Path(__file__).parents[2]
_TARGET = Target(threads=2)
_COMMIT = Commit("a" * 40, "2026-11-20T10:00:00+00:00", "b" * 40, False)
_DIRECT, _WHOLE = Use("openvino", "called directly"), Use("openvino", "whole graph")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_encoder.onnx"
    onnx.save(NETWORKS["tiny_encoder"].build(), path)
    return path


@pytest.fixture
def graph(model: Path) -> Graph:
    return normalise(load_model(model))


@pytest.fixture
def inputs_file(tmp_path: Path) -> Path:
    save_arrays(tmp_path / "inputs.npz", NETWORKS["tiny_encoder"].inputs())
    return tmp_path / "inputs.npz"


def _check(outputs: dict[str, Array], graph: Graph) -> None:
    for name, expected in evaluate(graph, NETWORKS["tiny_encoder"].inputs()).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("library", ["onnxruntime", "openvino"])
def test_every_choice_of_a_runtime_runs(library: str, model: Path, graph: Graph, inputs_file: Path) -> None:
    for choice in choices(Use(library, "called directly"), _TARGET):
        session = open_peer(library, choice.settings, model, _TARGET, inputs_file)
        session.run()
        _check(session.outputs(), graph)


@pytest.mark.parametrize("library", ["onnxruntime", "openvino"])
def test_a_backend_has_the_settings_while_it_builds(
    library: str, graph: Graph, inputs_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "graph"
    save_stored(graph, folder)
    session = open_backend(library, {}, folder, 8, _TARGET, inputs_file)
    session.run()
    _check(session.outputs(), graph)
    wrong = {"onnxruntime": {"execution_mode": "SOMEHOW"}, "openvino": {"PERFORMANCE_HINT": "SOMEHOW"}}[
        library
    ]
    with pytest.raises(BackendError, match="SOMEHOW"):
        open_backend(library, wrong, folder, 8, _TARGET, inputs_file)
    open_backend(library, {}, folder, 8, _TARGET, inputs_file).run()


@pytest.mark.parametrize("library", ["onnxruntime", "openvino"])
def test_pieces_cover_the_graph(library: str, graph: Graph) -> None:
    backend = default_registry().backend(library)
    pieces = pieces_of(graph, backend, _TARGET, 8)
    assert [n for g in pieces.groups for n in g.nodes] == [n.id for n in graph.nodes]
    assert max(len(g.nodes) for g in pieces.groups) == 8
    by_the_library = sum(len(g.nodes) for g in pieces.groups if g.backend == library)
    assert by_the_library > 0.9 * len(graph.nodes)
    whole = pieces_of(graph, backend, _TARGET, len(graph.nodes))
    assert [g.backend for g in whole.groups] == [library]


@pytest.mark.parametrize("use", USES, ids=str)
def test_choices_differ_and_keep_threads_and_precision(use: Use) -> None:
    found = choices(use, _TARGET)
    assert found[0] == Choice(IN_USE)
    assert len({c.label for c in found}) == len(found) > 4
    touched = {name for c in found for name in (*c.settings, *c.environment)}
    fixed = {"INFERENCE_NUM_THREADS", "intra_op_num_threads", "OMP_NUM_THREADS", "INFERENCE_PRECISION_HINT"}
    assert not touched & fixed
    assert all(c.environment if use.library == OPERATORS else c.settings for c in found[1:])


def _measured(use: Use, sittings: int = 2) -> dict[str, Any]:
    with ProgressBars() as progress:
        return measuring.measure_use("tiny_conv", use, _TARGET, sittings, None, _COMMIT, progress)


def test_a_sweep_tells_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, wrong = (
        Choice("pinned", {"ENABLE_CPU_PINNING": "YES"}),
        Choice("wrong", {"PERFORMANCE_HINT": "ANY"}),
    )
    monkeypatch.setattr(measuring, "choices", lambda *_: (Choice(IN_USE), pinned, wrong))
    sweep = _measured(_DIRECT)
    in_use, other, failed = sweep["choices"]
    assert (in_use["ratio"], in_use["half_interval"], in_use["status"]) == (1.0, None, "ok")
    assert other["ratio"] > 0
    assert 0 < in_use["max_rel_error"] < 1e-4
    assert (failed["status"], failed["ratio"]) == ("failed", None)
    assert "PERFORMANCE_HINT" in failed["reason"]
    assert json.loads(json.dumps(sweep)) == sweep
    assert "| wrong | failed | - |" in page([sweep])


def test_wrong_answers_have_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "choices", lambda *_: (Choice(IN_USE),))
    right = Workspace.expected_outputs
    monkeypatch.setattr(
        Workspace, "expected_outputs", lambda self: {n: 1.01 * a for n, a in right(self).items()}
    )
    with pytest.raises(CollageError, match=r"tiny_conv, openvino, whole graph, in use: .*more than 0\.0001"):
        _measured(_WHOLE, sittings=1)


def _sat(*ms: float) -> list[Sitting]:
    return [Sitting((Turn(t), Turn(t))) for t in ms]


def test_choices_that_may_be_faster_go_on() -> None:
    usual, open_, slower = _sat(1.0, 1.01, 1.0), _sat(1.0, 0.97, 1.0), _sat(1.2, 1.21, 1.2)
    three = {IN_USE: usual, "open": open_, "slower": slower, "same": _sat(0.995, 1.005, 0.994)}
    assert measuring.may_be_faster(three) == {IN_USE, "open"}
    assert measuring.may_be_faster({IN_USE: usual, "slower": slower, "failed": []}) == set()
    many = {IN_USE: _sat(*[1.0] * 8), "same": _sat(*[0.97] * 8)}
    assert measuring.may_be_faster(many) == set(), "eight sittings are enough"
    moved = [Sitting((Turn(1.0, moved=True),), as_it_comes=True)] * 5
    assert measuring.may_be_faster({n: s[:7] + moved[:4] for n, s in many.items()}) == set(many)
    assert measuring.may_be_faster({n: s[:7] + moved for n, s in many.items()}) == set(), "twelve in all"


def _sweep(network: str, *ratios: tuple[str, float | None, float | None]) -> dict[str, Any]:
    processor = {"vendor": "", "name": "One", "family": "1", "model": "2", "cores": 2, "cpus": 2}
    keys = ("label", "ratio", "half_interval")
    told = [dict(zip(keys, r, strict=True)) for r in ((IN_USE, 1.0, None), *ratios)]
    return {
        "network": network,
        "use": {"library": "openvino", "how": PIECES},
        "processor": processor,
        "threads": 2,
        "commit": {"id": "c" * 40},
        "dirty": False,
        "software": {"backends": []},
        "choices": [{**t, "median_ms": 5.0, "status": "ok" if t["ratio"] else "wrong"} for t in told],
    }


def test_conclusions() -> None:
    slower, chance = ("slow", 1.1, 0.01), ("lucky", 0.97, 0.05)
    nothing = "No other choice is faster beyond what is uncertain."
    assert conclusion([_sweep("a", slower)]) == nothing
    assert conclusion([_sweep("a", slower, chance)]) == (
        f"{nothing} The most that is seen: 3.1% slower than with 'lucky' on a."
    )
    a, b = _sweep("a", slower, ("fast", 0.99, 0.005)), _sweep("b", slower, ("fast", 0.9, 0.01))
    assert conclusion([a]) == (
        "The settings in use are within 2% of the best found: 1.0% slower than with 'fast' on a. "
        "The best one choice on the whole is 'fast': 0.990 +- 0.005."
    )
    assert conclusion([a, b]).startswith(
        "The settings in use are not within 2% of the best found: 11.1% slower"
    )
    harmed = _sweep("c", ("fast", 1.5, 0.01))
    no_one = "No one choice is faster on the whole, beyond what is uncertain."
    assert conclusion([a, harmed]).endswith(no_one)
    failing = copy.deepcopy(_sweep("c", ("fast", None, None)))
    assert conclusion([a, failing]).endswith(
        "No one choice is faster on the whole, beyond what is uncertain."
    ), "it does not run there"
    both = [_sweep(n, ("unsure", 0.97, 0.05), ("sure", 0.985, 0.002)) for n in "ab"]
    assert "on the whole is 'sure': 0.985 +- 0.001" in conclusion(both), "though another is seen faster"
    once = [_sweep("a", ("fast", 0.9, 0.01)), _sweep("b", ("fast", 0.9, None))]
    assert conclusion(once).endswith(no_one), "of one it is not known how sure"
    unsure = _sweep("c", ("fast", 0.995, 0.04))
    assert conclusion([a, unsure]).endswith(no_one), "0.992 +- 0.020"
    assert "| fast | 0.990 +- 0.005 | 0.995 +- 0.040 | 0.992 +- 0.020 |" in page([a, unsure]).splitlines()
    lines = page([a, failing]).splitlines()
    assert "| | a (5 ms) | c (5 ms) | all |" in lines
    assert "| fast | 0.990 +- 0.005 | wrong | - |" in lines


@pytest.mark.ci
def test_it_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(_ROOT)
    monkeypatch.setattr(command, "require_idle", lambda: None)
    monkeypatch.setattr(command, "commit_of", lambda root: _COMMIT)
    arguments = ["--networks", "tiny_conv", "--uses", _DIRECT.name, "--sittings", "1", "--threads", "2"]
    arguments += ["--out", str(tmp_path)]
    assert command.main(arguments) == 0
    file = tmp_path / slug_of(processor_json()) / "tiny_conv" / f"{_DIRECT.name}.json"
    first = file.read_bytes()
    assert command.main(arguments) == 0
    assert file.read_bytes() == first
    later = Commit("d" * 40, _COMMIT.date, _COMMIT.head, False)
    monkeypatch.setattr(command, "commit_of", lambda root: later)
    assert command.main(arguments) == 0
    assert json.loads(file.read_text())["commit"]["id"] == later.id
    assert "### openvino, called directly" in (tmp_path / "README.md").read_text()
    file.write_text('{"format": 2}')
    assert command.main([*arguments, "--page"]) == 1
    assert "has format 2; this program reads 1" in capsys.readouterr().err


def test_the_page_says_what_the_records_say() -> None:
    folder = _ROOT / command.SWEEPS_FOLDER
    sweeps = command.read_sweeps(folder)
    if not sweeps:
        assert not folder.exists()
        return
    assert (folder / "README.md").read_text() == page(sweeps), "python -m collage_benchmarks.sweep --page"
