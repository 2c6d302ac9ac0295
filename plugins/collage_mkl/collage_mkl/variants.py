"""Which formats MKL offers for a product: plain, and those in which a Transpose beside it is a view, as GEMM
reads and writes either order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Format
from collage_core.ir import Graph, Node, Subgraph
from collage_core.ir.views import input_format, is_view, output_format
from collage_mkl.planning import plan
from collage_mkl.support import addend, refusal

__all__ = ["variants"]


def variants(subgraph: Subgraph) -> Sequence[Variant] | Refusal:
    """The variants offered for a group where it stands; a Refusal if it is not one product."""
    graph, node = subgraph.graph, subgraph.nodes[0]
    if len(subgraph.nodes) > 1:
        return Refusal("MKL fuses nothing to a product", subgraph.nodes[1].name)
    if (wrong := refusal(graph, node)) is not None:
        return wrong
    if not subgraph.outputs:
        return Refusal("nothing reads what the group computes", node.name)
    a, b, out = *node.inputs[:2], node.outputs[0]
    choices = ((a, _given(graph, a)), (b, _given(graph, b)), (out, _wanted(graph, out)))
    offered = []
    for of_a, of_b, of_out in itertools.product(*(_formats(graph, v, other) for v, other in choices)):
        if a == b and of_a != of_b:
            continue
        formats = {a: of_a, b: of_b}
        for v in filter(None, node.inputs[2:]):
            like_out = v == addend(node) and graph.type_of(v) == graph.type_of(out)
            formats.setdefault(v, of_out if like_out else graph.plain_format(v))
        variant = Variant(tuple(formats[v] for v in subgraph.inputs), (of_out,))
        if not isinstance(plan(subgraph, variant), Refusal):
            offered.append(variant)
    return list(dict.fromkeys(offered))


def _formats(graph: Graph, name: str, other: Format | None) -> list[Format]:
    return [graph.plain_format(name), *([] if other is None else [other])]


def _transposes(graph: Graph, node: Node) -> bool:
    """Whether it is a Transpose of a computed value whose types are known."""
    if node.op_type != "Transpose" or not is_view(graph, node):
        return False
    types = [graph.type_of(v) for v in (node.inputs[0], node.outputs[0])]
    rank = len(types[0].shape)
    perm = node.attributes.get("perm", range(rank))
    return sorted(perm) == list(range(rank)) and not any(not t.dtype or t.symbolic_dims for t in types)


def _given(graph: Graph, name: str) -> Format | None:
    """The format that a value has if the Transposes that lead to it are views of a plain value."""
    producer = graph.producer(name)
    if producer is None or not _transposes(graph, producer):
        return None
    x = producer.inputs[0]
    return output_format(graph, producer, _given(graph, x) or graph.plain_format(x))


def _wanted(graph: Graph, name: str) -> Format | None:
    """The format in which a value must lie for a Transpose that reads it to be a view that yields a plain
    one.
    """
    for node in graph.consumers(name):
        if _transposes(graph, node):
            return input_format(graph, node, graph.plain_format(node.outputs[0]))
    return None
