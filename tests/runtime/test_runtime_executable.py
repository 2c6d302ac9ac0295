"""Executables of hand-made placements on the reference backend: plan, memory, views and aliasing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy_backend import (
    FLOAT,
    TARGET,
    InPlaceRelu,
    NumpyBackend,
    copy_into,
    graph_of,
    group_of,
    placement_of,
    x_for,
)
from onnx import helper

from collage_core.backend import Bound, Kernel, Variant
from collage_core.devices import Queue
from collage_core.errors import PlacementError
from collage_core.formats import Array, Format, channels_last, plain
from collage_core.ir import from_model
from collage_core.ir.views import input_format, output_format
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.plugins import Registry
from collage_core.reference.evaluator import evaluate
from collage_core.runtime import Arena, build
from collage_core.runtime.memory import Block, plan_offsets


def test_a_chain_with_in_place_kernels_gives_the_reference_numbers(
    registry: Registry, backend: NumpyBackend
) -> None:
    graph = graph_of([("Sin", ["x"], "a"), ("Relu", ["a"], "b"), ("Add", ["b", "x"], "c")], ["c"])
    executable = build(graph, placement_of(graph, ["reference", "numpy", "reference"]), registry)
    x = x_for(graph)
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
    graph = graph_of(nodes, outputs)
    names = {"Relu": "numpy", "Identity": VIEW}
    executable = build(
        graph, placement_of(graph, [names.get(op, "reference") for op, _, _ in nodes]), registry
    )
    x = x_for(graph)
    expected = evaluate(graph, {"x": x})
    for _ in range(2):
        for name, array in executable(x).items():
            np.testing.assert_array_equal(array, expected[name])
    assert isinstance(backend.built[0], InPlaceRelu)
    assert not backend.built[0].seen_shared


def test_one_conversion_serves_all_readers(registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], "a"), ("Relu", ["a"], "b"), ("Relu", ["a"], "c")], ["b", "c"])
    shape = graph.shape_of("x")
    row, last = plain("float32", shape), channels_last("float32", shape)
    groups = (
        Group("numpy", (0,), Variant((row,), (row,))),
        Group("numpy", (1,), Variant((last,), (last,))),
        Group("numpy", (2,), Variant((last,), (row,))),
    )
    conversions = (Conversion("a", row, last, "numpy"), Conversion("b", last, row, "numpy"))
    executable = build(graph, Placement(groups, conversions, TARGET), registry)
    x = x_for(graph)
    result = executable(x)
    np.testing.assert_array_equal(result["b"], np.maximum(x, 0))
    np.testing.assert_array_equal(result["c"], np.maximum(x, 0))
    assert len(executable.program.calls) == 5


def test_a_conversion_may_come_by_another_one(registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], "a"), ("Relu", ["a"], "b")], ["b"])
    shape = graph.shape_of("x")
    row, last = plain("float32", shape), channels_last("float32", shape)
    way = Format.of("float32", shape, (1, 0, 2, 3))
    groups = (
        Group("numpy", (0,), Variant((row,), (row,))),
        Group("numpy", (1,), Variant((last,), (row,))),
    )
    conversions = (Conversion("a", way, last, "numpy"), Conversion("a", row, way, "numpy"))
    executable = build(graph, Placement(groups, conversions, TARGET), registry)
    x = x_for(graph)
    np.testing.assert_array_equal(executable(x)["b"], np.maximum(x, 0))
    assert [call.writes[0].format for call in executable.program.calls[1:3]] == [way, last]
    circle = Conversion("a", way, last, "numpy"), Conversion("a", last, way, "numpy")
    with pytest.raises(PlacementError, match=r"reads 'a' as .*, which nothing before it provides"):
        build(graph, Placement(groups, circle, TARGET), registry)


def test_results_are_left_alone_by_later_calls_and_run_writes_into_the_callers_arrays(
    registry: Registry,
) -> None:
    graph = graph_of([("Relu", ["x"], "y")], ["y"])
    executable = build(graph, placement_of(graph, ["numpy"]), registry)
    first = executable(x_for(graph, 1))["y"]
    kept = first.copy()
    given_out = np.full(graph.shape_of("y"), np.nan, np.float32)
    executable.run({"x": x_for(graph, 2)}, {"y": given_out})
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(given_out, np.maximum(x_for(graph, 2), 0))


def test_a_contexts_own_buffers_keep_the_inputs_and_hold_the_answer(registry: Registry) -> None:
    """Enough short-lived values for one of them to be laid where the input was, once that is read."""
    steps = [("Relu", ["x"], "a"), ("Neg", ["a"], "b"), ("Neg", ["b"], "c"), ("Neg", ["c"], "y")]
    graph = graph_of(steps, ["y"])
    context = build(graph, placement_of(graph, ["reference"] * 4), registry).context()
    x = x_for(graph)
    context.inputs["x"][...] = x
    for _ in range(2):
        context.execute()
        np.testing.assert_array_equal(context.inputs["x"], x)
        np.testing.assert_array_equal(context.outputs["y"], -np.maximum(x, 0))
    context(x_for(graph, 1))
    np.testing.assert_array_equal(context.inputs["x"], x_for(graph, 1))


def test_run_allocates_nothing(registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], "a"), ("Relu", ["a"], "y")], ["y"], shape=(64, 64))
    executable = build(graph, placement_of(graph, ["numpy", "numpy"]), registry)
    inputs, outputs = {"x": x_for(graph)}, {"y": np.empty((64, 64), np.float32)}
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
    graph = graph_of([("Relu", ["x"], "y")], ["y"])
    executable = build(graph, placement_of(graph, ["numpy"]), registry)
    one, two = executable.context(), executable.context()
    a, b = one(x_for(graph, 1)), two(x_for(graph, 2))
    np.testing.assert_array_equal(a["y"], np.maximum(x_for(graph, 1), 0))
    np.testing.assert_array_equal(b["y"], np.maximum(x_for(graph, 2), 0))


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
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
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
        return partial(copy_into, outputs[0], inputs[0])


def test_buffers_are_shared_between_equal_formats_only(
    registry: Registry, backend: NumpyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "build", lambda subgraph, variant, target: TransposingKernel())
    graph = graph_of([("Sin", ["x"], "a"), ("Identity", ["a"], "b"), ("Sin", ["b"], "y")], ["y"])
    shape = graph.shape_of("x")
    row, last = plain("float32", shape), channels_last("float32", shape)
    groups = (
        group_of(graph, 0, "reference"),
        Group("numpy", (1,), Variant((row,), (last,))),
        Group("reference", (2,), Variant((row,), (row,))),
    )
    conversions = (Conversion("b", last, row, "numpy"),)
    executable = build(graph, Placement(groups, conversions, TARGET), registry)
    x = x_for(graph)
    np.testing.assert_array_equal(executable(x)["y"], np.sin(np.sin(x)))
