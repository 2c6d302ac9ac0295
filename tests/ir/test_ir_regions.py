"""Regions: what has no known shape is inside of one node, and open outputs are cut to what is valid."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from collage_run.open_outputs import cut
from control_flow_answers import assert_same, onnxruntime_answers
from hypothesis import given, settings
from hypothesis import strategies as st
from open_shape_models import OPEN_SHAPES, open_inputs, open_shape_model

from collage_core.errors import ModelError
from collage_core.ir import Graph, from_model, load_stored, save_stored, to_model
from collage_core.ir.digests import graph_digest, structure_digest
from collage_core.ir.passes import normalise
from collage_core.ir.regions import body_of_region, is_region
from collage_core.ir.static import require_static
from collage_core.reference import evaluate


def _read(text: str, opset: int = 18) -> Graph:
    return from_model(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}'))


def _bound(lines: str, output: str = "int64[n,2] y") -> tuple[int, ...]:
    """The largest shape of y, computed of x, float32[3,4], and others."""
    graph = normalise(
        _read(
            f"""g (float[3,4] x, bool[3] mask, int64[1] k) => ({output}) <int64[1] zero = {{0}},
            int64[1] one = {{1}}, int64[1] five = {{5}}, int64[1] flat = {{-1}}> 
            {{ n = NonZero (x) t = Transpose (n) {lines} }}"""
        )
    )
    require_static(graph)
    return graph.shape_of("y")


@pytest.mark.parametrize("name", OPEN_SHAPES)
def test_what_is_outside_of_regions_has_known_shapes(name: str) -> None:
    model = open_shape_model(name)
    graph = normalise(from_model(model))
    require_static(graph)
    assert any(map(is_region, graph.nodes)) == (name != "inside a branch")
    for inputs in open_inputs(model):
        expected = onnxruntime_answers(model, inputs)
        assert_same(cut(evaluate(graph, inputs), graph.open_outputs), expected)
        # The nodes of regions stand in the model that others are given.
        found = dict(zip(graph.outputs, onnxruntime_answers(to_model(graph), inputs), strict=True))
        assert_same(cut(found, graph.open_outputs), expected)


@pytest.mark.parametrize("name", ["detector", "rows in a loop", "several chosen"])
def test_what_is_stored_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    graph = normalise(from_model(open_shape_model(name)))
    save_stored(graph, tmp_path)
    again = load_stored(tmp_path)
    assert str(again) == str(graph)
    assert again.open_outputs == graph.open_outputs
    assert (graph_digest(again), structure_digest(again)) == (graph_digest(graph), structure_digest(graph))
    assert [n.name for n in normalise(again).nodes] == [n.name for n in graph.nodes]


def test_two_that_would_wait_for_each_other_are_one() -> None:
    graph = normalise(from_model(open_shape_model("a knot")))
    (region,) = filter(is_region, graph.nodes)
    assert [n.op_type for n in graph.nodes if n is not region] == ["Add"]
    assert {"Relu", "Compress"} < {n.op_type for n in body_of_region(region).nodes}


def test_parts_that_nothing_open_joins_stay_apart() -> None:
    graph = normalise(from_model(open_shape_model("several chosen")))
    assert [is_region(n) for n in graph.nodes] == [False, True, True]


def test_a_name_in_a_region_hides_nothing() -> None:
    """Whoever adds a value to the graph does not know the names inside."""
    graph = normalise(from_model(open_shape_model("detector")))
    (region,) = filter(is_region, graph.nodes)
    inner = next(v for v in body_of_region(region).intermediates() if v not in graph.values)
    relu = next(n for n in graph.nodes if n.op_type == "Relu")
    renamed = {relu.outputs[0]: inner}

    def new(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(renamed.get(v, v) for v in names)

    changed = [dataclasses.replace(n, inputs=new(n.inputs), outputs=new(n.outputs)) for n in graph.nodes]
    values = {**graph.values, inner: graph.values[relu.outputs[0]]}
    other = graph.replace(nodes=changed, values=values)
    for inputs in open_inputs(open_shape_model("detector")):
        expected = list(evaluate(graph, inputs).values())
        assert_same(dict(enumerate(onnxruntime_answers(to_model(other), inputs))), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "largest"),
    [
        ("y = Identity (t)", (12, 2)),
        ("y = Slice (t, zero, five)", (5, 2)),
        ("y = Slice (t, zero, k)", (12, 2)),
        ("y = Concat <axis = 0> (t, t)", (24, 2)),
        ("s = Shape <end = 1> (t) m = Min (s, five) v = Cast <to = 1> (n)"
         " a = ReduceSum <keepdims = 0> (v, zero)"
         " q, i = TopK <axis = 0> (a, m) r = Unsqueeze (i, one) y = Concat <axis = 1> (r, r)", (5, 2)),
        ("s = Shape (t) o = Expand (one, s) y = Add (o, t)", (12, 2)),
        ("c = Compress <axis = 0> (t, mask) y = Add (c, c)", (3, 2)),
        ("y = Slice (t, one, flat)", (10, 2)),
        ("h = Constant <value_ints = [-5]> () d = Concat <axis = 0> (t, t) e = Slice (d, h, five)"
         " f = Slice (e, h, one) y = Concat <axis = 0> (e, f)", (6, 2)),
        ("s = Shape <end = 1> (t) h = Concat <axis = 0> (s, flat) y = Reshape (t, h)", (12, 2)),
        ("s = Shape <end = 1> (t) d = Squeeze (s) o = Constant <value_int = 2> ()"
         " u = Constant <value_int = 1> () r = Range (o, d, u) q = Unsqueeze (r, one)"
         " y = Concat <axis = 1> (q, q)", (10, 2)),
        ("r = Reshape (t, flat) p = Unsqueeze (r, one) y = Concat <axis = 1> (p, p)", (24, 2)),
    ],
)  # fmt: skip
def test_how_large_an_output_can_become(lines: str, largest: tuple[int, ...]) -> None:
    assert _bound(lines) == largest


def test_of_two_branches_the_larger_counts() -> None:
    graph = normalise(from_model(open_shape_model("a branch with nothing")))
    assert {v: graph.shape_of(v) for v in graph.open_outputs} == {"y": (6, 4), "k": (6,)}


def test_branches_of_other_ranks_are_told() -> None:
    text = """g (float[3,4] x, bool c) => (float y) { w = If (c) <then_branch = a () => (float[p] t)
        { n = NonZero (x) u = Transpose (n) t = GatherND (x, u) }, else_branch = b () => (float[q,r] e)
        { e = Relu (x) }> y = Identity (w) }"""
    with pytest.raises(ModelError, match=r"'w'.*its branches yield float32\[p\] and float32\[3,4\]"):
        require_static(normalise(_read(text)))


@given(st.sampled_from([-2, -1, 1, 2]), *[st.integers(-14, 14) | st.just(2**63 - 1)] * 2)
@settings(max_examples=40)
def test_what_a_slice_leaves_of_up_to_twelve(step: int, start: int, end: int) -> None:
    texts = [f"c{k} = Constant <value_ints = [{v}]> ()" for k, v in enumerate((start, end, step))]
    most = max(len(range(n)[start:end:step]) for n in range(13))
    assert _bound(f"{' '.join(texts)} y = Slice (t, c0, c1, zero, c2)") == (most, 2)


def test_a_suppression_chooses_no_more_than_it_may() -> None:
    def largest(limit: str) -> tuple[int, ...]:
        text = f"""g (float[2,9,4] b, float[2,3,9] s) => (int64[n,3] y) <int64[1] k = {{{limit}}}>
            {{ y = NonMaxSuppression (b, s, k) }}"""
        return normalise(_read(text)).shape_of("y")

    assert [largest("4"), largest("100"), largest("0")] == [(24, 3), (54, 3), (0, 3)]


@pytest.mark.parametrize(
    "sliced",
    [
        "q = Slice (r, s, big)",
        "d = Sub (six, s) q = Slice (r, z, d)",
        "d = Sub (six, s) q = Slice (fixed, z, d)",
        "v = ConstantOfShape (six) c = Slice (v, s, big) q = Cast <to = 1> (c)",
    ],
)
@pytest.mark.parametrize("chosen", [0, 2, 6])
def test_of_a_slice_to_or_from_what_is_computed_all_may_be_left(sliced: str, chosen: int) -> None:
    """What stands in for the number is the largest, of which the least would be left."""
    graph = normalise(
        _read(f"""g (float[6] p, float[6] r) => (float[m] q)
        <int64[1] m1 = {{-1}}, int64[1] big = {{100}}, int64[1] six = {{6}}, int64[1] z = {{0}},
        float[6] fixed = {{1, 2, 3, 4, 5, 6}}>
        {{ n = NonZero (p) f = Reshape (n, m1) s = Shape (f) {sliced} }}""")
    )
    assert graph.shape_of("q") == (6,)
    p = (np.arange(6) < chosen).astype(np.float32)
    found = cut(evaluate(graph, {"p": p, "r": np.arange(6, dtype=np.float32)}), graph.open_outputs)
    assert found["q"].size == 6 - chosen


def test_a_suppression_by_a_computed_limit_may_choose_all() -> None:
    text = """g (float[1,9,4] b, float[1,3,9] s, float[9] p) => (int64[n,3] y) <int64[1] nine = {9}>
        { t = NonZero (p) h = Shape <start = 1> (t) k = Sub (nine, h) y = NonMaxSuppression (b, s, k) }"""
    assert normalise(_read(text)).shape_of("y") == (27, 3)


@pytest.mark.parametrize(
    ("lines", "culprit"),
    [
        ("s = Shape <end = 1> (t) d = Sub (five, s) y = Expand (d, d)", "Expand"),
        ("s = Shape <end = 1> (t) m = Mul (s, flat) d = Add (five, m) y = Expand (d, d)", "Expand"),
        ("s = Shape <end = 1> (t) h = Gather (five, s) y = Expand (h, h)", "Expand"),
        ("s = Shape <end = 1> (t) h = Concat <axis = 0> (s, flat) f = Reshape (x, h)"
         " y = Cast <to = 7> (f)", "Reshape"),
        ("s = Shape <end = 1> (t) d = Squeeze (s, zero) h = Squeeze (five, zero) u = Squeeze (flat, zero)"
         " r = Range (h, d, u) y = Identity (r)", "Range"),
        ("c = Slice (t, zero, one, one) q = Squeeze (c) y = Identity (q)", "Squeeze"),
        ("s = Shape <end = 1> (t) y = Slice (t, zero, s) z = Slice (t, s, five)", ""),
        ("q = SplitToSequence <axis = 0> (t) y = ConcatFromSequence <axis = 0> (q)", "SplitToSequence"),
        ("v = ConstantOfShape (k) c = Cast <to = 7> (v) y = Identity (c)", "ConstantOfShape"),
    ],
)  # fmt: skip
def test_what_has_no_bound_is_told_with_its_node(lines: str, culprit: str) -> None:
    output = "int64[n] y" if culprit in ("ConstantOfShape", "Expand", "Range", "Squeeze") else "int64[n,m] y"
    if not culprit:
        assert _bound(lines, output) == (12, 2)
        return
    with pytest.raises(
        ModelError, match=rf"how large output 'y' can become cannot be told, for \w+ \({culprit}\)"
    ):
        _bound(lines, output)


def test_an_absurd_bound_is_told() -> None:
    text = """g (float[40000,40000] x) => (int64[n,2] y) { n = NonZero (x) y = Transpose (n) }"""
    with pytest.raises(ModelError, match=r"output 'y' may become int64\[1600000000,2\], for which 25.6 GB"):
        require_static(normalise(_read(text)))


def test_regions_of_a_long_chain_follow_each_other() -> None:
    """A hundred open parts, each of which reads the one before."""
    steps = "".join(
        f"n{k} = NonZero (x{k}) f{k} = Cast <to = 1> (n{k}) s{k} = ReduceSum <keepdims = 0> (f{k})"
        f" x{k + 1} = Mul (x{k}, s{k}) "
        for k in range(100)
    )
    graph = normalise(_read(f"g (float[3,4] x0) => (float[3,4] x100) {{ {steps} }}"))
    regions = [n for n in graph.nodes if is_region(n)]
    assert len(regions) == 100
    position = graph.positions
    assert all(position[a.id] < position[b.id] for a, b in pairwise(regions))
    x = np.full((3, 4), 1e-3, np.float32)
    assert evaluate(graph, {"x0": x})["x100"].shape == (3, 4)


def test_what_a_loop_gathers_in_a_sequence_is_known() -> None:
    """So that what follows is no part of the region."""
    graph = normalise(from_model(open_shape_model("rows in a loop")))
    assert [n.op_type for n in graph.nodes] == ["Gather", "Region", "Relu", "MatMul"]


def test_what_is_stated_in_names_of_the_inputs_dimensions_holds_for_the_shapes_given() -> None:
    """And what is stated in numbers does not: it may be of other shapes."""
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[b,2] x, int64[2] s)
        => (float[b,k] y, float[b] z)
        < float[b,7] y7, float[b] w > { y = Reshape (x, s) w = Reshape (x, s) z = Neg (w) }"""
    graph = from_model(onnx.parser.parse_model(text), {"x": (6, 2)})
    assert graph.type_of("z").static_shape == (6,)
    assert not graph.type_of("y").is_static
