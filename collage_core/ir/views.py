"""Operators that move no byte: given the right formats, their output is their input's buffer, seen
differently.
"""

from __future__ import annotations

import math

import numpy as np

from collage_core.formats import Array, Format, view
from collage_core.ir.graph import Graph
from collage_core.ir.types import Node

__all__ = ["VIEW_OPS", "input_format", "is_view", "output_format", "transposed_for", "transposed_from"]

VIEW_OPS = frozenset(["Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"])


def is_view(graph: Graph, node: Node) -> bool:
    """Whether the node only rearranges the dimensions of a computed value, in a way known before it runs."""
    if node.domain or node.op_type not in VIEW_OPS:
        return False
    data, *parameters = node.inputs
    return not graph.is_constant(data) and all(graph.is_constant(v) for v in parameters if v)


def output_format(graph: Graph, node: Node, source: Format) -> Format | None:
    """The format that the output has when it shares the bytes of an input stored as `source`; None if there
    is none.
    """
    shape_in, shape_out = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    if node.op_type == "Transpose":
        return _format_of(_stored(shape_in, source).transpose(_permutation(graph, node)), source)
    return _reshaped(shape_in, shape_out, source)


def input_format(graph: Graph, node: Node, destination: Format) -> Format | None:
    """The format that the input must have for the output to be stored as `destination` without a copy; None
    if there is none.
    """
    shape_in, shape_out = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    if node.op_type == "Transpose":
        inverse = np.argsort(_permutation(graph, node))
        return _format_of(_stored(shape_out, destination).transpose(inverse), destination)
    return _reshaped(shape_out, shape_in, destination)


def transposed_from(graph: Graph, name: str) -> Format | None:
    """The format that a value has if the Transposes that lead to it are views of a plain value; None where
    none leads to it.
    """
    producer = graph.producer(name)
    if producer is None or not _transposes(graph, producer):
        return None
    x = producer.inputs[0]
    return output_format(graph, producer, transposed_from(graph, x) or graph.plain_format(x))


def transposed_for(graph: Graph, name: str) -> Format | None:
    """The format in which a value must lie for a Transpose that reads it to be a view that yields a plain
    one; None where none reads it.
    """
    for node in graph.consumers(name):
        if _transposes(graph, node):
            return input_format(graph, node, graph.plain_format(node.outputs[0]))
    return None


def _transposes(graph: Graph, node: Node) -> bool:
    """Whether it is a Transpose of a computed value whose types are known."""
    if node.op_type != "Transpose" or not is_view(graph, node):
        return False
    types = [graph.type_of(v) for v in (node.inputs[0], node.outputs[0])]
    rank = len(types[0].shape)
    known = all(t.dtype and not t.symbolic_dims for t in types)
    return known and sorted(node.attributes.get("perm", range(rank))) == list(range(rank))


def _permutation(graph: Graph, node: Node) -> tuple[int, ...]:
    rank = len(graph.shape_of(node.inputs[0]))
    return tuple(node.attributes.get("perm", tuple(reversed(range(rank)))))


def _stored(shape: tuple[int, ...], format: Format) -> Array:
    """An array of that shape and format whose memory is reserved but never touched."""
    return view(np.empty(format.size_bytes(shape), np.uint8), shape, format)


def _reshaped(shape: tuple[int, ...], new_shape: tuple[int, ...], format: Format) -> Format | None:
    stored = _stored(shape, format)
    if stored.size == 0 or stored.size != math.prod(new_shape):
        return format if shape == new_shape else None
    reshaped = stored.reshape(new_shape)  # numpy makes a view exactly where one is possible
    return _format_of(reshaped, format) if np.shares_memory(stored, reshaped) else None


def _format_of(array: Array, like: Format) -> Format | None:
    """The format of a strided array if it is dense in some order of its dimensions."""
    order = sorted(range(array.ndim), key=lambda d: -array.strides[d] if array.shape[d] != 1 else 0)
    moving = [d for d in order if array.shape[d] != 1]
    ones = [d for d in order if array.shape[d] == 1]
    stride = array.itemsize
    for d in reversed(moving):
        if array.strides[d] != stride:
            return None
        stride *= array.shape[d]
    return Format.of(like.dtype, array.shape, (*ones, *moving), like.device)
