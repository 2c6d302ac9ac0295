"""Which single operators cuDNN can run, and why not the others. Loads nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from collage_core.errors import Refusal
from collage_core.formats import FLOATS
from collage_core.ir import Graph, Node, Operator
from collage_cudnn.geometry import Window, conv_window, deconv_window, pool_window
from collage_cudnn.pointwise import POINTWISE_OPS, operands_of, pointwise_refusal

__all__ = [
    "ANCHOR_OPS",
    "FUSING_OPS",
    "REDUCTIONS",
    "SUPPORTED_OPS",
    "reduced_axes",
    "refusal",
    "softmax_axis",
]

REDUCTIONS: Mapping[str, str] = {
    "GlobalAveragePool": "AVG",
    "GlobalMaxPool": "MAX",
    "ReduceL1": "NORM1",
    "ReduceL2": "NORM2",
    "ReduceMax": "MAX",
    "ReduceMean": "AVG",
    "ReduceMin": "MIN",
    "ReduceProd": "MUL",
    "ReduceSum": "ADD",
}
"""Reductions, with the names that cuDNN has for them."""

FUSING_OPS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])
"""Anchors that pointwise operators can follow."""

_STORED = frozenset(FLOATS) - {"float64"}
_MOST_ELEMENTS = 2**31 - 1
_MOST_RANK = 8


def reduced_axes(graph: Graph, node: Node) -> tuple[int, ...] | Refusal:
    """The axes that a reduction reduces, ascending."""
    rank = len(graph.shape_of(node.inputs[0]))
    if node.op_type.startswith("Global"):
        return tuple(range(2, rank))
    axes = node.attributes.get("axes")
    if len(node.inputs) > 1 and node.inputs[1]:
        data = graph.constants.get(node.inputs[1])
        if data is None:
            return Refusal("the axes are not constant", node.name)
        axes = tuple(int(a) for a in data.reshape(-1))
    if not axes:
        if node.attributes.get("noop_with_empty_axes", 0):
            return Refusal("no axis is reduced", node.name)
        return tuple(range(rank))
    if any(not -rank <= int(a) < rank for a in axes):
        return Refusal(f"axes {axes} of a value of rank {rank}", node.name)
    return tuple(sorted({int(a) % rank for a in axes}))


def softmax_axis(graph: Graph, node: Node) -> int:
    """Of Softmax and LogSoftmax; before opset 13 the last one is meant by all from it on."""
    rank = len(graph.shape_of(node.inputs[0]))
    default = -1 if graph.opsets.get("", 0) >= 13 else 1
    return int(node.attributes.get("axis", default)) % rank


def _window(find: Callable[[Graph, Node], Window | Refusal]) -> Callable[[Graph, Node], Refusal | None]:
    def check(graph: Graph, node: Node) -> Refusal | None:
        window = find(graph, node)
        return window if isinstance(window, Refusal) else None

    return check


def _softmax(graph: Graph, node: Node) -> Refusal | None:
    shape = graph.shape_of(node.inputs[0])
    if not shape:
        return Refusal("softmax of a single number", node.name)
    if graph.opsets.get("", 0) < 13 and math.prod(shape[softmax_axis(graph, node) + 1 :]) != 1:
        return Refusal("softmax over several axes", node.name)
    return None


def _reduction(graph: Graph, node: Node) -> Refusal | None:
    axes = reduced_axes(graph, node)
    if isinstance(axes, Refusal):
        return axes
    shape = graph.shape_of(node.inputs[0])
    if math.prod(shape[a] for a in axes) == 1:
        return Refusal("nothing to reduce: the axes have length 1", node.name)
    return None


def _layer_norm(graph: Graph, node: Node) -> Refusal | None:
    if any(node.outputs[1:]):
        return Refusal("mean or inverse deviation is asked for", node.name)
    shape = graph.shape_of(node.inputs[0])
    if not shape:
        return Refusal("normalisation of a single number", node.name)
    size = math.prod(shape[int(node.attributes.get("axis", -1)) % len(shape) :])
    if any(v and math.prod(graph.shape_of(v)) != size for v in node.inputs[1:]):
        return Refusal("scale or bias is broadcast", node.name)
    return None


def _matmul(graph: Graph, node: Node) -> Refusal | None:
    shapes = [graph.shape_of(v) for v in node.inputs[:2]]
    if min(map(len, shapes)) < 2:
        return Refusal("a product with a vector", node.name)
    if len(shapes[1]) == 2:
        return None
    batches = [math.prod(s[:-2]) for s in shapes]
    if batches[0] != batches[1] and 1 not in batches:
        return Refusal("batches are broadcast in some dimensions only", node.name)
    return None


def _gemm(graph: Graph, node: Node) -> Refusal | None:
    attributes = Operator(graph, node).attrs
    if attributes["transA"]:
        return Refusal("the left operand is transposed", node.name)
    if attributes["alpha"] != 1.0 or attributes["beta"] != 1.0:
        return Refusal("alpha or beta is not 1", node.name)
    return None


ANCHOR_OPS: Mapping[str, Callable[[Graph, Node], Refusal | None]] = {
    "AveragePool": _window(pool_window),
    "Conv": _window(conv_window),
    "ConvTranspose": _window(deconv_window),
    "Gemm": _gemm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "MaxPool": _window(pool_window),
    "Softmax": _softmax,
    **dict.fromkeys(REDUCTIONS, _reduction),
}
"""Operators that a kernel is made around, with what is checked beyond types and shapes."""

SUPPORTED_OPS: frozenset[str] = frozenset(ANCHOR_OPS) | frozenset(POINTWISE_OPS)


def refusal(graph: Graph, node: Node) -> Refusal | None:
    """Why cuDNN cannot run `node` alone, or None if it may: the library has the last word."""
    if node.domain or node.op_type not in SUPPORTED_OPS:
        return Refusal(f"{node.op_type} has no counterpart in cuDNN", node.name)
    is_pointwise = node.op_type in POINTWISE_OPS
    named = operands_of(node) if is_pointwise else node.inputs
    if node.op_type in REDUCTIONS:
        named = named[:1]
    values = [*(v for v in named if v), node.outputs[0]]
    wrong = _types_refusal(graph, node, values)
    if wrong is not None:
        return wrong
    if all(graph.is_constant(v) for v in values[:-1]):
        return Refusal("all inputs are constant", node.name)
    if is_pointwise:
        return pointwise_refusal(graph, node)
    return ANCHOR_OPS[node.op_type](graph, node)


def _types_refusal(graph: Graph, node: Node, values: list[str]) -> Refusal | None:
    for v in values:
        type = graph.type_of(v)
        if not type.dtype:
            return Refusal(f"the type of {v!r} is not known", node.name)
        if type.dtype not in _STORED:
            return Refusal(f"{type.dtype} is not supported, only {', '.join(sorted(_STORED))}", node.name)
        if type.symbolic_dims:
            return Refusal(f"dimension {type.symbolic_dims[0]!r} is not known", node.name)
        if len(type.shape) > _MOST_RANK:
            return Refusal(f"rank {len(type.shape)} is above {_MOST_RANK}", node.name)
        if not 0 < type.size <= _MOST_ELEMENTS:
            return Refusal(f"a tensor has {type.size} elements", node.name)
    if len({graph.type_of(v).dtype for v in values}) > 1:
        return Refusal("its values are of several types", node.name)
    return None
