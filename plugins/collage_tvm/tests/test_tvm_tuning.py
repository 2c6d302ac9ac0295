"""The tuner: what it takes, that what it finds is right, kept, and gone on with after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_tvm.backend import TvmBackend
from collage_tvm.tuning.groups import anchor_of
from collage_tvm.tuning.records import TUNED, Best, Schedule, folder_of, read_best, write_best
from onnx import helper
from onnx.reference import ReferenceEvaluator

from collage_core.backend import Variant
from collage_core.device import Target
from collage_core.errors import BackendError, Refusal
from collage_core.formats import channels_last, plain
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.placement import Group, Placement
from collage_core.runtime import Bundle, load, save
from collage_core.testing import bind, make_model

_TARGET = Target("cpu", 2)
_RNG = np.random.default_rng(0)


def _array(*shape: int) -> Any:
    return _RNG.standard_normal(shape, np.float32)


class Case:
    """A model of one group, and the group."""

    def __init__(
        self, nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], constants: dict[str, Any] | None = None
    ) -> None:
        self.inputs = inputs
        self.model = make_model(nodes, inputs, constants, ["o"])
        self.graph: Graph = from_model(self.model)
        self.group = Subgraph(self.graph, self.graph.all_nodes)

    def variant(self) -> Variant:
        offered = TvmBackend().tunable(self.group, _TARGET)
        assert not isinstance(offered, Refusal), str(offered)
        [variant] = offered
        return variant

    def expected(self) -> Any:
        [answer] = ReferenceEvaluator(self.model).run(["o"], self.inputs)
        return answer

    def answer(self, kernel: Any, variant: Variant) -> Any:
        bound = bind(kernel, self.group, variant, self.inputs)
        assert not bound.call()
        return bound.outputs[0]

    def check(self, kernel: Any, variant: Variant) -> None:
        got, want = self.answer(kernel, variant), self.expected()
        assert np.max(np.abs(got - want)) <= 1e-5 * np.max(np.abs(want))


def _node(op: str, inputs: str, output: str = "o", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"{op}_{output}", **attributes)


def _product() -> Case:
    nodes = [_node("MatMul", "x w", "m"), _node("Add", "m b", "a"), _node("Relu", "a")]
    return Case(nodes, {"x": _array(24, 32)}, {"w": _array(32, 48), "b": _array(48)})


_CASES: dict[str, Callable[[], Case]] = {
    "product with a bias": _product,
    "product of activations": lambda: Case(
        [_node("MatMul", "x y", "m"), _node("Mul", "m s")],
        {"x": _array(2, 3, 5, 7), "y": _array(3, 7, 4)},
        {"s": np.float32(0.125)},
    ),
    "product with a broadcast batch": lambda: Case(
        [_node("MatMul", "x y")], {"x": _array(2, 1, 5, 7), "y": _array(1, 3, 7, 4)}
    ),
    "transposed product": lambda: Case(
        [_node("Gemm", "x w b", alpha=0.5, beta=2.0, transB=1)],
        {"x": _array(7, 30)},
        {"w": _array(40, 30), "b": _array(1, 40)},
    ),
    "product with both operands transposed": lambda: Case(
        [_node("Gemm", "x y c", transA=1, transB=1)],
        {"x": _array(9, 5), "y": _array(6, 9), "c": _array(5, 1)},
    ),
    "padded convolution with a bias": lambda: Case(
        [_node("Conv", "x w b", "m", pads=[1, 0, 2, 1], strides=[2, 1]), _node("HardSwish", "m")],
        {"x": _array(1, 6, 11, 9)},
        {"w": _array(10, 6, 3, 2), "b": _array(10)},
    ),
    "convolution of a batch, padded by itself": lambda: Case(
        [_node("Conv", "x w", auto_pad="SAME_LOWER", strides=[2, 2])],
        {"x": _array(2, 3, 7, 8)},
        {"w": _array(4, 3, 3, 3)},
    ),
    "depthwise convolution": lambda: Case(
        [_node("Conv", "x w", "m", pads=[1, 1, 1, 1], group=12), _node("Clip", "m lo hi")],
        {"x": _array(1, 12, 8, 7)},
        {"w": _array(12, 1, 3, 3), "lo": np.float32(0), "hi": np.float32(6)},
    ),
    "grouped convolution, dilated": lambda: Case(
        [_node("Conv", "x w", dilations=[2, 2], group=4)],
        {"x": _array(1, 16, 9, 9)},
        {"w": _array(8, 4, 3, 3)},
    ),
    "convolution in one dimension": lambda: Case(
        [_node("Conv", "x w", pads=[2, 2])], {"x": _array(1, 4, 20)}, {"w": _array(6, 4, 5)}
    ),
    "convolution in three dimensions": lambda: Case(
        [_node("Conv", "x w", pads=[1] * 6)], {"x": _array(1, 2, 5, 4, 6)}, {"w": _array(3, 2, 3, 3, 3)}
    ),
    "residual": lambda: Case(
        [_node("Conv", "x w", "m"), _node("Add", "y m", "a"), _node("Gelu", "a")],
        {"x": _array(1, 5, 6, 6), "y": _array(1, 7, 6, 6)},
        {"w": _array(7, 5, 1, 1)},
    ),
    "used twice": lambda: Case(
        [_node("Conv", "x w", "m"), _node("Sigmoid", "m", "s"), _node("Mul", "m s")],
        {"x": _array(1, 5, 6, 6)},
        {"w": _array(7, 5, 1, 1)},
    ),
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))


@pytest.fixture
def _ended() -> Iterator[None]:
    """No search outlives its test, whose folder goes."""
    yield
    from collage_tvm.tuning.step import end_search

    end_search()


@pytest.mark.parametrize("name", _CASES)
def test_workloads_compute_what_their_groups_do(name: str) -> None:
    from collage_tvm.tuning.kernel import kernel_of, module_of
    from collage_tvm.tuning.workload import workload_of
    from tvm.s_tir import Schedule

    case = _CASES[name]()
    variant = case.variant()
    workload = workload_of(case.group, variant)
    schedule = Schedule(module_of(workload.function))
    case.check(kernel_of(schedule, workload, variant, _TARGET), variant)


def test_convolutions_are_tuned_channels_last_and_products_plain() -> None:
    convolution, product = _CASES["residual"]().variant(), _product().variant()
    assert convolution.inputs == tuple(channels_last("float32", (1, c, 6, 6)) for c in (5, 7))
    assert convolution.outputs == (channels_last("float32", (1, 7, 6, 6)),)
    assert product.outputs == (plain("float32", (24, 48)),)


@pytest.mark.parametrize(
    ("nodes", "inputs", "reason"),
    [
        ([_node("Relu", "x")], {"x": _array(3, 4)}, "a convolution or matrix product"),
        (
            [_node("MatMul", "x y", "m"), _node("MatMul", "m z")],
            {"x": _array(3, 4), "y": _array(4, 5), "z": _array(5, 6)},
            "the second contraction",
        ),
        (
            [_node("Conv", "x w")],
            {"x": _array(1, 3, 5, 5), "w": _array(2, 3, 3, 3)},
            "weights is not a constant",
        ),
        ([_node("MatMul", "x y")], {"x": _array(3, 4), "y": _array(4)}, "with vectors"),
        (
            [_node("MatMul", "x y")],
            {"x": _array(3, 4).astype(np.float64), "y": _array(4, 5).astype(np.float64)},
            "only float32 is tuned",
        ),
        (
            [_node("Relu", "x", "r"), _node("MatMul", "r y")],
            {"x": _array(3, 4), "y": _array(4, 5)},
            "nothing is fused into its input",
        ),
        (
            [_node("Mul", "z z", "q"), _node("MatMul", "x y", "m"), _node("Add", "m q")],
            {"x": _array(3, 4), "y": _array(4, 5), "z": _array(3, 5)},
            "inputs of what is tuned",
        ),
        (
            [_node("MatMul", "x y", "m"), _node("Softmax", "m")],
            {"x": _array(3, 4), "y": _array(4, 5)},
            "only arithmetic",
        ),
        (
            [_node("MatMul", "x y", "m"), _node("Add", "m z")],
            {"x": _array(3, 4), "y": _array(4, 5), "z": _array(2, 3, 5)},
            "another shape",
        ),
    ],
)
def test_what_is_not_tuned(nodes: list[onnx.NodeProto], inputs: dict[str, Any], reason: str) -> None:
    case = Case(nodes, inputs)
    refusal = anchor_of(case.group)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert TvmBackend().tunable(case.group, _TARGET) == refusal


def test_without_xgboost_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refusal = TvmBackend().tunable(_product().group, _TARGET)
    assert isinstance(refusal, Refusal)
    assert "pip install 'collage-tvm[tune]'" in refusal.reason
    with pytest.raises(BackendError, match=r"collage-tvm\[tune\]"):
        TvmBackend().tune(_product().group, _product_variant(), _TARGET, 4)


def _product_variant() -> Variant:
    return Variant((plain("float32", (24, 32)),), (plain("float32", (24, 48)),))


def _tuned_variants(case: Case) -> list[Variant]:
    offered = TvmBackend().variants(case.group, _TARGET)
    return [] if isinstance(offered, Refusal) else [v for v in offered if dict(v.options).get(TUNED)]


@pytest.mark.usefixtures("_ended")
@pytest.mark.parametrize(
    "name", ["product with a bias", pytest.param("depthwise convolution", marks=pytest.mark.ci)]
)
def test_what_it_finds_is_offered_right_and_runs_elsewhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, tvm = _CASES[name](), TvmBackend()
    variant = case.variant()
    assert tvm.tune(case.group, variant, _TARGET, 0).trials == 0
    assert _tuned_variants(case) == []
    tuned = tvm.tune(case.group, variant, _TARGET, 6)
    assert (tuned.trials, tuned.exhausted) == (6, False)
    assert tuned.best_ms is not None
    assert tvm.tune(case.group, variant, _TARGET, 6) == tuned, "nothing more to do"
    [found] = _tuned_variants(case)
    assert (found.inputs, found.outputs) == (variant.inputs, variant.outputs)
    case.check(tvm.build(case.group, found, _TARGET), found)
    assert len(str(found)) < 100
    assert _tuned_variants(Case([_node("MatMul", "x y")], {"x": _array(9, 4), "y": _array(4, 5)})) == []

    bundle = tmp_path / "m.collage"
    ids = tuple(n.id for n in case.graph.nodes)
    last = case.group.outputs[0]
    if found.outputs[0] == case.graph.plain_format(last):
        save(Bundle(case.graph, Placement((Group("tvm", ids, found),), (), _TARGET)), bundle)
        monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "another home"))
        result = load(bundle)(case.inputs)[last]
        assert np.max(np.abs(result - case.expected())) <= 1e-5 * np.max(np.abs(case.expected()))


def test_a_better_schedule_is_another_variant() -> None:
    case = _product()
    folder = folder_of(case.group, case.variant(), _TARGET)
    folder.mkdir(parents=True)
    texts = []
    for trace in (["first"] * 40, ["second"] * 40):
        write_best(folder, Best(Schedule("0", trace).to_text(), 1.0))
        [variant] = _tuned_variants(case)
        texts.append(str(variant))
    assert len(set(texts)) == 2
    assert folder_of(case.group, case.variant(), Target("cpu", 1)) != folder


def test_damaged_records_are_no_records() -> None:
    case = _product()
    folder = folder_of(case.group, case.variant(), _TARGET)
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
    case = _product()
    variant = replace(case.variant(), options=((TUNED, schedule),))
    with pytest.raises(BackendError, match=reason):
        TvmBackend().build(case.group, variant, _TARGET)


@pytest.mark.ci
@pytest.mark.usefixtures("_ended")
def test_what_was_tried_with_another_function_is_given_up() -> None:
    case, other = _product(), _CASES["transposed product"]()
    folder = folder_of(case.group, case.variant(), _TARGET)
    TvmBackend().tune(other.group, other.variant(), _TARGET, 3)
    folder_of(other.group, other.variant(), _TARGET).rename(folder)
    [stale] = _tuned_variants(case)
    with pytest.raises(BackendError, match="another version's"):
        TvmBackend().build(case.group, stale, _TARGET)
    os.truncate(folder / "records.json", (folder / "records.json").stat().st_size - 5)  # killed while writing
    assert TvmBackend().tune(case.group, case.variant(), _TARGET, 4).trials == 4
    [fresh] = _tuned_variants(case)
    case.check(TvmBackend().build(case.group, fresh, _TARGET), fresh)


_TUNE = """
import sys
sys.path.insert(0, {tests!r})
from test_tvm_tuning import _TARGET, TvmBackend, _product
case = _product()
while TvmBackend().tune(case.group, case.variant(), _TARGET, {trials}).trials < {trials}:
    pass
"""


@pytest.mark.ci
@pytest.mark.usefixtures("_ended")
def test_killed_and_started_again_it_goes_on() -> None:
    case = _product()
    folder = folder_of(case.group, case.variant(), _TARGET)
    records = folder / "records.json"
    mark = f"COLLAGE_HOME={os.environ['COLLAGE_HOME']}".encode()
    code = _TUNE.format(tests=str(Path(__file__).parent), trials=1000)
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
    tuned = TvmBackend().tune(case.group, case.variant(), _TARGET, kept + 3)
    assert tuned.trials == kept + 3
    assert best is not None
    assert (tuned.best_ms or 1e9) <= best.run_ms
    times_s = [json.loads(line)[1][1][0] for line in records.read_text().splitlines()]
    assert tuned.best_ms == pytest.approx(min(times_s) * 1e3)
    [found] = _tuned_variants(case)
    case.check(TvmBackend().build(case.group, found, _TARGET), found)


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

    case = _product()
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
