"""Which formats MKL offers for a product: plain, and those in which a Transpose beside it is a view, as GEMM
reads and writes either order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Format
from collage_core.ir import Graph, Subgraph
from collage_core.ir.views import transposed_for, transposed_from
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
    choices = (
        (a, transposed_from(graph, a)),
        (b, transposed_from(graph, b)),
        (out, transposed_for(graph, out)),
    )
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
