"""Random graphs to be fused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from drawn_values import FLOATS, INTEGERS, MAX_ELEMENTS, SIZES
from graph_builder import Builder
from hypothesis import strategies as st
from onnx import helper

from collage_core.formats import Array
from collage_core.ir import Graph, from_model

__all__ = ["Case", "cases"]

_ARITHMETIC = ("unary", "binary", "binary", "divided", "compared", "where", "cast")
_MOVERS = ("transpose", "reshape", "expand", "slice", "mirror", "concat", "pad", "tile", "gather", "triangle")
_REDUCERS = ("reduce", "reduce", "normalize", "arg", "pool")
_STEPS = (*_ARITHMETIC * 2, *("diamond",) * 8, *_MOVERS, *_REDUCERS * 2, "resize", "split", "scan")


@dataclass(frozen=True)
class Case:
    """A graph, and what is to be tried with it."""

    graph: Graph
    inputs: dict[str, Array]
    rounded: frozenset[str]
    """Names of the values that some operator has rounded."""
    permuted: bool
    """Whether the placement is to prefer permuted formats."""
    spans: tuple[tuple[int, int], ...]
    """First and last of nodes that are asked for as groups, although the rule may not form them."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Of one to some twenty operators."""
    b = Builder(draw)
    rank = draw(st.integers(0, 4))
    shape = tuple(b.one(*SIZES) for _ in range(rank))
    while math.prod(shape) > MAX_ELEMENTS // 2:
        shape = shape[1:]
    first = b.leaf(shape, b.one("float32", "float32", *FLOATS, *INTEGERS, "bool"), constant=False)
    b.values.append(first)
    steps = b.one(_STEPS, _STEPS, _ARITHMETIC, ("diamond", *_ARITHMETIC))
    for _ in range(b.one(1, 2, 4, 8, 12, 16, 20)):
        if not getattr(b, b.one(*steps))():
            b.unary()
    read = {name for n in b.nodes for name in n.input}
    loose = [v for v in b.values[1:] if v.name not in read]
    while len(loose) > 1:
        last = loose.pop()
        if b.join(loose[-1], last):
            loose[-1] = b.values[-1]
    read = {name for n in b.nodes for name in n.input}
    made = [name for n in b.nodes for name in n.output]
    several = b.flag()
    outputs = [v for v in made if v not in read or (several and b.one(False, False, False, True))]
    used = {k: a for k, a in b.inputs.items() if k in read}
    model = _model(b.nodes, used, outputs, {k: a for k, a in b.constants.items() if k in read})
    rounded = frozenset(v.name for v in b.values if not v.exact)
    ends = st.integers(0, len(b.nodes) - 1)
    pairs = draw(st.lists(st.tuples(ends, ends), min_size=2, max_size=4))
    spans = tuple((min(p), max(p)) for p in pairs)
    return Case(from_model(model), used, rounded, b.flag(), spans)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Array],
    outputs: Sequence[str],
    constants: dict[str, Array],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "random",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
