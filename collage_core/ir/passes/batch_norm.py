"""Batch normalisation at inference is a scale and a shift per channel: a convolution before it can take
both.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from collage_core.formats import Array
from collage_core.ir.graph import Graph
from collage_core.ir.passes.base import Pass
from collage_core.ir.passes.cleaning import without_unused_values
from collage_core.ir.types import Node, TensorType, Value, ValueKind

__all__ = ["FOLD_BATCH_NORM"]


def _fold(graph: Graph) -> Graph:
    nodes: dict[int, Node] = {n.id: n for n in graph.nodes}
    constants, values = dict(graph.constants), dict(graph.values)
    for norm in graph.nodes:
        conv = graph.producer(norm.inputs[0]) if _is_inference_norm(graph, norm) else None
        if conv is None or not _can_take(graph, conv):
            continue
        scale, shift, mean, variance = (constants[v].astype(np.float64) for v in norm.inputs[1:5])
        factor = scale / np.sqrt(variance + norm.attributes.get("epsilon", 1e-5))
        weight = constants[conv.inputs[1]]
        bias = constants[conv.inputs[2]] if len(conv.inputs) > 2 and conv.inputs[2] else np.zeros(len(factor))
        new_weight = (_scale_output_channels(conv, weight.astype(np.float64), factor)).astype(weight.dtype)
        new_bias = ((bias - mean) * factor + shift).astype(weight.dtype)
        names = (f"{norm.name}/folded_weight", f"{norm.name}/folded_bias")
        for name, data in zip(names, (new_weight, new_bias), strict=True):
            constants[name] = data
            values[name] = Value(name, TensorType(data.dtype.name, data.shape), ValueKind.CONSTANT)
        nodes[conv.id] = dataclasses.replace(
            conv, inputs=(conv.inputs[0], *names), outputs=(norm.outputs[0],)
        )
        del nodes[norm.id]
    return without_unused_values(graph.replace(constants=constants, values=values), list(nodes.values()))


def _is_inference_norm(graph: Graph, node: Node) -> bool:
    return (
        node.op_type == "BatchNormalization"
        and not node.domain
        and not node.attributes.get("training_mode", 0)
        and not any(node.outputs[1:])
        and all(graph.is_constant(v) for v in node.inputs[1:5])
    )


def _can_take(graph: Graph, node: Node) -> bool:
    return (
        node.op_type in ("Conv", "ConvTranspose")
        and not node.domain
        and all(graph.is_constant(v) for v in node.inputs[1:] if v)
        and len(graph.consumers(node.outputs[0])) == 1
        and not graph.is_output(node.outputs[0])
    )


def _scale_output_channels(conv: Node, weight: Array, factor: Array) -> Array:
    if conv.op_type == "Conv":
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    groups = conv.attributes.get("group", 1)  # weights are (C_in, C_out / groups, ...)
    per_group = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return (per_group * factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)


FOLD_BATCH_NORM = Pass("fold-batch-norm", "fold batch normalisation into the convolution before it", _fold)
