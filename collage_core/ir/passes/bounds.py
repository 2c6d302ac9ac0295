"""How large values of open shapes can become: of what depends on values it is known what that is at most, and
what is computed of it is inferred from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from collage_core.errors import ModelError
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import infer_types
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.passes.constants import fold
from collage_core.ir.types import UNKNOWN, Node, TensorType, Value, ValueKind

__all__ = ["bounds_of"]

_MOST_BYTES = 1_000_000_000

_GROWING = frozenset(
    {"ConstantOfShape", "CumSum", "Range", "RoiAlign", "ScatterElements", "ScatterND", "Split", "TopK"}
)
"""Operators beside those of the kinds up to `OUT_ELEMWISE_FUSABLE` whose outputs do not shrink when their
inputs grow.
"""
_SHRINKING = frozenset({"OneHot", "Resize", "Upsample"})
"""Operators of these kinds that are not followed."""

_SHAPED_BY = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Range": (1,),
    "Reshape": (1,),
    "Tile": (1,),
    "TopK": (1,),
}
"""Inputs that hold sizes: what they yield does not shrink when these grow."""
_HELD_FIXED = {"Pad": (1, 3), "Range": (0, 2), "Split": (1,), "Squeeze": (1,), "Unsqueeze": (1,)}
"""Inputs of which that cannot be told."""
_COUNTING = frozenset(
    [
        "Add",
        "Cast",
        "Concat",
        "Gather",
        "Identity",
        "Max",
        "Min",
        "Mul",
        "ReduceProd",
        "ReduceSum",
        "Reshape",
        "Shape",
        "Size",
        "Squeeze",
        "Unsqueeze",
    ]
)
"""Operators that compute larger sizes of larger ones."""

_Bound = Callable[[Graph, Node], list[TensorType]]


def bounds_of(graph: Graph, outputs: Collection[str]) -> dict[str, TensorType]:
    """For each of the outputs, whose types in `graph` are open, a type that is at least as large along each
    axis.

    ModelError names an output that has none, and the node at which it is lost, or one whose bound takes more
    than 1 GB.
    """
    part = _behind_open(graph, outputs)
    known = _Known.of(part)
    for v in outputs:
        if v not in known.bounded:
            raise ModelError(_said(v, known.lost[v]))
    while True:
        part = fold(infer_types(part))
        sources = [n for n in part.nodes if n.id in known.sources]
        ready = [n for n in sources if all(part.type_of(v).is_static for v in n.inputs if v)]
        if not ready:
            break
        part = _standing_in(part, {n.id: _BOUNDS[n.op_type](part, n) for n in ready})
    for v in outputs:
        type = part.type_of(v)
        if not type.is_static:
            node = next(n for n in part.nodes if any(not part.type_of(o).is_static for o in n.outputs if o))
            raise ModelError(_said(v, node))
        if type.size_bytes > _MOST_BYTES:
            raise ModelError(
                f"output {v!r} may become {type}, for which {type.size_bytes / 1e9:,.1f} GB would have to "
                "be set aside: limit how much is chosen, or leave that output out"
            )
    return {v: part.type_of(v) for v in outputs}


def _said(output: str, node: Node) -> str:
    return (
        f"how large output {output!r} can become cannot be told, for {node} yields any shape: end the model "
        "in a value of known shape, as by a Reshape or a Pad, or leave that output out"
    )


def _behind_open(graph: Graph, outputs: Collection[str]) -> Graph:
    """The part of the graph in which shapes are open, as far as the outputs need it. What it reads are
    inputs."""
    open_values: set[str] = set()
    for n in graph.nodes:
        is_open = any(not graph.type_of(v).is_static for v in n.outputs if v)
        if is_open or not open_values.isdisjoint(n.inputs):
            open_values.update(v for v in n.outputs if v)
    nodes: list[Node] = []
    needed = set(outputs)
    for n in reversed(graph.nodes):
        if not open_values.isdisjoint(n.outputs) and not needed.isdisjoint(n.outputs):
            nodes.append(n)
            needed.update(n.inputs)
    nodes.reverse()
    computed = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v and v not in computed)
    constants = {v: graph.constants[v] for v in read if graph.is_constant(v)}
    inputs = [v for v in read if v not in constants]
    values = {v: graph.values[v] for v in (*read, *computed) if v}
    values |= {v: Value(v, graph.type_of(v), ValueKind.INPUT) for v in inputs}
    return Graph(graph.name, nodes, values, inputs, outputs, constants, graph.opsets)


@dataclass(frozen=True, slots=True)
class _Known:
    """bounded: values whose shapes are no larger than what is inferred where larger ones stand in. sources:
    nodes, by id, that something stands in for. lost: by value that is not bounded, the node at which that is
    lost.
    """

    bounded: set[str]
    sources: set[int]
    lost: dict[str, Node]

    @classmethod
    def of(cls, part: Graph) -> _Known:
        given = {*part.inputs, *part.constants}
        known, counts = cls(set(given), set(), {}), set(given)
        for n in part.nodes:
            read = [v for v in n.inputs if v]
            lost = next((known.lost[v] for v in read if v in known.lost), None)
            if lost is None and _is_source(part, n):
                known.sources.add(n.id)
            elif lost is None and not _grows(part, n, counts):
                lost = n
            for v in filter(None, n.outputs):
                if lost is None or part.type_of(v).is_static:
                    known.bounded.add(v)
                else:
                    known.lost[v] = lost
            if n.op_type in _COUNTING and not n.domain and lost is None and _all(n.op_type, read, counts):
                counts.update(n.outputs)
        return known


def _all(op_type: str, read: list[str], counts: Collection[str]) -> bool:
    return op_type in ("Shape", "Size") or all(v in counts for v in read)


def _is_source(part: Graph, node: Node) -> bool:
    is_open = any(not part.type_of(v).is_static for v in node.outputs if v)
    if node.op_type == "Slice" and all(part.is_constant(v) for v in node.inputs[1:] if v):
        return False  # what it yields is inferred
    return is_open and node.op_type in _BOUNDS and not node.domain


def _grows(part: Graph, node: Node, counts: Collection[str]) -> bool:
    """Whether its outputs do not shrink when its inputs grow. counts: values that do not, either."""
    if node.domain or node.op_type in _SHRINKING:
        return False
    if node.op_type not in _GROWING | _COUNTING and op_kind(part, node) > OpKind.OUT_ELEMWISE_FUSABLE:
        return False
    if node.op_type == "Split":  # the last of equal parts is what the others leave
        type = part.type_of(node.inputs[0])
        if type == UNKNOWN or isinstance(type.shape[node.attributes.get("axis", 0)], str):
            return False
    given = {*part.inputs, *part.constants}
    sizes = (v for k, v in enumerate(node.inputs) if k in _SHAPED_BY.get(node.op_type, ()) and v)
    fixed = (v for k, v in enumerate(node.inputs) if k in _HELD_FIXED.get(node.op_type, ()) and v)
    return all(v in counts for v in sizes) and all(v in given for v in fixed)


def _standing_in(part: Graph, types: Mapping[int, list[TensorType]]) -> Graph:
    """The part in which these nodes, by id, have made way for inputs of the types of their outputs."""
    values, inputs = dict(part.values), list(part.inputs)
    for n in part.nodes:
        for v, type in zip(n.outputs, types.get(n.id, ()), strict=False):
            if v:
                values[v] = Value(v, type, ValueKind.INPUT)
                inputs.append(v)
    nodes = [n for n in part.nodes if n.id not in types]
    return Graph(part.name, nodes, values, inputs, part.outputs, part.constants, part.opsets)


def _compress(graph: Graph, node: Node) -> list[TensorType]:
    data, (chosen, *_) = graph.type_of(node.inputs[0]), graph.shape_of(node.inputs[1])
    axis = node.attributes.get("axis")
    if axis is None:
        return [TensorType(data.dtype, (min(data.size, chosen),))]
    shape = list(data.static_shape)
    shape[axis] = min(shape[axis], chosen)
    return [TensorType(data.dtype, tuple(shape))]


def _non_zero(graph: Graph, node: Node) -> list[TensorType]:
    type = graph.type_of(node.inputs[0])
    return [TensorType("int64", (len(type.shape), type.size))]


def _suppression(graph: Graph, node: Node) -> list[TensorType]:
    batches, classes, boxes = graph.shape_of(node.inputs[1])
    limit = node.inputs[2] if len(node.inputs) > 2 else ""
    if graph.is_constant(limit):
        boxes = min(boxes, max(int(graph.constants[limit].flat[0]), 0))
    elif not limit:
        boxes = 0
    return [TensorType("int64", (batches * classes * boxes, 3))]


def _slice(graph: Graph, node: Node) -> list[TensorType]:
    return [graph.type_of(node.inputs[0])]


def _unique(graph: Graph, node: Node) -> list[TensorType]:
    type, axis = graph.type_of(node.inputs[0]), node.attributes.get("axis")
    most = type.size if axis is None else type.static_shape[axis]
    shape = (most,) if axis is None else type.static_shape
    return [TensorType(type.dtype, shape), *[TensorType("int64", (most,))] * 3]


_BOUNDS: Mapping[str, _Bound] = {
    "Compress": _compress,
    "NonMaxSuppression": _suppression,
    "NonZero": _non_zero,
    "Slice": _slice,
    "Unique": _unique,
}
"""What operators yield at most, whose outputs' shapes depend on values."""
