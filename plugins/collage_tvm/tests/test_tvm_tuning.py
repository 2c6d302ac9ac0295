"""The tuner: what it takes, that what it finds is right, kept, and gone on with after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_tvm.backend import TvmBackend
from collage_tvm.tuning.groups import anchor_of
from collage_tvm.tuning.records import TUNED, Best, Schedule, folder_of, is_any_kept, read_best, write_best
from tuned_cases import CASES, TARGET, Case, array, node, product_case

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.formats import channels_last, plain
from collage_core.placement import Group, Placement
from collage_core.runtime import Bundle, load, save
from collage_core.target import Target


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))


def test_a_folder_that_cannot_be_looked_into_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_HOME", f"/{'x' * 300}")
    assert not is_any_kept()


@pytest.fixture
def _ended() -> Iterator[None]:
    """No search outlives its test, whose folder goes."""
    yield
    from collage_tvm.tuning.step import end_search

    end_search()


@pytest.mark.parametrize("name", CASES)
def test_workloads_compute_what_their_groups_do(name: str) -> None:
    from collage_tvm.tuning.kernel import kernel_of, module_of
    from collage_tvm.tuning.workload import workload_of
    from tvm.s_tir import Schedule

    case = CASES[name]()
    variant = case.variant()
    workload = workload_of(case.group, variant)
    schedule = Schedule(module_of(workload.function))
    case.check(kernel_of(schedule, workload, variant, TARGET), variant)


def test_convolutions_are_tuned_channels_last_and_products_plain() -> None:
    convolution, product = CASES["residual"]().variant(), product_case().variant()
    assert convolution.inputs == tuple(channels_last("float32", (1, c, 6, 6)) for c in (5, 7))
    assert convolution.outputs == (channels_last("float32", (1, 7, 6, 6)),)
    assert product.outputs == (plain("float32", (24, 48)),)


@pytest.mark.parametrize(
    ("nodes", "inputs", "reason"),
    [
        ([node("Relu", "x")], {"x": array(3, 4)}, "a convolution or matrix product"),
        (
            [node("MatMul", "x y", "m"), node("MatMul", "m z")],
            {"x": array(3, 4), "y": array(4, 5), "z": array(5, 6)},
            "the second contraction",
        ),
        (
            [node("Conv", "x w")],
            {"x": array(1, 3, 5, 5), "w": array(2, 3, 3, 3)},
            "weights is not a constant",
        ),
        ([node("MatMul", "x y")], {"x": array(3, 4), "y": array(4)}, "with vectors"),
        (
            [node("MatMul", "x y")],
            {"x": array(3, 4).astype(np.float64), "y": array(4, 5).astype(np.float64)},
            "only float32 is tuned",
        ),
        (
            [node("Relu", "x", "r"), node("MatMul", "r y")],
            {"x": array(3, 4), "y": array(4, 5)},
            "nothing is fused into its input",
        ),
        (
            [node("Mul", "z z", "q"), node("MatMul", "x y", "m"), node("Add", "m q")],
            {"x": array(3, 4), "y": array(4, 5), "z": array(3, 5)},
            "inputs of what is tuned",
        ),
        (
            [node("MatMul", "x y", "m"), node("Softmax", "m")],
            {"x": array(3, 4), "y": array(4, 5)},
            "only arithmetic",
        ),
        (
            [node("MatMul", "x y", "m"), node("Add", "m z")],
            {"x": array(3, 4), "y": array(4, 5), "z": array(2, 3, 5)},
            "another shape",
        ),
    ],
)
def test_what_is_not_tuned(nodes: list[onnx.NodeProto], inputs: dict[str, Any], reason: str) -> None:
    case = Case(nodes, inputs)
    refusal = anchor_of(case.group)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert TvmBackend().tunable(case.group, TARGET) == refusal


def test_without_xgboost_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refusal = TvmBackend().tunable(product_case().group, TARGET)
    assert isinstance(refusal, Refusal)
    assert "pip install 'collage-tvm[tune]'" in refusal.reason
    with pytest.raises(BackendError, match=r"collage-tvm\[tune\]"):
        TvmBackend().tune(product_case().group, _product_variant(), TARGET, 4)


def _product_variant() -> Variant:
    return Variant((plain("float32", (24, 32)),), (plain("float32", (24, 48)),))


def _tuned_variants(case: Case) -> list[Variant]:
    offered = TvmBackend().variants(case.group, TARGET)
    return [] if isinstance(offered, Refusal) else [v for v in offered if dict(v.options).get(TUNED)]


@pytest.mark.usefixtures("_ended")
@pytest.mark.parametrize(
    "name", ["product with a bias", pytest.param("depthwise convolution", marks=pytest.mark.ci)]
)
def test_what_it_finds_is_offered_right_and_runs_elsewhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, tvm = CASES[name](), TvmBackend()
    variant = case.variant()
    assert tvm.tune(case.group, variant, TARGET, 0).trials == 0
    assert _tuned_variants(case) == []
    tuned = tvm.tune(case.group, variant, TARGET, 6)
    assert (tuned.trials, tuned.exhausted) == (6, False)
    assert tuned.best_ms is not None
    assert tvm.tune(case.group, variant, TARGET, 6) == tuned, "nothing more to do"
    [found] = _tuned_variants(case)
    assert (found.inputs, found.outputs) == (variant.inputs, variant.outputs)
    case.check(tvm.build(case.group, found, TARGET), found)
    assert len(str(found)) < 100
    assert _tuned_variants(Case([node("MatMul", "x y")], {"x": array(9, 4), "y": array(4, 5)})) == []

    bundle = tmp_path / "m.collage"
    ids = tuple(n.id for n in case.graph.nodes)
    last = case.group.outputs[0]
    if found.outputs[0] == case.graph.plain_format(last):
        save(Bundle(case.graph, Placement((Group("tvm", ids, found),), (), TARGET)), bundle)
        monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "another home"))
        result = load(bundle)(case.inputs)[last]
        assert np.max(np.abs(result - case.expected())) <= 1e-5 * np.max(np.abs(case.expected()))


def test_a_better_schedule_is_another_variant() -> None:
    case = product_case()
    folder = folder_of(case.group, case.variant(), TARGET)
    folder.mkdir(parents=True)
    texts = []
    for trace in (["first"] * 40, ["second"] * 40):
        write_best(folder, Best(Schedule("0", trace).to_text(), 1.0))
        [variant] = _tuned_variants(case)
        texts.append(str(variant))
    assert len(set(texts)) == 2
    assert folder_of(case.group, case.variant(), Target("cpu", 1)) != folder


def test_damaged_records_are_no_records() -> None:
    case = product_case()
    folder = folder_of(case.group, case.variant(), TARGET)
    folder.mkdir(parents=True)
    for text in ("", "{", "[]", '{"schedule": "x"}', '{"schedule": "x", "run_ms": "fast"}'):
        (folder / "best.json").write_text(text)
        assert read_best(folder) is None
        assert _tuned_variants(case) == []


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [("nonsense", "damaged"), (Schedule("0123", [[], []]).to_text(), "another version's")],
)
def test_a_schedule_that_does_not_fit_is_refused(schedule: str, reason: str) -> None:
    case = product_case()
    variant = replace(case.variant(), options=((TUNED, schedule),))
    with pytest.raises(BackendError, match=reason):
        TvmBackend().build(case.group, variant, TARGET)


@pytest.mark.slow
@pytest.mark.usefixtures("_ended")
def test_what_was_tried_with_another_function_is_given_up() -> None:
    case, other = product_case(), CASES["transposed product"]()
    folder = folder_of(case.group, case.variant(), TARGET)
    TvmBackend().tune(other.group, other.variant(), TARGET, 3)
    folder_of(other.group, other.variant(), TARGET).rename(folder)
    [stale] = _tuned_variants(case)
    with pytest.raises(BackendError, match="another version's"):
        TvmBackend().build(case.group, stale, TARGET)
    os.truncate(folder / "records.json", (folder / "records.json").stat().st_size - 5)  # killed while writing
    assert TvmBackend().tune(case.group, case.variant(), TARGET, 4).trials == 4
    [fresh] = _tuned_variants(case)
    case.check(TvmBackend().build(case.group, fresh, TARGET), fresh)


_TUNE = """
import sys
sys.path.insert(0, {support!r})
from collage_tvm.backend import TvmBackend
from tuned_cases import TARGET, product_case
case = product_case()
while TvmBackend().tune(case.group, case.variant(), TARGET, {trials}).trials < {trials}:
    pass
"""


@pytest.mark.ci
@pytest.mark.usefixtures("_ended")
def test_killed_and_started_again_it_goes_on() -> None:
    case = product_case()
    folder = folder_of(case.group, case.variant(), TARGET)
    records = folder / "records.json"
    mark = f"COLLAGE_HOME={os.environ['COLLAGE_HOME']}".encode()
    code = _TUNE.format(support=str(Path(__file__).parent / "support"), trials=1000)
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 180
            while not records.exists() or records.read_bytes().count(b"\n") < 3:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while left := _processes_with(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    kept = records.read_bytes().count(b"\n")
    best = read_best(folder)
    tuned = TvmBackend().tune(case.group, case.variant(), TARGET, kept + 3)
    assert tuned.trials == kept + 3
    assert best is not None
    assert (tuned.best_ms or 1e9) <= best.run_ms
    times_s = [json.loads(line)[1][1][0] for line in records.read_text().splitlines()]
    assert tuned.best_ms == pytest.approx(min(times_s) * 1e3)
    [found] = _tuned_variants(case)
    case.check(TvmBackend().build(case.group, found, TARGET), found)


def _processes_with(variable: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if variable in environment:
                found.append(int(entry.name))
    return found


def _children() -> list[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def test_a_schedule_that_crashes_costs_itself() -> None:
    import tvm
    from collage_tvm.tuning.kernel import module_of
    from collage_tvm.tuning.trial import Trials
    from collage_tvm.tuning.workload import workload_of

    case = product_case()
    workload = workload_of(case.group, case.variant())
    module = tvm.ir.save_json(module_of(workload.function))
    shapes = [(24, 32), *(h.shape for h in workload.held), (24, 48)]
    trials = Trials(Target("cpu", 1))
    try:
        first, nonsense, last = trials.run([(m, shapes) for m in (module, "{}", module)])
        assert isinstance(first, float)
        assert isinstance(nonsense, str)
        assert isinstance(last, float)
        results = trials.run([(module, shapes)] * 3)
        assert isinstance(next(results), float)
        for child in _children():
            os.kill(child, signal.SIGKILL)
        _, again = results
        assert isinstance(again, float), "in a new process"
    finally:
        trials.close()
