"""Which groups may be handed over though the library computes 64-bit integers in 32 bits, some 32-bit ones in
float32, and 8-bit ones without wrapping around, and says nothing where that is too narrow. Indices and
shapes fit.
"""

from __future__ import annotations

import numpy as np

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Operator, Subgraph

__all__ = ["narrow_fault", "wide_refusal"]

_WIDE = ("int64", "uint64")
_NARROW = np.iinfo(np.int32)

_POSITIONS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "Attention": (6,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Expand": (1,),
    "EyeLike": (0,),
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0,),
    "MaxUnpool": (1, 2),
    "NegativeLogLikelihoodLoss": (1,),
    "NonMaxSuppression": (2,),
    "OneHot": (0, 1),
    "Pad": (1, 3),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Resize": (3,),
    "ReverseSequence": (1,),
    "STFT": (1, 3),
    "ScatterElements": (1,),
    "ScatterND": (1,),
    "Shape": (0,),
    "Size": (0,),
    "Slice": (1, 2, 3, 4),
    "SoftmaxCrossEntropyLoss": (1,),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
}
"""Operator -> inputs that are taken as indices or as a shape, or whose numbers do not matter."""

_FOUND: dict[str, tuple[int, ...]] = {
    "ArgMax": (0,),
    "ArgMin": (0,),
    "MaxPool": (1,),
    "NonMaxSuppression": (0,),
    "NonZero": (0,),
    "Shape": (0,),
    "Size": (0,),
    "TopK": (1,),
}
"""Operator -> outputs that are indices or a shape."""

_MOVERS = frozenset(
    [
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ]
)
"""Operators that pass numbers on as they are."""


_ROUNDED = frozenset(
    [
        "Clip",
        "Div",
        "Einsum",
        "Equal",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "MatMul",
        "Mod",
        "PRelu",
        "Pad",
        "Pow",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Relu",
        "Resize",
        "Shrink",
        "Upsample",
    ]
)
"""Operators that compute int32 in float32, which has 24 bits."""

_SATURATED = {
    "int8": frozenset(["Abs", "Add", "Div", "Einsum", "Mul", "Neg", "Shrink", "Sub"]),
    "uint8": frozenset(["Add", "Einsum", "Mul", "Shrink", "Sub"]),
}
"""Operators that cut off at the ends of the range of 8 bits."""


def narrow_fault(op: Operator) -> str | None:
    """What is otherwise about an operator on integers of 32 or 8 bits; None if nothing is known."""
    dtypes = [t.dtype for k in range(len(op.node.inputs)) if (t := op.input_type(k)) is not None]
    if not dtypes:
        return None
    if op.op_type in _SATURATED.get(dtypes[0], ()):
        return f"cuts {op.op_type} of {dtypes[0]} off at the ends of its range"
    if op.op_type in _ROUNDED and (dtypes[0] == "int32" or (op.op_type == "Pow" and "int32" in dtypes)):
        return f"computes {op.op_type} of int32 in float32"
    return None


def wide_refusal(subgraph: Subgraph) -> Refusal | None:
    """Why 32 bits may be too few for a 64-bit integer that the group reads or yields: unless all that is read
    ends as an index or a shape, and all that is yielded is one.
    """
    graph = subgraph.graph
    for value in (*subgraph.inputs, *subgraph.constants):
        if not _fits(graph, value) and (reader := _calculating(subgraph, value)) is not None:
            return _refusal(graph, value, reader)
    for value in subgraph.outputs:
        producer = graph.producer(value)
        if producer is not None and not _is_position(subgraph, value):
            return _refusal(graph, value, producer)
    return None


def _refusal(graph: Graph, value: str, node: Node) -> Refusal:
    return Refusal(f"{value!r} is {graph.type_of(value)}; OpenVINO computes in 32 bits", node.name)


def _fits(graph: Graph, value: str) -> bool:
    """Whether 32 bits are known to be enough."""
    if graph.type_of(value).dtype not in _WIDE:
        return True
    if not graph.is_constant(value):
        return False
    data = graph.constants[value]
    return not data.size or bool(data.min() >= _NARROW.min and data.max() <= _NARROW.max)


def _calculating(subgraph: Subgraph, value: str) -> Node | None:
    """The node that takes the value, or what is passed on of it, for more than a position; or that yields
    it.
    """
    passed_on = [value]
    for v in passed_on:
        for node in subgraph.graph.consumers(v):
            if node.id not in subgraph.node_set or v not in _numbers(node):
                continue
            if not _is_mover(node) or set(node.outputs) & set(subgraph.outputs):
                return node
            passed_on += [o for o in node.outputs if o and o not in passed_on]
    return None


def _is_position(subgraph: Subgraph, value: str) -> bool:
    """Whether the value is an index or a shape, or moved from such and from small constants."""
    graph = subgraph.graph
    if _fits(graph, value):
        return True
    node = graph.producer(value)
    if node is None or node.id not in subgraph.node_set:
        return False
    if not node.domain and node.outputs.index(value) in _FOUND.get(node.op_type, ()):
        return True
    return _is_mover(node) and all(_is_position(subgraph, v) for v in _numbers(node))


def _numbers(node: Node) -> list[str]:
    """The inputs that are not taken as positions."""
    positions = () if node.domain else _POSITIONS.get(node.op_type, ())
    return [v for k, v in enumerate(node.inputs) if v and k not in positions]


def _is_mover(node: Node) -> bool:
    return not node.domain and node.op_type in _MOVERS
