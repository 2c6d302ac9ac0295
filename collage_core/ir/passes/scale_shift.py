"""Scales and shifts per channel, batch normalisation at inference among them: a convolution or normalisation
before them can take both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from collage_core.formats import Array
from collage_core.ir.graph import Graph
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.types import Node, TensorType, Value, ValueKind

__all__ = ["FOLD_SCALE_SHIFT"]

_ScaleShift = tuple[Array, Array]
"""What each channel is multiplied by, and what is added then: float64, (channels,)."""


def _fold(graph: Graph) -> Graph:
    nodes: dict[int, Node] = {n.id: n for n in graph.nodes}
    constants, values = dict(graph.constants), dict(graph.values)
    taken_by: dict[str, Node] = {}  # by value: the node before, as it is by now, that took what computed it
    for node in graph.nodes:
        for v in node.inputs:
            host = taken_by.get(v) or graph.producer(v)
            if host is None or not _can_take(graph, host, v, constants):
                continue
            found = _scale_shift(graph, node, v)
            if found is None:
                continue
            fold = _norm_with if _is_norm(host) else _conv_with
            with np.errstate(over="ignore"):
                made = fold(host, found, constants)
            if not all(np.isfinite(data).all() for data in made.values()):
                continue  # beyond what the weights' type can hold, which the activations need not have been
            names = {i: f"{node.name}/folded_{what}" for i, what in ((1, "weight"), (2, "bias"))}
            for i, name in names.items():
                constants[name] = made[i]
                values[name] = Value(name, TensorType(made[i].dtype.name, made[i].shape), ValueKind.CONSTANT)
            inputs = (host.inputs[0], names[1], names[2], *host.inputs[3:])
            host = dataclasses.replace(host, inputs=inputs, outputs=(node.outputs[0],))
            nodes[host.id] = taken_by[node.outputs[0]] = host
            del nodes[node.id]
            break
    return without_unused_values(graph.replace(constants=constants, values=values), list(nodes.values()))


def _is_norm(node: Node) -> bool:
    return node.op_type == "BatchNormalization"


def _can_take(graph: Graph, host: Node, output: str, constants: Mapping[str, Array]) -> bool:
    """Whether nobody else sees `output`, and all that `host` computes it from is constant but its first
    input, and no whole numbers: those would be lost.
    """
    return (
        host.op_type in ("Conv", "ConvTranspose", "BatchNormalization")
        and not host.domain
        and (not _is_norm(host) or _is_inference_norm(host))
        and all(v in constants and v not in graph.dequantised for v in host.inputs[1:] if v)
        and len(graph.consumers(output)) == 1
        and not graph.is_output(output)
    )


def _is_inference_norm(node: Node) -> bool:
    return not node.attributes.get("training_mode", 0) and not any(node.outputs[1:])


def _scale_shift(graph: Graph, node: Node, read: str) -> _ScaleShift | None:
    """What the node does to the channels (axis 1) of `read`, if that is all it does."""
    if node.domain:
        return None
    type = graph.type_of(read)
    if graph.type_of(node.outputs[0]) != type or len(type.shape) < 2 or not isinstance(type.shape[1], int):
        return None
    rank, channels = len(type.shape), type.shape[1]
    if _is_norm(node):
        if not _is_inference_norm(node) or not all(graph.is_constant(v) for v in node.inputs[1:]):
            return None
        factor, summand = _norm_scale_shift(node, graph.constants)
        return (factor, summand) if len(factor) == channels else None
    if node.op_type not in ("Add", "Sub", "Mul", "Div"):
        return None
    first = node.inputs[0] == read
    other = node.inputs[1 if first else 0]
    if not graph.is_constant(other):
        return None
    data = graph.constants[other]
    shape = (1,) * (rank - data.ndim) + data.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    operand = np.broadcast_to(data.astype(np.float64).reshape(-1), channels)
    one, zero = np.ones(channels), np.zeros(channels)
    match node.op_type:
        case "Mul":
            return operand, zero
        case "Add":
            return one, operand
        case "Sub":
            return (one, -operand) if first else (-one, operand)
        case _:
            return (1.0 / operand, zero) if first and operand.all() else None


def _norm_scale_shift(node: Node, constants: Mapping[str, Array]) -> _ScaleShift:
    scale, shift, mean, variance = (constants[v].astype(np.float64) for v in node.inputs[1:5])
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return factor, shift - mean * factor


def _norm_with(norm: Node, found: _ScaleShift, constants: Mapping[str, Array]) -> dict[int, Array]:
    """The normalisation's scale and shift, inputs 1 and 2, with a scale and shift applied to its output."""
    scale, shift = (constants[v] for v in norm.inputs[1:3])
    factor, summand = found
    return {1: (scale * factor).astype(scale.dtype), 2: (shift * factor + summand).astype(shift.dtype)}


def _conv_with(conv: Node, found: _ScaleShift, constants: Mapping[str, Array]) -> dict[int, Array]:
    """The convolution's weight and bias, inputs 1 and 2, with a scale and shift applied to its output."""
    weight = constants[conv.inputs[1]]
    factor, summand = found
    bias = constants[conv.inputs[2]] if len(conv.inputs) > 2 and conv.inputs[2] else np.zeros(len(factor))
    scaled = _scale_output_channels(conv, weight.astype(np.float64), factor)
    return {1: scaled.astype(weight.dtype), 2: (bias * factor + summand).astype(weight.dtype)}


def _scale_output_channels(conv: Node, weight: Array, factor: Array) -> Array:
    if conv.op_type == "Conv":
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    groups = conv.attributes.get("group", 1)  # weights are (C_in, C_out / groups, ...)
    per_group = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return (per_group * factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)


FOLD_SCALE_SHIFT = Pass(
    "fold-scale-shift",
    "fold scales and shifts per channel (batch normalisation, Mul, Add, Sub, Div by constants) into the "
    "convolution or normalisation before them",
    _fold,
)
