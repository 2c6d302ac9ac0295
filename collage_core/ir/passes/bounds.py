"""How large values of open shapes can become: of what depends on values it is known what that is at most, and
what is computed of it is inferred from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from math import prod

from collage_core.errors import ModelError
from collage_core.ir.bodies import bodies_of, free_name, in_place
from collage_core.ir.body_types import types_of_loop
from collage_core.ir.graph import Graph
from collage_core.ir.onnx_read import infer_types
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.passes.constants import fold
from collage_core.ir.types import UNKNOWN, Node, TensorType, Value, ValueKind

__all__ = ["bounds_of"]

_MOST_BYTES = 1_000_000_000
_BRANCHES = "collage.branches"
"""Domain of an If whose branches stand before it."""

_GROWING = frozenset(
    [
        "ConcatFromSequence",
        "ConstantOfShape",
        "CumSum",
        "Range",
        "RoiAlign",
        "ScatterElements",
        "ScatterND",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceInsert",
        "Split",
        "TopK",
    ]
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
_HELD_FIXED = {"Pad": (1, 3), "Split": (1,), "Squeeze": (1,), "Unsqueeze": (1,)}
"""Inputs of which that cannot be told."""
_SUMMING = frozenset({"Add", "Concat", "Max", "Min", "Mul"})
_CHOOSING = frozenset(
    {"Cast", "Gather", "Identity", "ReduceProd", "ReduceSum", "Reshape", "Squeeze", "Unsqueeze"}
)
_MEASURING = frozenset({"Shape", "Size"})
_COUNTING = _SUMMING | _CHOOSING | _MEASURING
"""Operators that compute larger sizes of larger ones: of those in all inputs, of those in the first where the
others are constants, and of any tensor's.
"""

_Bound = Callable[[Graph, Node], list[TensorType]]


def bounds_of(graph: Graph, outputs: Collection[str]) -> dict[str, TensorType]:
    """For each of the outputs, whose types in `graph` are open, a type that is at least as large along each
    axis.

    ModelError names an output that has none, and the node at which it is lost, or one whose bound takes more
    than 1 GB.
    """
    whole = _with_branches(_behind_open(graph, outputs))
    known = _Known.of(whole)
    for v in outputs:
        if v not in known.bounded:
            raise ModelError(_said(v, known.lost[v]))
    # What stands in is as large as can be, and so are numbers that are folded there: of a slice that begins
    # at one of them the least would be left.
    computed = {
        n.id: n for n in whole.nodes if n.id in known.sources and _is_cut_by_what_is_computed(whole, n)
    }
    most = {i: _AT_MOST[n.op_type](whole, n) for i, n in computed.items() if _is_static(whole, n.inputs[:2])}
    while True:
        # Anew each time: where something larger stands in, what was inferred from it before is not so.
        part = fold(infer_types(_standing_in(whole, most)))
        if gone := computed.keys() - most.keys() - {n.id for n in part.nodes}:
            raise ModelError(_said(next(iter(outputs)), computed[min(gone)]))
        found = {
            n.id: (_AT_MOST if n.id in computed else _BOUNDS)[n.qualified_op](part, n)
            for n in _ready(part, known.sources)
        }
        more = {i: types for i, types in found.items() if UNKNOWN not in types}
        if not more:
            break
        most |= more
    for v in outputs:
        type = part.type_of(v)
        if not type.is_static or any(n.id in known.sources for n in part.nodes):
            raise ModelError(
                _said(v, next(n for n in part.nodes if n.id in known.sources or _is_open(part, n)))
            )
        if type.size_bytes > _MOST_BYTES:
            raise ModelError(
                f"output {v!r} may become {type}, for which {type.size_bytes / 1e9:,.1f} GB would have to "
                "be set aside: limit how much is chosen, or leave that output out"
            )
    return {v: part.type_of(v) for v in outputs}


def _is_cut_by_what_is_computed(whole: Graph, node: Node) -> bool:
    numbers = {"Slice": node.inputs[1:], "NonMaxSuppression": node.inputs[2:3]}.get(node.qualified_op, ())
    return any(v and not whole.is_constant(v) for v in numbers)


def _is_static(graph: Graph, values: Iterable[str]) -> bool:
    return all(graph.type_of(v).is_static for v in values if v)


def _ready(part: Graph, sources: Collection[int]) -> list[Node]:
    """Those sources of which all that they read is as large as it can become."""
    found: list[Node] = []
    behind: set[str] = set()
    for n in part.nodes:
        is_behind = not behind.isdisjoint(n.inputs)
        if n.id in sources or is_behind:
            behind.update(v for v in n.outputs if v)
        if n.id in sources and not is_behind and _is_static(part, n.inputs):
            found.append(n)
    return found


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


def _with_branches(part: Graph) -> Graph:
    """The part with both branches of each If that yields open shapes in its place, and a node that stands
    for the choice among what they yield.
    """
    chosen = {n.id for n in part.nodes if n.qualified_op == "If" and _is_open(part, n)}
    if not chosen:
        return part
    nodes: list[Node] = []
    values, constants, ids = dict(part.values), dict(part.constants), count(max(part.all_nodes) + 1)
    for n in part.nodes:
        if n.id not in chosen:
            nodes.append(n)
            continue
        yielded: list[str] = []
        for branch in bodies_of(n).values():
            names = tuple(free_name(v, values) for v in n.outputs)
            body = in_place(dataclasses.replace(n, outputs=names), branch, values)
            nodes += [dataclasses.replace(inner, id=next(ids)) for inner in body.nodes]
            values, constants = {**body.values, **values}, {**constants, **body.constants}
            yielded += names
        nodes.append(Node(n.id, n.name, n.op_type, tuple(yielded), n.outputs, {}, _BRANCHES))
    opsets = {**part.opsets, _BRANCHES: 1}
    made = Graph(part.name, nodes, values, part.inputs, part.outputs, constants, opsets)
    return _with_branches(infer_types(made))


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
        known = cls({*part.inputs, *part.constants}, set(), {})
        counts = {v for v, data in part.constants.items() if data.dtype.kind in "iuf" and (data >= 0).all()}
        for n in part.nodes:
            read = [v for v in n.inputs if v]
            lost = next((known.lost[v] for v in read if v in known.lost), None)
            if lost is None and _is_source(part, n, counts):
                known.sources.add(n.id)
            elif lost is None and not _grows(part, n, counts):
                lost = n
            for v in filter(None, n.outputs):
                if lost is None or part.type_of(v).is_static:
                    known.bounded.add(v)
                else:
                    known.lost[v] = lost
            if lost is None and not n.domain and _counts(part, n, counts):
                counts.update(n.outputs)
        return known


def _counts(part: Graph, node: Node, counts: Collection[str]) -> bool:
    """Whether what it yields are numbers as `counts` are: not negative, nor smaller when sizes grow."""
    if node.op_type in _CHOOSING:
        return node.inputs[0] in counts and all(part.is_constant(v) for v in node.inputs[1:] if v)
    return node.op_type in _MEASURING or (node.op_type in _SUMMING and all(v in counts for v in node.inputs))


def _is_open(part: Graph, node: Node) -> bool:
    return any(not part.type_of(v).is_static for v in node.outputs if v)


def _is_source(part: Graph, node: Node, counts: Collection[str]) -> bool:
    if node.op_type == "Reshape" and not _is_given_by_size(part.type_of(node.outputs[0])):
        return False
    if node.op_type == "Loop" and (node.formal_inputs[0] not in counts or UNKNOWN in _loop(part, node, 1)):
        return False
    return node.qualified_op in _BOUNDS and _is_open(part, node)


def _is_given_by_size(type: TensorType) -> bool:
    """Whether the number of elements tells the shape: all sizes but one are known."""
    return type != UNKNOWN and len(type.symbolic_dims) == 1 and 0 not in type.shape


def _grows(part: Graph, node: Node, counts: Collection[str]) -> bool:
    """Whether its outputs do not shrink when its inputs grow. counts: numbers that do not, either, and are
    not negative.
    """
    if node.domain or node.op_type in _SHRINKING:
        return False
    if node.op_type == "Squeeze" and len(node.inputs) == 1 and "axes" not in node.attributes:
        return part.type_of(node.inputs[0]).is_static  # how many axes it takes away hangs on the sizes
    if node.op_type == "Range" and not _rises(part, node):
        return False
    if node.op_type not in _GROWING | _COUNTING and op_kind(part, node) > OpKind.OUT_ELEMWISE_FUSABLE:
        return False
    if node.op_type == "Split":  # the last of equal parts is what the others leave
        type = part.type_of(node.inputs[0])
        if type == UNKNOWN or isinstance(type.shape[node.attributes.get("axis", 0)], str):
            return False
    given = {*part.inputs, *part.constants}
    if node.op_type == "Reshape" and part.is_constant(node.inputs[1]):
        return True  # -1 and 0 stand for what grows
    sizes = (v for k, v in enumerate(node.inputs) if k in _SHAPED_BY.get(node.op_type, ()) and v)
    fixed = (v for k, v in enumerate(node.inputs) if k in _HELD_FIXED.get(node.op_type, ()) and v)
    return all(v in counts for v in sizes) and all(v in given for v in fixed)


def _rises(part: Graph, node: Node) -> bool:
    """Whether a Range goes up, from a given start."""
    start, _, step = node.inputs
    return part.is_constant(start) and part.is_constant(step) and part.constants[step].item() > 0


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


def _either(graph: Graph, node: Node) -> list[TensorType]:
    """The larger of two branches' sizes along each axis."""
    types = [graph.type_of(v) for v in node.inputs]
    pairs = [*zip(types[: len(node.outputs)], types[len(node.outputs) :], strict=True)]
    return [
        TensorType(one.dtype, tuple(map(max, one.static_shape, other.static_shape)))
        if len(one.shape) == len(other.shape)
        else UNKNOWN
        for one, other in pairs
    ]


def _loop(graph: Graph, node: Node, trips: int | None = None) -> list[TensorType]:
    """As if it went round as often as it may."""
    limit = graph.constants.get(node.formal_inputs[0])
    if trips is None and limit is not None:
        trips = int(limit.item())
    return [t if t.is_static else UNKNOWN for t in types_of_loop(graph, node, infer_types, trips)]


def _non_zero(graph: Graph, node: Node) -> list[TensorType]:
    type = graph.type_of(node.inputs[0])
    return [TensorType("int64", (len(type.shape), type.size))]


def _suppression(graph: Graph, node: Node) -> list[TensorType]:
    batches, classes, boxes = graph.shape_of(node.inputs[1])
    limit = node.inputs[2] if len(node.inputs) > 2 else ""
    most = max(int(graph.constants[limit].flat[0]), 0) if limit else 0
    return [TensorType("int64", (batches * classes * min(boxes, most), 3))]


def _all_boxes(graph: Graph, node: Node) -> list[TensorType]:
    return [TensorType("int64", (prod(graph.shape_of(node.inputs[1])), 3))]


def _all_of_it(graph: Graph, node: Node) -> list[TensorType]:
    return [graph.type_of(node.inputs[0])]


def _reshape(graph: Graph, node: Node) -> list[TensorType]:
    size, type = graph.type_of(node.inputs[0]).size, graph.type_of(node.outputs[0])
    rest = prod(d for d in type.shape if isinstance(d, int))
    return [TensorType(type.dtype, tuple(d if isinstance(d, int) else size // rest for d in type.shape))]


def _slice(graph: Graph, node: Node) -> list[TensorType]:
    """The most that is left of a tensor of any smaller size: of `[-5:5]` more is left where that is 5 than
    where it is 9.
    """
    type = graph.type_of(node.inputs[0])
    if len(node.inputs) == 1:
        return [type]
    starts, ends = (graph.constants[v].tolist() for v in node.inputs[1:3])
    axes, steps = (graph.constants[v].tolist() if v else None for v in (*node.inputs, "", "")[3:5])
    shape = list(type.static_shape)
    for start, end, axis, step in zip(
        starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True
    ):
        most = shape[axis]
        turns = (n + k for n in (0, abs(start), abs(end)) for k in (-1, 0, 1))
        sizes = [most, *(n for n in turns if 0 <= n < most)]
        shape[axis] = max(len(range(*slice(start, end, step).indices(n))) for n in sizes)
    return [TensorType(type.dtype, tuple(shape))]


def _unique(graph: Graph, node: Node) -> list[TensorType]:
    type, axis = graph.type_of(node.inputs[0]), node.attributes.get("axis")
    most = type.size if axis is None else type.static_shape[axis]
    shape = (most,) if axis is None else type.static_shape
    return [TensorType(type.dtype, shape), *[TensorType("int64", (most,))] * 3]


_BOUNDS: Mapping[str, _Bound] = {
    "Compress": _compress,
    "Loop": _loop,
    "NonMaxSuppression": _suppression,
    "NonZero": _non_zero,
    "Reshape": _reshape,
    "Slice": _slice,
    "Unique": _unique,
    f"{_BRANCHES}.If": _either,
}
"""What operators yield at most, whose outputs' shapes depend on values."""
_AT_MOST: Mapping[str, _Bound] = {"NonMaxSuppression": _all_boxes, "Slice": _all_of_it}
"""And where the numbers that say how much are computed."""
