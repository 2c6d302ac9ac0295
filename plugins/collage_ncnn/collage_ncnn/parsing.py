"""A group of ONNX operators read as one convolution of ncnn's. Loads nothing."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Operator, Subgraph
from collage_ncnn.activations import ACTIVATION_OPS
from collage_ncnn.convolution import NO_ACTIVATION, Convolution, Image

__all__ = ["parse"]

_TOGETHER = 4
"""Channels that ncnn puts beside each other on any processor, if their number is a multiple of these. One at
a time it writes beyond the last, and takes addresses for aligned that are not.
"""


def parse(subgraph: Subgraph) -> Convolution | Refusal:
    """Read a group as a convolution and its activation; the Refusal names the node at which that fails."""
    graph, (node, *after) = subgraph.graph, subgraph.nodes
    if node.domain or node.op_type != "Conv":
        return Refusal(f"{node.op_type} is no convolution", node.name)
    if (wrong := _refusal(graph, node)) is not None:
        return wrong
    result, activation = node.outputs[0], NO_ACTIVATION
    if after:
        follower = after[0]
        is_activation = not follower.domain and follower.op_type in ACTIVATION_OPS
        if len(after) > 1 or not is_activation or follower.inputs[0] != result:
            return Refusal("only an activation is fused to a convolution", after[-1].name)
        found = ACTIVATION_OPS[follower.op_type](graph, follower)
        if isinstance(found, Refusal):
            return found
        result, activation = follower.outputs[0], found
    if subgraph.outputs != (result,):
        return Refusal("nothing, or somebody else, reads what the group computes", node.name)
    attributes = Operator(graph, node).attrs
    pads = attributes["pads"]
    return Convolution(
        has_bias=len(node.inputs) > 2 and bool(node.inputs[2]),
        input=Image(*graph.shape_of(node.inputs[0])[1:]),
        output=Image(*graph.shape_of(node.outputs[0])[1:]),
        groups=int(attributes["group"]),
        kernel=_pair(graph.shape_of(node.inputs[1])[2:]),
        strides=_pair(attributes["strides"]),
        dilations=_pair(attributes["dilations"]),
        begin=_pair(pads[:2]),
        end=_pair(pads[2:]),
        activation=activation,
    )


def _refusal(graph: Graph, node: Node) -> Refusal | None:
    """Why ncnn cannot run the convolution `node`, or None if it can."""
    for v in (*filter(None, node.inputs), node.outputs[0]):
        type = graph.type_of(v)
        if not type.dtype:
            return Refusal(f"the type of {v!r} is not known", node.name)
        if type.dtype != "float32":
            return Refusal(f"{type.dtype} is not supported, only float32", node.name)
        if type.symbolic_dims:
            return Refusal(f"dimension {type.symbolic_dims[0]!r} is not known", node.name)
        if type.size == 0:
            return Refusal("a tensor has no elements", node.name)
    x, weights, y = (graph.shape_of(v) for v in (*node.inputs[:2], node.outputs[0]))
    if not len(x) == len(weights) == len(y) == 4:
        return Refusal("only two spatial dimensions are supported", node.name)
    if graph.is_constant(node.inputs[0]):
        return Refusal("what is convolved is constant", node.name)
    if not all(graph.is_constant(v) for v in node.inputs[1:] if v):
        return Refusal("weights or bias are not constant", node.name)
    attributes = Operator(graph, node).attrs
    groups, pads = int(attributes["group"]), attributes["pads"]
    strides, dilations = attributes["strides"], attributes["dilations"]
    if (len(pads), len(strides), len(dilations)) != (4, 2, 2) or min((*strides, *dilations)) < 1:
        return Refusal("pads, strides or dilations are none of two spatial dimensions", node.name)
    if min(pads) < 0:
        return Refusal("padding is negative", node.name)
    if groups not in (1, x[1]) or (groups > 1 and weights[0] != x[1]):
        return Refusal("groups of channels; only all together or each by itself", node.name)
    if x[1] % _TOGETHER or y[1] % _TOGETHER:
        return Refusal(f"channels that are no multiple of {_TOGETHER}", node.name)
    # The library goes by the attributes, whatever the memory that it is given holds.
    reach = [(k - 1) * d + 1 for k, d in zip(weights[2:], dilations, strict=True)]
    sides = [(x[2 + i] + pads[i] + pads[2 + i] - reach[i]) // strides[i] + 1 for i in range(2)]
    bias = graph.shape_of(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else weights[:1]
    if (
        y != (x[0], weights[0], *sides)
        or weights[1] * groups != x[1]
        or bias != weights[:1]
        or tuple(node.attributes.get("kernel_shape", weights[2:])) != weights[2:]
    ):
        return Refusal("input, weights, bias and output do not fit each other", node.name)
    return None


def _pair(values: Sequence[int]) -> tuple[int, int]:
    height, width = values
    return int(height), int(width)
