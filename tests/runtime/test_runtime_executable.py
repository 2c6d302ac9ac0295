"""Executables of hand-made placements on the reference backend: plan, memory, views, aliasing, inputs and
outputs.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, Variant, plain_variant
from collage_core.device import Target
from collage_core.devices import Queue
from collage_core.errors import BackendError, BundleError, InputError, PlacementError, Refusal
from collage_core.formats import Array, Format, channels_last, plain
from collage_core.ir import Graph, NodeSet, Subgraph, TensorType, from_model
from collage_core.ir.digests import structure_digest
from collage_core.ir.passes import normalise
from collage_core.ir.views import input_format, output_format
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.plugins import Registry
from collage_core.reference.evaluator import evaluate
from collage_core.runtime import Arena, Bundle, build, load, read, save
from collage_core.runtime.memory import Block, plan_offsets

_FLOAT = TensorProto.FLOAT
_TARGET = Target("cpu", 1)


class InPlaceRelu(Kernel):
    def __init__(self) -> None:
        self.may_alias = {0: 0}
        self.seen_shared = False

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        self.seen_shared = inputs[0].ctypes.data == outputs[0].ctypes.data
        return partial(_relu, inputs[0], outputs[0])


def _relu(x: Array, y: Array) -> None:
    np.maximum(x, 0, out=y)


class CopyKernel(Kernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return partial(_copy, outputs[0], inputs[0])


def _copy(destination: Array, source: Array) -> None:
    np.copyto(destination, source)


class FailingKernel(Kernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return lambda: 7


class RaisingKernel(Kernel):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> None:
            raise self._error

        return call


class NumpyBackend(Backend):
    """Runs Relu in place from and to plain or channels-last, and converts; fails on Neg, Exp and Log when it
    runs, and on Abs when it is built.
    """

    name = "numpy"

    def __init__(self) -> None:
        self.built: list[Kernel] = []

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, "1", "1")

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        variant = plain_variant(subgraph)
        [shape] = {subgraph.graph.shape_of(v) for v in (*subgraph.inputs, *subgraph.outputs)}
        formats = plain("float32", shape), channels_last("float32", shape)
        return [variant, *(Variant((a,), (b,)) for a in formats for b in formats)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        op = subgraph.nodes[0].op_type
        if op == "Abs":
            raise ValueError("no such kernel")
        faulty = {
            "Neg": FailingKernel(),
            "Exp": RaisingKernel(OverflowError("out of range")),
            "Log": RaisingKernel(BackendError("numpy: below zero")),
        }
        kernel = faulty.get(op) or InPlaceRelu()
        self.built.append(kernel)
        return kernel

    def converts(self, type: TensorType, source: Format, destination: Format, target: Target) -> bool:
        return True

    def build_conversion(
        self, type: TensorType, source: Format, destination: Format, target: Target
    ) -> Kernel:
        return CopyKernel()


@pytest.fixture
def backend() -> NumpyBackend:
    return NumpyBackend()


@pytest.fixture
def registry(backend: NumpyBackend) -> Registry:
    class Plugin:
        @staticmethod
        def collage_backends() -> Sequence[Backend]:
            return [backend]

    from collage_core.plugins import hookimpl

    Plugin.collage_backends = staticmethod(hookimpl(Plugin.collage_backends))  # type: ignore[method-assign]
    return Registry([Plugin], entry_points=False)


def _graph(
    nodes: Sequence[tuple[str, Sequence[str], str]],
    outputs: Sequence[str],
    shape: Sequence[int] = (2, 3, 4, 5),
) -> Graph:
    made = [helper.make_node(op, list(reads), [write], name=write) for op, reads, write in nodes]
    inputs = [helper.make_tensor_value_info("x", _FLOAT, shape)]
    proto = helper.make_graph(
        made, "g", inputs, [helper.make_tensor_value_info(v, _FLOAT, None) for v in outputs]
    )
    return from_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def _group(graph: Graph, id: int, backend: str) -> Group:
    return Group(backend, (id,), plain_variant(Subgraph(graph, NodeSet([id]))))


def _placement(graph: Graph, backends: Sequence[str]) -> Placement:
    groups = [_group(graph, n.id, b) for n, b in zip(graph.nodes, backends, strict=True)]
    return Placement(tuple(groups), (), _TARGET)


def _x(graph: Graph, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(graph.shape_of("x")).astype(np.float32)


def test_a_chain_with_in_place_kernels_gives_the_reference_numbers(
    registry: Registry, backend: NumpyBackend
) -> None:
    graph = _graph([("Sin", ["x"], "a"), ("Relu", ["a"], "b"), ("Add", ["b", "x"], "c")], ["c"])
    executable = build(graph, _placement(graph, ["reference", "numpy", "reference"]), registry)
    x = _x(graph)
    np.testing.assert_array_equal(executable(x)["c"], evaluate(graph, {"x": x})["c"])
    assert isinstance(backend.built[0], InPlaceRelu)
    assert backend.built[0].seen_shared


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([("Relu", ["x"], "b")], ["b"]),  # a model input is never written
        ([("Sin", ["x"], "a"), ("Relu", ["a"], "b"), ("Add", ["a", "b"], "c")], ["c"]),  # read again later
        ([("Sin", ["x"], "a"), ("Relu", ["a"], "b")], ["a", "b"]),  # returned to the caller
        (
            [("Identity", ["x"], "a"), ("Relu", ["a"], "b"), ("Add", ["x", "b"], "c")],
            ["c"],
        ),  # a view of an input
    ],
)
def test_what_is_still_needed_is_not_overwritten(
    registry: Registry, backend: NumpyBackend, nodes: list[tuple[str, list[str], str]], outputs: list[str]
) -> None:
    graph = _graph(nodes, outputs)
    names = {"Relu": "numpy", "Identity": VIEW}
    executable = build(graph, _placement(graph, [names.get(op, "reference") for op, _, _ in nodes]), registry)
    x = _x(graph)
    expected = evaluate(graph, {"x": x})
    for _ in range(2):
        for name, array in executable(x).items():
            np.testing.assert_array_equal(array, expected[name])
    assert isinstance(backend.built[0], InPlaceRelu)
    assert not backend.built[0].seen_shared


def test_one_conversion_serves_all_readers(registry: Registry) -> None:
    graph = _graph([("Relu", ["x"], "a"), ("Relu", ["a"], "b"), ("Relu", ["a"], "c")], ["b", "c"])
    shape = graph.shape_of("x")
    row, last = plain("float32", shape), channels_last("float32", shape)
    groups = (
        Group("numpy", (0,), Variant((row,), (row,))),
        Group("numpy", (1,), Variant((last,), (last,))),
        Group("numpy", (2,), Variant((last,), (row,))),
    )
    conversions = (Conversion("a", row, last, "numpy"), Conversion("b", last, row, "numpy"))
    executable = build(graph, Placement(groups, conversions, _TARGET), registry)
    x = _x(graph)
    result = executable(x)
    np.testing.assert_array_equal(result["b"], np.maximum(x, 0))
    np.testing.assert_array_equal(result["c"], np.maximum(x, 0))
    assert len(executable.program.calls) == 5


def test_a_conversion_may_come_by_another_one(registry: Registry) -> None:
    graph = _graph([("Relu", ["x"], "a"), ("Relu", ["a"], "b")], ["b"])
    shape = graph.shape_of("x")
    row, last = plain("float32", shape), channels_last("float32", shape)
    way = Format.of("float32", shape, (1, 0, 2, 3))
    groups = (
        Group("numpy", (0,), Variant((row,), (row,))),
        Group("numpy", (1,), Variant((last,), (row,))),
    )
    conversions = (Conversion("a", way, last, "numpy"), Conversion("a", row, way, "numpy"))
    executable = build(graph, Placement(groups, conversions, _TARGET), registry)
    x = _x(graph)
    np.testing.assert_array_equal(executable(x)["b"], np.maximum(x, 0))
    assert [call.writes[0].format for call in executable.program.calls[1:3]] == [way, last]
    circle = Conversion("a", way, last, "numpy"), Conversion("a", last, way, "numpy")
    with pytest.raises(PlacementError, match=r"reads 'a' as .*, which nothing before it provides"):
        build(graph, Placement(groups, circle, _TARGET), registry)


def test_results_are_left_alone_by_later_calls_and_run_writes_into_the_callers_arrays(
    registry: Registry,
) -> None:
    graph = _graph([("Relu", ["x"], "y")], ["y"])
    executable = build(graph, _placement(graph, ["numpy"]), registry)
    first = executable(_x(graph, 1))["y"]
    kept = first.copy()
    given_out = np.full(graph.shape_of("y"), np.nan, np.float32)
    executable.run({"x": _x(graph, 2)}, {"y": given_out})
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(given_out, np.maximum(_x(graph, 2), 0))


def test_a_contexts_own_buffers_keep_the_inputs_and_hold_the_answer(registry: Registry) -> None:
    """Enough short-lived values for one of them to be laid where the input was, once that is read."""
    steps = [("Relu", ["x"], "a"), ("Neg", ["a"], "b"), ("Neg", ["b"], "c"), ("Neg", ["c"], "y")]
    graph = _graph(steps, ["y"])
    context = build(graph, _placement(graph, ["reference"] * 4), registry).context()
    x = _x(graph)
    context.inputs["x"][...] = x
    for _ in range(2):
        context.execute()
        np.testing.assert_array_equal(context.inputs["x"], x)
        np.testing.assert_array_equal(context.outputs["y"], -np.maximum(x, 0))
    context(_x(graph, 1))
    np.testing.assert_array_equal(context.inputs["x"], _x(graph, 1))


def test_constant_outputs_cannot_be_written_into(registry: Registry) -> None:
    """They are the graph's own, and every context's."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]>
        g (float[2] x) => (float[2] y, float[2] c) <float[2] c = {1, 2}> { y = Relu(x) }"""
    )
    graph = normalise(from_model(model))
    context = build(graph, _placement(graph, ["numpy"]), registry).context()
    assert context.outputs["c"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        context.outputs["c"][0] = 3
    context.outputs["y"][0] = 3


def test_a_view_stands_for_no_conversion(registry: Registry) -> None:
    """Nothing would be computed, and nobody would notice."""
    graph = _graph([("Relu", ["x"], "y")], ["y"], shape=(2, 3))
    here, turned = (Format("float32", layout) for layout in ((0, 1), (1, 0)))
    group = Group("numpy", (graph.nodes[0].id,), Variant((turned,), (here,)))
    placement = Placement((group,), (Conversion("x", here, turned, VIEW),), Target("cpu", 1))
    with pytest.raises(PlacementError, match="a view is to convert 'x' to float32:10: it moves no byte"):
        build(graph, placement, registry)


def test_run_allocates_nothing(registry: Registry) -> None:
    graph = _graph([("Relu", ["x"], "a"), ("Relu", ["a"], "y")], ["y"], shape=(64, 64))
    executable = build(graph, _placement(graph, ["numpy", "numpy"]), registry)
    inputs, outputs = {"x": _x(graph)}, {"y": np.empty((64, 64), np.float32)}
    executable.run(inputs, outputs)
    arenas = Arena.allocations
    tracemalloc.start()
    try:
        executable.run(inputs, outputs)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        executable.run(inputs, outputs)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert Arena.allocations == arenas
    # What is left are Python's own small objects, frames and counters; any buffer here has 16 KiB.
    assert after - before < 1024
    assert peak - before < 1024


def test_contexts_share_kernels_but_not_buffers(registry: Registry) -> None:
    graph = _graph([("Relu", ["x"], "y")], ["y"])
    executable = build(graph, _placement(graph, ["numpy"]), registry)
    one, two = executable.context(), executable.context()
    a, b = one(_x(graph, 1)), two(_x(graph, 2))
    np.testing.assert_array_equal(a["y"], np.maximum(_x(graph, 1), 0))
    np.testing.assert_array_equal(b["y"], np.maximum(_x(graph, 2), 0))


def test_odd_but_right_inputs_work(registry: Registry) -> None:
    graph = _graph([("Relu", ["x"], "y")], ["y"])
    executable = build(graph, _placement(graph, ["numpy"]), registry)
    x = _x(graph)
    strided = np.repeat(x, 2, axis=3)[..., ::2]
    assert not strided.flags.c_contiguous
    read_only = x.copy()
    read_only.flags.writeable = False
    for odd in (strided, read_only, np.asfortranarray(x)):
        np.testing.assert_array_equal(executable({"x": odd})["y"], np.maximum(x, 0))


def test_wrong_inputs_are_named(registry: Registry) -> None:
    graph = _graph([("Relu", ["x"], "y")], ["y"])
    executable = build(graph, _placement(graph, ["numpy"]), registry)
    x = _x(graph)
    with pytest.raises(InputError, match="no input 'z'; its inputs: x"):
        executable({"x": x, "z": x})
    with pytest.raises(InputError, match=r"input 'x' .* is missing"):
        executable({})
    with pytest.raises(InputError, match=r"input 'x' has shape \[2\]; the model's is \[2, 3, 4, 5\]"):
        executable(np.zeros(2, np.float32))
    with pytest.raises(InputError, match="input 'x' has dtype float64; the model's is float32"):
        executable(x.astype(np.float64))
    with pytest.raises(InputError, match="2 inputs given; the model has 1: x"):
        executable([x, x])
    with pytest.raises(InputError, match="no output 'q'; its outputs: y"):
        executable.run(x, {"q": x})


def test_a_failing_step_is_named(registry: Registry) -> None:
    graph = _graph([("Neg", ["x"], "y")], ["y"])
    executable = build(graph, _placement(graph, ["numpy"]), registry)
    with pytest.raises(BackendError, match="numpy: nodes 0 failed with status 7"):
        executable(_x(graph))
    graph = _graph([("Abs", ["x"], "y")], ["y"])
    with pytest.raises(BackendError, match="numpy: nodes 0: ValueError: no such kernel"):
        build(graph, _placement(graph, ["numpy"]), registry)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("Neg", " with status 7"),
        ("Exp", ": OverflowError: out of range"),
        ("Log", ": numpy: below zero"),
    ],
)
def test_whatever_a_step_raises_is_a_backends_error(registry: Registry, op: str, said: str) -> None:
    """However the executable is run; its context runs again afterwards."""
    graph = _graph([("Relu", ["x"], "a"), (op, ["a"], "b"), ("Relu", ["b"], "y")], ["y"])
    context = build(graph, _placement(graph, ["numpy"] * 3), registry).context()
    x = _x(graph)
    runs = (lambda: context(x), lambda: context.run(x), context.execute, context.execute_timed)
    for run in runs:
        with pytest.raises(BackendError) as failure:
            run()
        assert str(failure.value) == f"step numpy: nodes 1 failed{said}"


def test_a_placement_that_does_not_fit_says_why(registry: Registry) -> None:
    graph = _graph([("Relu", ["x"], "a"), ("Relu", ["a"], "b")], ["b"])
    whole = _placement(graph, ["numpy", "numpy"])
    with pytest.raises(PlacementError, match="no group covers b \\(Relu\\)"):
        build(graph, Placement(whole.groups[:1], (), _TARGET), registry)
    with pytest.raises(PlacementError, match="covers a node that another group covers already"):
        build(graph, Placement((*whole.groups, whole.groups[1]), (), _TARGET), registry)
    with pytest.raises(PlacementError, match="reads 'a' as float32:plain, which nothing before it provides"):
        build(graph, Placement(whole.groups[::-1], (), _TARGET), registry)


def test_a_placement_says_of_which_graph_it_is(registry: Registry) -> None:
    """Another graph may have nodes of the same ids, and none of what they compute."""
    graph = _graph([("Relu", ["x"], "a"), ("Sin", ["a"], "b")], ["b"])
    other = _graph([("Sin", ["x"], "a"), ("Relu", ["a"], "b")], ["b"])
    placement = replace(_placement(graph, ["numpy", "reference"]), graph=structure_digest(graph))
    assert build(graph, placement, registry)
    with pytest.raises(PlacementError, match="made for another graph: its nodes or values are others"):
        build(other, placement, registry)
    assert build(other, replace(placement, graph=""), registry), "made by hand, for any"


def test_a_bundle_gives_the_same_numbers_and_is_checked(registry: Registry, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((3, 40, 30)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", _FLOAT, [3, 5, 40])],
        [helper.make_tensor_value_info("y", _FLOAT, None)],
        [helper.make_tensor("w", _FLOAT, weights.shape, weights.tobytes(), raw=True)],
    )
    graph = from_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    placement = _placement(graph, ["reference"])
    path = tmp_path / "m.collage"
    save(Bundle(graph, placement, {"made": "here"}), path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.collage"]
    bundle = read(path)
    assert bundle.placement == placement
    assert bundle.report == {"made": "here"}
    np.testing.assert_array_equal(bundle.graph.constants["w"], weights)
    x = _x(graph)
    np.testing.assert_array_equal(load(path, registry)(x)["y"], x @ weights)
    (tmp_path / "no.collage").write_bytes(b"PK nothing")
    with pytest.raises(BundleError, match="not a bundle"):
        read(tmp_path / "no.collage")
    with pytest.raises(BundleError, match="no such file"):
        read(tmp_path / "none.collage")


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 8)), max_size=30),
)
def test_blocks_that_live_together_never_share_a_byte(drawn: list[tuple[int, int, int]]) -> None:
    blocks = [Block(size, first, first + length) for size, first, length in drawn]
    offsets, total = plan_offsets(blocks)
    for i, a in enumerate(blocks):
        assert offsets[i] % 64 == 0
        assert offsets[i] + a.size_bytes <= total
        for j, b in enumerate(blocks[:i]):
            if a.overlaps(b) and a.size_bytes and b.size_bytes:
                assert offsets[i] + a.size_bytes <= offsets[j] or offsets[j] + b.size_bytes <= offsets[i]


@given(st.data())
def test_a_view_keeps_every_byte_where_it_is(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)))
    perm = data.draw(st.permutations(range(len(shape))))
    node = helper.make_node("Transpose", ["x"], ["y"], perm=perm)
    proto = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", _FLOAT, shape)],
        [helper.make_tensor_value_info("y", _FLOAT, None)],
    )
    graph = from_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    source = Format.of("float32", shape, data.draw(st.permutations(range(len(shape)))))
    destination = output_format(graph, graph.nodes[0], source)
    assert destination is not None
    assert input_format(graph, graph.nodes[0], destination) == source
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    stored_in = values.transpose(source.layout).ravel()
    stored_out = values.transpose(perm).transpose(destination.layout).ravel()
    np.testing.assert_array_equal(stored_in, stored_out)


class TransposingKernel(Kernel):
    """Copies element by element, and would read what it has written if input and output shared bytes."""

    def __init__(self) -> None:
        self.may_alias = {0: 0}

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        assert inputs[0].ctypes.data != outputs[0].ctypes.data
        return partial(_copy, outputs[0], inputs[0])


def test_buffers_are_shared_between_equal_formats_only(
    registry: Registry, backend: NumpyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "build", lambda subgraph, variant, target: TransposingKernel())
    graph = _graph([("Sin", ["x"], "a"), ("Identity", ["a"], "b"), ("Sin", ["b"], "y")], ["y"])
    shape = graph.shape_of("x")
    row, last = plain("float32", shape), channels_last("float32", shape)
    groups = (
        _group(graph, 0, "reference"),
        Group("numpy", (1,), Variant((row,), (last,))),
        Group("reference", (2,), Variant((row,), (row,))),
    )
    conversions = (Conversion("b", last, row, "numpy"),)
    executable = build(graph, Placement(groups, conversions, _TARGET), registry)
    x = _x(graph)
    np.testing.assert_array_equal(executable(x)["y"], np.sin(np.sin(x)))


def test_an_edited_placement_is_checked(registry: Registry) -> None:
    graph = _graph([("Relu", ["x"], "a"), ("Identity", ["a"], "b")], ["b"])
    shape = graph.shape_of("x")
    row, last = plain("float32", shape), channels_last("float32", shape)
    relu, identity = Group("numpy", (0,), Variant((row,), (row,))), Group(VIEW, (1,), Variant((row,), (row,)))

    def refused(*groups: Group) -> str:
        with pytest.raises(PlacementError) as caught:
            build(graph, Placement(groups, (), _TARGET), registry)
        return str(caught.value)

    build(graph, Placement((relu, identity), (), _TARGET), registry)
    assert "computes something" in refused(Group(VIEW, (0,), relu.variant), identity)
    assert "no view of float32:plain is float32:0231" in refused(
        relu, Group(VIEW, (1,), Variant((row,), (last,)))
    )
    assert "formats for (0, 1) inputs and outputs; it needs (1, 1)" in refused(
        Group("numpy", (0,), Variant((), (row,))), identity
    )
    wrong = Format("float32", (0, 1))
    assert "cannot be stored as float32:plain" in refused(
        Group("numpy", (0,), Variant((wrong,), (row,))), identity
    )
    assert "it does not offer (float32:plain) -> (float32:plain) by=magic" in refused(
        Group("numpy", (0,), Variant((row,), (row,), (("by", "magic"),))), identity
    )
    assert "nodes that the graph has not" in refused(relu, Group(VIEW, (7,), identity.variant))
