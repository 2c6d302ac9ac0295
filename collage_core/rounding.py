"""Where a placement rounds: what it stores in a narrower float type than the model does."""

from __future__ import annotations

from collections.abc import Iterator

from collage_core.backend import Variant, rounded_to
from collage_core.formats import Format
from collage_core.ir import Graph, Operator, OpKind, Subgraph
from collage_core.placement import Placement

__all__ = ["Site", "converted_site", "rounded_sites", "rounding_sites", "sites_of"]

Site = tuple[str, str]
"""A value or a constant, and the type in which it is stored, rounded."""


def rounded_sites(subgraph: Subgraph, variant: Variant) -> frozenset[Site]:
    """Where a group rounds by itself: what it hands on, and the operands of the products within it. What it
    reads has been rounded by whoever produced or converted it.

    Of what lies between its products a kernel may round more or less than this says, as its library sees fit.
    """
    graph = subgraph.graph
    found = {
        (v, f.dtype)
        for v, f in zip(subgraph.outputs, variant.outputs, strict=True)
        if f.dtype != graph.type_of(v).dtype
    }
    read = frozenset(subgraph.inputs)
    for dtype in rounded_to(subgraph, variant):
        for v in _operands_of_products(subgraph):
            if v not in read and _is_rounded_by(graph, v, dtype):
                found.add((v, dtype))
    return frozenset(found)


def rounding_sites(subgraph: Subgraph, variant: Variant) -> frozenset[Site]:
    """Where a group rounds, or has what it reads rounded by others."""
    read = {
        (v, f.dtype)
        for v, f in zip(subgraph.inputs, variant.inputs, strict=True)
        if f.dtype != subgraph.graph.type_of(v).dtype
    }
    return rounded_sites(subgraph, variant) | read


def converted_site(graph: Graph, value: str, source: Format, destination: Format) -> Site | None:
    """Where a conversion rounds; None where it does not."""
    own = graph.type_of(value).dtype
    return (value, destination.dtype) if source.dtype == own != destination.dtype else None


def sites_of(graph: Graph, placement: Placement) -> frozenset[Site]:
    """Where a placement rounds; each place once, however often it does so there."""
    groups = (rounded_sites(Subgraph(graph, g.nodes), g.variant) for g in placement.groups)
    converted = (converted_site(graph, c.value, c.source, c.destination) for c in placement.conversions)
    return frozenset().union(*groups, (site for site in converted if site is not None))


def _operands_of_products(subgraph: Subgraph) -> Iterator[str]:
    for node in subgraph.nodes:
        if Operator(subgraph.graph, node).kind is OpKind.OUT_ELEMWISE_FUSABLE:
            yield from (v for v in node.inputs[:2] if v)


def _is_rounded_by(graph: Graph, value: str, dtype: str) -> bool:
    own = graph.type_of(value).dtype
    return own in _BITS and _BITS[own] > _BITS[dtype]


_BITS = {"bfloat16": 16, "float16": 16, "float32": 32, "float64": 64}
