"""Models in which shapes hang on values, or values are no tensors: in ONNX's text form, of opset 18."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser

from collage_core import Group, Placement, Target
from collage_core.backend import plain_variant
from collage_core.formats import Array
from collage_core.ir import Graph, NodeSet, Subgraph, from_model
from collage_core.ir.passes import normalise

__all__ = ["OPEN_SHAPES", "open_inputs", "open_shape_model", "placed_on"]

OPEN_SHAPES = {
    "detector": """g (float[1,20,4] b, float[1,1,20] scores) => (float[n,4] kept, float[n] their) <
        int64[1] most = {10}, float[1] overlap = {0.5}, float[1] least = {0.3},
        int64 third = {2}, int64[1] zero = {0}, int64[1] flat = {-1}>
      { boxes = Relu (b)
        chosen = NonMaxSuppression (boxes, scores, most, overlap, least)
        places = Gather <axis = 1> (chosen, third)
        rows = Squeeze (boxes, zero)
        row = Reshape (scores, flat)
        kept = Gather (rows, places)
        their = Gather (row, places) }""",
    "non-zero in the middle": """g (float[3,4] x) => (float[1,4] y) <int64[1] zero = {0}>
      { p = Relu (x) n = NonZero (p) t = Transpose (n) v = GatherND (p, t)
        s = ReduceSum (v, zero) c = Softmax (x) w = ReduceMax <keepdims = 1> (c, zero) y = Mul (s, w) }""",
    "rows in a loop": """g (int64[12] ids) => (float[4,2] y) <
        float[5,3] table = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}, float[3,2] w = {1,-1,0,2,1,1},
        int64[5] ends = {0,3,3,7,12}, int64 bags = {4}, bool go = {1}, int64 one = {1}, 
        int64[1] zero = {0}>
      { rows = Gather (table, ids)
        none = SequenceEmpty <dtype = 1> ()
        all = Loop (bags, go, none) <body = b (int64 i, bool c, seq(float[n,m]) s) =>
          (bool d, seq(float[n,m]) t)
          { d = Identity (c) j = Add (i, one) f = Gather (ends, i) e = Gather (ends, j)
            f1 = Unsqueeze (f, zero) e1 = Unsqueeze (e, zero)
            part = Slice (rows, f1, e1, zero) sum = ReduceSum (part, zero) t = SequenceInsert (s, sum) }>
        bagged = ConcatFromSequence <axis = 0> (all)
        r = Relu (bagged) y = MatMul (r, w) }""",
    "one of several": """g (float[6,3] x, int64 which) => (float[3] y, int64 many) <
        int64[3] sizes = {1,2,3}, int64[1] zero = {0}>
      { s = SplitToSequence <axis = 0> (x, sizes) p = SequenceAt (s, which) q = Mul (p, p)
        y = ReduceSum <keepdims = 0> (q, zero) many = SequenceLength (s) }""",
    "optional": """g (float[2,3] x) => (float[2,3] y, bool has)
      { a = Relu (x) o = Optional (a) has = OptionalHasElement (o) h = OptionalGetElement (o)
        y = Add (h, x) }""",
    "inside a branch": """g (float[3,4] x) => (float[2] y) <float half = {0.5}, int64[1] one = {1},
        int64[1] zero = {0}, int64[1] two = {2}>
      { m = ReduceMax <keepdims = 0> (x) c = Greater (m, half)
        y = If (c) <then_branch = a () => (float[2] t)
            { n = NonZero (x) f = Cast <to = 1> (n) s = SequenceConstruct (f, f)
              k = ConcatFromSequence <axis = 1> (s) t = ReduceSum <keepdims = 0> (k, one) },
          else_branch = b () => (float[2] e)
          { r = ReduceSum <keepdims = 0> (x, one) 
            e = Slice (r, zero, two) }> }""",
    "several chosen": """g (float[3,4] x, bool[4] mask) => (int64[u] y, int64[u] many, float[3,k] z,
        int64[12] back)
      { c = Cast <to = 7> (x) y, first, back, many = Unique (c) z = Compress <axis = 1> (x, mask) }""",
    "a branch with nothing": """g (float[3,4] x, bool[3] mask) => (float[n,4] y, int64[n] k) <
        int64 three = {3}, int64[1] zero = {0}, int64[0] none = {}>
      { c = Compress <axis = 0> (x, mask) s = Size (c) many = Greater (s, three)
        y, k = If (many) <then_branch = a () => (float[p,4] t, int64[p] i)
            { t = Concat <axis = 0> (c, c) i = ArgMax <axis = 1, keepdims = 0> (t) },
          else_branch = b () => (float[q,4] e, int64[q] j)
          { e = Slice (x, zero, zero) j = Identity (none) }> }""",
    "an early end": """g (float[3,4] x) => (float s, float[n,4] y) <
        int64 most = {3}, bool go = {1}, float none = {0}, float limit = {1}>
      { s, y = Loop (most, go, none) <body = b (int64 i, bool c, float u) => (bool d, float t, float[4] row)
          { row = Gather (x, i) m = ReduceMax <keepdims = 0> (row) t = Add (u, m) d = Less (t, limit) }> }""",
    "chosen and joined": """g (float[3,4] x, bool[3] mask) => (float[n,4] y)
      { c = Compress <axis = 0> (x, mask) q = SequenceConstruct (x, c)
        y = ConcatFromSequence <axis = 0> (q) }""",
    "a knot": """g (float[3,4] x, float[3,4] w, bool[3] mask) => (float[1,4] y) <int64[1] zero = {0}>
      { a = Compress <axis = 0> (x, mask) b = Compress <axis = 0> (w, mask)
        s = ReduceSum (a, zero) t = ReduceSum (b, zero) u = Relu (s) v = Relu (t)
        c = Add (a, v) d = Mul (b, u) e = ReduceSum (c, zero) f = ReduceSum (d, zero) y = Add (e, f) }""",
}
"""By what is in it."""


def open_shape_model(name: str) -> onnx.ModelProto:
    """One of `OPEN_SHAPES`."""
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {OPEN_SHAPES[name]}')


def placed_on(model: onnx.ModelProto, backend: str) -> tuple[Graph, Placement]:
    """All of it on one backend, node by node on the reference."""
    graph = normalise(from_model(model))
    sets = [graph.all_nodes] if backend != "reference" else [NodeSet([n.id]) for n in graph.nodes]
    parts = [Subgraph(graph, nodes) for nodes in sets]
    groups = [Group(backend, tuple(n.id for n in p.nodes), plain_variant(p)) for p in parts]
    return graph, Placement(tuple(groups), (), Target("cpu", 1))


def open_inputs(model: onnx.ModelProto) -> Iterator[dict[str, Array]]:
    """For which it chooses some, others, all and nothing."""
    for seed in range(4):
        given = {}
        for v in model.graph.input:
            shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
            drawn = np.random.default_rng(seed).standard_normal(shape)
            if seed == 2:
                drawn = np.abs(drawn) + 1
            if dtype.kind == "i":
                drawn = np.abs(np.rint(drawn)).clip(0, 2)
            given[v.name] = np.asarray((drawn > 0) if dtype.kind == "b" else drawn).astype(dtype)
            if seed == 3:
                given[v.name] = np.zeros(shape, dtype)
        yield given
