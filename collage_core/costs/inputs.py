"""Making up inputs for a model: real enough that indices are valid and no branch is degenerate."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from collage_core.formats import Array
from collage_core.ir import Graph, Node, Value
from collage_core.ir.regions import flattened

__all__ = ["synthesise_inputs"]

_MOVERS = frozenset(
    [
        "Cast",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ]
)
_FREE_RANGE = (0, 1)
"""Of integers that index nothing: masks and flags, mostly."""
_EIGHT_BITS = ("int8", "uint8")
_OF_WHOLE_NUMBERS = frozenset(
    ["ConvInteger", "DequantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul"]
)
"""What takes eight bits for numbers, all of them."""
_MOST_TRIPS = 5


@dataclass(frozen=True, slots=True)
class _Trace:
    """An input x that has arrived in `value` as scale * x + c, with c in [least, most]."""

    value: str
    scale: float = 1.0
    least: float = 0.0
    most: float = 0.0

    def range_within(self, first: int, last: int) -> tuple[float, float]:
        """Smallest and largest x for which the value is in first..last."""
        ends = ((first - self.least) / self.scale, (last - self.most) / self.scale)
        return ends if self.scale > 0 else ends[::-1]


def synthesise_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Inputs and state by name, in their static shapes: floats N(0, 1), booleans at random, integers uniform
    over the range in which every Gather (and the like) that they reach, through operators that move or shift
    them, finds an element; 0 or 1 where there is none; all that eight bits hold where they are quantised
    numbers. A Loop begins, and goes round as often as the shapes
    of what it gathers say, otherwise at most 5 times.

    Equal seeds give equal inputs, each independent of the others. ValueError names a symbolic dimension.
    """
    graph, _ = flattened(graph)
    return {v: _value(graph, graph.values[v], seed) for v in graph.variable_inputs()}


def _value(graph: Graph, value: Value, seed: int) -> Array:
    random = np.random.default_rng([seed, zlib.crc32(value.name.encode())])
    shape, dtype = value.type.static_shape, np.dtype(value.type.dtype)
    if dtype == np.bool_:
        if any(_is_loop(n) and n.inputs[1] == value.name for n in graph.consumers(value.name)):
            return np.ones(shape, np.bool_)
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if dtype.name in _EIGHT_BITS and _is_quantised(graph, value.name):
            return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        low, high = _index_range(graph, value.name)
        drawn: Array = random.integers(
            max(low, limits.min), min(high, limits.max), shape, np.int64, endpoint=True
        )
        return drawn.astype(dtype)
    if dtype.kind == "c":
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _is_quantised(graph: Graph, name: str) -> bool:
    """Whether it arrives as it is, or moved, where a quantised number is taken."""
    todo, seen = [name], {name}
    while todo:
        for node in graph.consumers(todo.pop()):
            if node.op_type in _OF_WHOLE_NUMBERS and not node.domain:
                return True
            if node.op_type in _MOVERS - {"Cast"} and not node.domain:
                todo += set(node.outputs) - seen - {""}
                seen.update(node.outputs)
    return False


def _index_range(graph: Graph, name: str) -> tuple[int, int]:
    """Smallest and largest number that is a valid index wherever the input arrives as one."""
    low, high = -math.inf, math.inf
    seen: set[_Trace] = set()
    todo = [_Trace(name)]
    while todo:
        trace = todo.pop()
        if trace in seen:
            continue
        seen.add(trace)
        for node in graph.consumers(trace.value):
            if _is_loop(node) and node.inputs[0] == trace.value:
                wanted: tuple[int, int] | None = _trips(graph, node)
            else:
                size = _indexed_size(graph, node, trace.value)
                wanted = None if size is None else (0, size - 1)
            if wanted is not None:
                smallest, largest = trace.range_within(*wanted)
                low, high = max(low, smallest), min(high, largest)
            todo.extend(_onward(graph, node, trace))
    if math.isinf(low) or math.isinf(high):
        return _FREE_RANGE
    return math.ceil(low), max(math.ceil(low), math.floor(high))


def _indexed_size(graph: Graph, node: Node, value: str) -> int | None:
    """How many elements `value` chooses from as an index of `node`; None if it is none."""
    if node.domain or len(node.inputs) < 2 or not graph.type_of(node.inputs[0]).is_static:
        return None
    if node.op_type in ("Gather", "GatherElements", "ScatterElements") and node.inputs[1] == value:
        return graph.shape_of(node.inputs[0])[node.attributes.get("axis", 0)]
    if (
        node.op_type in ("GatherND", "ScatterND")
        and node.inputs[1] == value
        and graph.type_of(value).is_static
    ):
        first = node.attributes.get("batch_dims", 0)
        indexed = graph.shape_of(node.inputs[0])[first : first + graph.shape_of(value)[-1]]
        return min(indexed, default=None)
    if node.op_type == "OneHot" and node.inputs[0] == value and graph.is_constant(node.inputs[1]):
        return int(graph.constants[node.inputs[1]].flat[0])
    return None


def _is_loop(node: Node) -> bool:
    return node.op_type == "Loop" and not node.domain and len(node.formal_inputs) > 1


def _trips(graph: Graph, node: Node) -> tuple[int, int]:
    """How often a Loop may go round."""
    gathered = node.outputs[len(node.formal_inputs) - 2 :]
    lengths = [n for v in gathered if v and isinstance(n := graph.type_of(v).shape[0], int)]
    return (lengths[0], lengths[0]) if lengths else (0, _MOST_TRIPS)


def _onward(graph: Graph, node: Node, trace: _Trace) -> Iterator[_Trace]:
    """Where the numbers go on to through `node`, if it moves them, or adds or multiplies constants."""
    if node.domain:
        return
    moved = (node.op_type in _MOVERS and node.inputs[0] == trace.value) or (
        node.op_type == "Concat" or (node.op_type == "Where" and trace.value in node.inputs[1:])
    )
    changed = trace if moved else None
    if node.op_type in ("Add", "Sub", "Mul") and node.inputs[0] != node.inputs[1]:
        first = node.inputs[0] == trace.value
        other = graph.constants.get(node.inputs[1] if first else node.inputs[0])
        if other is not None and other.size and other.dtype.kind in "iuf":
            changed = _computed(trace, node.op_type, first, float(other.min()), float(other.max()))
    if changed is not None:
        yield from (replace(changed, value=v) for v in node.outputs if v)


def _computed(trace: _Trace, op: str, first: bool, low: float, high: float) -> _Trace | None:
    """The trace after Add, Sub or Mul with a constant whose elements lie in [low, high]; None where that says
    nothing.
    """
    if op == "Add":
        return replace(trace, least=trace.least + low, most=trace.most + high)
    if op == "Sub" and first:
        return replace(trace, least=trace.least - high, most=trace.most - low)
    if op == "Sub":
        return replace(trace, scale=-trace.scale, least=low - trace.most, most=high - trace.least)
    if low != high or not low:
        return None
    ends = sorted((trace.least * low, trace.most * low))
    return replace(trace, scale=trace.scale * low, least=ends[0], most=ends[1])
