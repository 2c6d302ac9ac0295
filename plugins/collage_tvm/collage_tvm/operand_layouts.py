"""The layouts in which a contraction is offered: those that its schedule reads and writes in order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from collage_core.backend import Variant
from collage_core.formats import Format, Layout, plain
from collage_core.ir import Graph, Node, OpKind, Subgraph, op_kind
from collage_core.ir.views import input_format, is_view, output_format

__all__ = ["contraction_variants"]


def contraction_variants(subgraph: Subgraph) -> list[Variant] | None:
    """Convolutions channels-last; products plain, and in the orders in which a Transpose beside them is a
    view. None for groups without either."""
    graph = subgraph.graph
    found = [n for n in subgraph.nodes if op_kind(graph, n) == OpKind.OUT_ELEMWISE_FUSABLE]
    if not found:
        return None
    [node] = found
    out = subgraph.outputs[0]
    rank = len(graph.shape_of(out))
    if node.op_type == "Conv":
        last = (0, *range(2, rank), 1)
        return [_variant(subgraph, dict.fromkeys((node.inputs[0], out), last))]
    offered = [_variant(subgraph, layouts) for layouts in _product_layouts(graph, node, out)]
    return list(dict.fromkeys(offered))


def _product_layouts(graph: Graph, node: Node, out: str) -> list[dict[str, Layout]]:
    a, b = node.inputs[:2]
    choices = [[_plain(graph, v)] for v in (a, b, out)]
    if node.op_type == "MatMul" and len(graph.shape_of(out)) >= 3:
        beside = [_given(graph, a), _given(graph, b), _wanted(graph, out)]
        for layouts, layout in zip(choices, beside, strict=True):
            if layout is not None and layout not in layouts:
                layouts.append(layout)
    return [{a: x, b: y, out: z} for x, y, z in itertools.product(*choices)]


def _variant(subgraph: Subgraph, layouts: Mapping[str, Layout]) -> Variant:
    """Values of the output's rank lie as the output does, others plain."""
    graph, out = subgraph.graph, subgraph.outputs[0]

    def format(name: str) -> Format:
        type = graph.type_of(name)
        shape = type.static_shape
        layout = layouts.get(name) or (layouts[out] if len(shape) == len(layouts[out]) else None)
        return plain(type.dtype, shape) if layout is None else Format.of(type.dtype, shape, layout)

    return Variant(tuple(map(format, subgraph.inputs)), tuple(map(format, subgraph.outputs)))


def _plain(graph: Graph, name: str) -> Layout:
    return tuple(range(len(graph.shape_of(name))))


def _is_transpose(graph: Graph, node: Node) -> bool:
    values = (*node.inputs, *node.outputs)
    known = all(v and not graph.type_of(v).symbolic_dims for v in values)
    return node.op_type == "Transpose" and known and is_view(graph, node)


def _given(graph: Graph, name: str) -> Layout | None:
    """The layout that a value has where the Transpose that computes it is a view of a plain value."""
    producer = graph.producer(name)
    if producer is None or not _is_transpose(graph, producer):
        return None
    format = output_format(graph, producer, graph.plain_format(producer.inputs[0]))
    return None if format is None else format.layout


def _wanted(graph: Graph, name: str) -> Layout | None:
    """The layout that a value must have for the Transpose that reads it to be a view that yields a plain
    value."""
    for node in graph.consumers(name):
        if _is_transpose(graph, node):
            format = input_format(graph, node, graph.plain_format(node.outputs[0]))
            return None if format is None else format.layout
    return None
