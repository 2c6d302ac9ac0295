"""Several contexts of one executable in several threads."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from collage_core import (
    Backend,
    BackendInfo,
    BackendKind,
    Bundle,
    Candidate,
    CollageError,
    Constraints,
    CostRecord,
    Executable,
    Kernel,
    OpLevelSearch,
    Placement,
    Registry,
    Subgraph,
    Target,
    Variant,
    build,
    default_registry,
    formulate,
    generate_candidates,
    plain_variant,
    save,
)
from collage_core.backend import Bound
from collage_core.devices import Queue
from collage_core.formats import Array
from collage_core.ir import Graph, NodeSet, from_model
from collage_core.placement import Group
from collage_core.plugins import hookimpl
from collage_core.reference import evaluate
from collage_core.runtime import Arena
from collage_core.search.formulate import needed_conversions

_SCRIPT = Path(__file__).parents[1] / "support" / "concurrent_contexts.py"
_TIMEOUT_S = 20.0
_WEIGHT_BYTES = 4 * 2048 * 4096


class Meeting(Backend):
    """Negates; every call waits until as many are under way as the test asks for."""

    name = "meeting"

    def __init__(self) -> None:
        self.barrier = threading.Barrier(1)
        self.bound_by: list[Kernel] = []

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", "1")

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant]:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return MeetingKernel(self)

    @hookimpl
    def collage_backends(self) -> Sequence[Backend]:
        return [self]


class MeetingKernel(Kernel):
    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        self.meeting.bound_by.append(self)

        def call() -> None:
            self.meeting.barrier.wait(_TIMEOUT_S)
            np.negative(inputs[0], out=outputs[0])
            self.meeting.barrier.wait(_TIMEOUT_S)

        return call


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


@pytest.fixture
def executable(meeting: Meeting) -> Executable:
    """y = -(-x), in two kernels."""
    graph = _parse("(float[64] x) => (float y) { [one] n = Neg(x) [two] y = Neg(n) }")
    groups = [
        Group(meeting.name, (n.id,), plain_variant(Subgraph(graph, NodeSet([n.id])))) for n in graph.nodes
    ]
    placement = Placement(tuple(groups), (), Target("cpu", 1))
    return build(graph, placement, Registry([meeting], entry_points=False))


def _parse(text: str) -> Graph:
    return from_model(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}'))


def test_contexts_run_at_the_same_time_on_the_same_kernels(meeting: Meeting, executable: Executable) -> None:
    contexts = [executable.context() for _ in range(3)]
    assert meeting.bound_by == [*executable.kernels] * 3
    meeting.barrier = threading.Barrier(len(contexts))  # each step waits for the same one of the others
    found: dict[int, Array] = {}

    def work(index: int) -> None:
        found[index] = contexts[index](np.full(64, index, np.float32))["y"]

    _run_in_threads(work, len(contexts))
    for index in range(len(contexts)):
        np.testing.assert_array_equal(found[index], np.full(64, index, np.float32))


def test_a_further_context_is_one_more_arena(executable: Executable) -> None:
    before = Arena.allocations
    contexts = [executable.context() for _ in range(5)]
    assert Arena.allocations - before == 5
    assert all(c.arena_bytes == executable.program.arena_bytes for c in contexts)


@pytest.mark.parametrize("way", ["run", "call", "execute", "execute_timed", "executable"])
def test_a_context_in_use_says_so(meeting: Meeting, executable: Executable, way: str) -> None:
    """The second thread gets one clear line, the first its right numbers, and the context works on."""
    context = executable.context()
    ones, twos = np.full(64, 1, np.float32), np.full(64, 2, np.float32)
    executable(twos)
    meeting.barrier = threading.Barrier(2)  # the first step waits for this thread, which holds the other end
    found: dict[int, Array] = {}

    def work(index: int) -> None:
        found[index] = (executable if way == "executable" else context)(ones)["y"]

    thread = threading.Thread(target=work, args=(0,))
    thread.start()
    meeting.barrier.wait(_TIMEOUT_S)
    ways: dict[str, Callable[[], object]] = {
        "run": lambda: context.run(twos),
        "call": lambda: context(twos),
        "execute": context.execute,
        "execute_timed": context.execute_timed,
        "executable": lambda: executable(twos),
    }
    with pytest.raises(CollageError, match=r"running already: give each thread its own, by .*context"):
        ways[way]()
    for _ in range(3):
        meeting.barrier.wait(_TIMEOUT_S)
    thread.join()
    np.testing.assert_array_equal(found[0], ones)
    meeting.barrier = threading.Barrier(1)
    np.testing.assert_array_equal(context(twos)["y"], twos)


def test_a_failed_run_leaves_the_context_free(executable: Executable) -> None:
    context = executable.context()
    for _ in range(2):
        with pytest.raises(CollageError, match="no input 'z'"):
            context({"z": np.zeros(64, np.float32)})
        with pytest.raises(CollageError, match="no input 'z'"):
            context.run({"z": np.zeros(64, np.float32)})
    np.testing.assert_array_equal(context(np.ones(64, np.float32))["y"], np.ones(64, np.float32))


def _run_in_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


_MODEL = """<ir_version: 10, opset_import: ["" : 21]> g (float[1,16,32,32] x) => (float y) {
    [conv] c = Conv<pads=[1,1,1,1]>(x, w)
    [relu] r = Relu(c)
    [again] d = Conv<pads=[1,1,1,1]>(r, v)
    [add] a = Add(d, r)
    [pool] p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
    [mean] m = ReduceMean<keepdims=0>(p, axes)
    [narrow] n = MatMul(m, up)
    [tanh] t = Tanh(n)
    [dense] e = MatMul(t, big)
    [exp] f = Sigmoid(e)
    [soft] y = Softmax(f)
}"""
_MIXES: Mapping[str, tuple[str, ...]] = {
    "dnnl+tvm": ("dnnl", "tvm"),
    "dnnl+tvm+reference": ("dnnl", "tvm", "reference"),
    "tvm+reference": ("tvm", "reference"),
    "reference": ("reference",),
}
_PREFERRED = {
    "dnnl": ("conv", "relu", "again", "add", "pool", "narrow", "dense"),
    "tvm": ("mean", "tanh", "exp", "soft"),
}
"""Nodes that a mix puts there, if it has the backend."""


@pytest.fixture(scope="module")
def model() -> Graph:
    proto = onnx.parser.parse_model(_MODEL)
    random = np.random.default_rng(0)
    shapes = {"w": (16, 16, 3, 3), "v": (16, 16, 3, 3), "up": (16, 2048), "big": (2048, 4096)}
    constants = {
        k: random.standard_normal(s, dtype=np.float32) / float(np.sqrt(s[0])) for k, s in shapes.items()
    }
    for name, array in (*constants.items(), ("axes", np.array([2, 3]))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return from_model(proto)


@pytest.fixture(scope="module")
def cases(model: Graph) -> list[tuple[Array, Array]]:
    random = np.random.default_rng(1)
    inputs = [random.standard_normal((1, 16, 32, 32), dtype=np.float32) for _ in range(5)]
    return [(x, evaluate(model, {"x": x})["y"]) for x in inputs]


def _placed(graph: Graph, names: Sequence[str]) -> Placement:
    """A placement on these backends by costs that are not measured."""
    backends = [default_registry().backend(n) for n in names]
    pins = {node: b for b in names for node in _PREFERRED.get(b, ())}
    if "reference" in names:
        pins |= {"again": "reference", "exp": "reference"}
    target = Target("cpu", 2)
    candidates = generate_candidates(graph, backends, target, Constraints(pins))
    converters = {
        key: (b.name, 0.1)
        for key in needed_conversions(graph, candidates.candidates)
        for b in reversed(backends)
        if b.converts(*key, target)
    }
    formulation = formulate(candidates, _cost, converters)
    return formulation.placement(OpLevelSearch().solve(formulation.problem))


def _cost(candidate: Candidate) -> CostRecord:
    """Channels-last is cheaper than plain; from one to the other is dear, for oneDNN may have no kernel."""
    formats = (*candidate.variant.inputs, *candidate.variant.outputs)
    layouts = {f.is_plain for f in formats if len(f.layout) == 4}
    return CostRecord("ok", 9.0 if len(layouts) > 1 else 1.0 if True in layouts else 0.5, 0.0, 1)


@pytest.mark.parametrize("mix", _MIXES)
def test_one_bundle_in_several_threads(
    model: Graph, cases: list[tuple[Array, Array]], mix: str, tmp_path: Path
) -> None:
    """Right numbers in every thread, no kernel built again, memory grows by activations only."""
    placement = _placed(model, _MIXES[mix])
    assert set(placement.backends()) == set(_MIXES[mix])
    assert bool(placement.conversions) == (mix != "reference")
    save(Bundle(model, placement), tmp_path / "model.collage")
    for i, (x, y) in enumerate(cases):
        np.save(tmp_path / f"x{i}.npy", x)
        np.save(tmp_path / f"y{i}.npy", y)
    # A process of its own: libraries keep the number of threads that they are first asked for.
    command = [sys.executable, str(_SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["errors"]) == 4
    assert max(report["errors"]) < 1e-4
    assert report["built"] == 0
    assert report["arenas"] == 4
    # Besides its arena a context holds Python objects and a library's handles, but no weights.
    assert report["grown_bytes"] < report["arena_bytes"] + _WEIGHT_BYTES / 8
