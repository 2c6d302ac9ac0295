"""Which single operators oneDNN can run, and why not the others. Loads nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node
from collage_dnnl.enums import Alg
from collage_dnnl.geometry import Window, conv_window, deconv_window, pool_window, resize_refusal
from collage_dnnl.steps import BINARY_OPS, UNARY_OPS, broadcasts, steps_of

__all__ = ["ANCHOR_OPS", "REDUCTIONS", "SUPPORTED_OPS", "reduced_axes", "refusal", "running_input"]

REDUCTIONS: dict[str, tuple[Alg, float]] = {
    "ReduceL1": (Alg.REDUCTION_NORM_LP_POWER_P_SUM, 1.0),
    "ReduceL2": (Alg.REDUCTION_NORM_LP_SUM, 2.0),
    "ReduceMax": (Alg.REDUCTION_MAX, 0.0),
    "ReduceMean": (Alg.REDUCTION_MEAN, 0.0),
    "ReduceMin": (Alg.REDUCTION_MIN, 0.0),
    "ReduceProd": (Alg.REDUCTION_MUL, 0.0),
    "ReduceSum": (Alg.REDUCTION_SUM, 0.0),
    "ReduceSumSquare": (Alg.REDUCTION_NORM_LP_POWER_P_SUM, 2.0),
}
"""Reductions: algorithm and its parameter p."""

_MAX_RANK = 12


def reduced_axes(graph: Graph, node: Node) -> tuple[int, ...] | Refusal:
    """The axes that a reduction reduces, ascending."""
    rank = len(graph.shape_of(node.inputs[0]))
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
    return tuple(sorted(int(a) % rank for a in axes))


def _spatial(graph: Graph, node: Node) -> Refusal | None:
    rank = len(graph.shape_of(node.inputs[0]))
    return None if 3 <= rank <= 5 else Refusal(f"{rank - 2} spatial dimensions; oneDNN has 1 to 3", node.name)


def _windowed(find: Callable[[Graph, Node], Window | Refusal]) -> Callable[[Graph, Node], Refusal | None]:
    def check(graph: Graph, node: Node) -> Refusal | None:
        wrong = _spatial(graph, node)
        if wrong is not None:
            return wrong
        window = find(graph, node)
        return window if isinstance(window, Refusal) else None

    return check


def _max_pool(graph: Graph, node: Node) -> Refusal | None:
    if len(node.outputs) > 1 and node.outputs[1]:
        return Refusal("MaxPool's indices are asked for", node.name)
    return _windowed(pool_window)(graph, node)


def _elementwise(graph: Graph, node: Node) -> Refusal | None:
    running = running_input(graph, node)
    if running is None:
        return Refusal("no input that is not constant has the shape of the output", node.name)
    steps = steps_of(graph, node, running)
    return steps if isinstance(steps, Refusal) else None


def running_input(graph: Graph, node: Node) -> str | None:
    """The input that an elementwise node can be seen as a post-operation of: not constant, of the output's
    shape.
    """
    shape = graph.shape_of(node.outputs[0])
    candidates = node.inputs[:1] if node.op_type in UNARY_OPS else node.inputs
    return next((v for v in candidates if not graph.is_constant(v) and graph.shape_of(v) == shape), None)


def _softmax(graph: Graph, node: Node) -> Refusal | None:
    opset = graph.opsets.get("", 0)
    rank = len(graph.shape_of(node.inputs[0]))
    if rank == 0:
        return Refusal("softmax of a single number", node.name)
    axis = int(node.attributes.get("axis", -1 if opset >= 13 else 1)) % rank
    if opset < 13 and axis != rank - 1:
        return Refusal(f"softmax of opset {opset} over several axes", node.name)
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


def _batch_norm(graph: Graph, node: Node) -> Refusal | None:
    if node.attributes.get("training_mode", 0) or any(node.outputs[1:]):
        return Refusal("batch normalisation for training", node.name)
    rank = len(graph.shape_of(node.inputs[0]))
    return None if 2 <= rank <= 5 else Refusal(f"batch normalisation of rank {rank}", node.name)


def _lrn(graph: Graph, node: Node) -> Refusal | None:
    if int(node.attributes["size"]) % 2 == 0:
        return Refusal("an even size, whose window lies differently in oneDNN", node.name)
    return _spatial(graph, node)


def _reduction(graph: Graph, node: Node) -> Refusal | None:
    axes = reduced_axes(graph, node)
    if isinstance(axes, Refusal):
        return axes
    shape = graph.shape_of(node.inputs[0])
    if all(shape[a] == 1 for a in axes):
        return Refusal("axes of length 1, which oneDNN does not reduce", node.name)
    return None


def _resize(graph: Graph, node: Node) -> Refusal | None:
    wrong = _spatial(graph, node)
    return resize_refusal(graph, node) if wrong is None else wrong


def _gemm(graph: Graph, node: Node) -> Refusal | None:
    shape = graph.shape_of(node.outputs[0])
    if any(v and not broadcasts(graph.shape_of(v), shape) for v in node.inputs[2:]):
        return Refusal("the addend does not broadcast to the output", node.name)
    return None


def _nothing(graph: Graph, node: Node) -> Refusal | None:
    return None


ANCHOR_OPS: dict[str, Callable[[Graph, Node], Refusal | None]] = {
    "AveragePool": _windowed(pool_window),
    "BatchNormalization": _batch_norm,
    "Concat": _nothing,
    "Conv": _windowed(conv_window),
    "ConvTranspose": _windowed(deconv_window),
    "Gemm": _gemm,
    "GlobalAveragePool": _windowed(pool_window),
    "GlobalMaxPool": _windowed(pool_window),
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax,
    "MatMul": _nothing,
    "MaxPool": _max_pool,
    "Resize": _resize,
    "Softmax": _softmax,
    **dict.fromkeys(REDUCTIONS, _reduction),
}
"""Operators that become a primitive of their own, with what is checked beyond types and shapes."""

SUPPORTED_OPS: frozenset[str] = frozenset(ANCHOR_OPS) | frozenset(UNARY_OPS) | frozenset(BINARY_OPS)

_SHAPE_INPUTS = {**dict.fromkeys(REDUCTIONS, (1,)), "Resize": (1, 2, 3)}
"""Inputs that are no data: their dtype is free."""


def refusal(graph: Graph, node: Node) -> Refusal | None:
    """Why oneDNN cannot run `node` alone, or None if it can."""
    if node.domain or node.op_type not in SUPPORTED_OPS:
        return Refusal(f"{node.op_type} has no counterpart in oneDNN", node.name)
    ignored = _SHAPE_INPUTS.get(node.op_type, ())
    # Further outputs are none that oneDNN computes: the operators' own checks say so.
    names = [v for i, v in enumerate(node.inputs) if v and i not in ignored] + [node.outputs[0]]
    for v in names:
        type = graph.type_of(v)
        if not type.dtype:
            return Refusal(f"the type of {v!r} is not known", node.name)
        if type.dtype != "float32":
            return Refusal(f"{type.dtype} is not supported, only float32", node.name)
        if type.symbolic_dims:
            return Refusal(f"dimension {type.symbolic_dims[0]!r} is not known", node.name)
        if len(type.shape) > _MAX_RANK:
            return Refusal(f"rank {len(type.shape)} is above {_MAX_RANK}", node.name)
        if type.size == 0:
            return Refusal("a tensor has no elements", node.name)
    if all(graph.is_constant(v) for v in node.inputs if v):
        return Refusal("all inputs are constant", node.name)
    special = ANCHOR_OPS.get(node.op_type, _elementwise)
    return special(graph, node)
