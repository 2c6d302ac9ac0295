"""Which formats cuBLASLt offers for a product: plain ones on the device, and those in which a Transpose
beside it is a view, as the library reads and writes either order. Loads nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from collage_cuda import NAME

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Format
from collage_core.ir import Graph, Subgraph
from collage_core.ir.views import transposed_for, transposed_from
from collage_core.target import Target
from collage_cublas.chain import Chain, parse
from collage_cublas.planning import plan
from collage_cublas.product import NARROW

__all__ = ["variants"]


def variants(subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
    """The variants offered for a group where it stands; a Refusal if it is not one product."""
    if NAME not in target.accelerators:
        return Refusal(f"device {NAME!r} does not take part", subgraph.nodes[0].name)
    chain = parse(subgraph)
    if isinstance(chain, Refusal):
        return chain
    graph = chain.graph
    ends = (
        (chain.left, transposed_from(graph, chain.left)),
        (chain.right, transposed_from(graph, chain.right)),
    )
    choices = [
        _formats(graph, v, other) for v, other in (*ends, (chain.output, transposed_for(graph, chain.output)))
    ]
    offered: list[Variant] = []
    refused = Refusal("no layout of its values suits the library", chain.anchor.name)
    for layouts in itertools.product(*choices):
        for dtypes in _dtypes(chain, target):
            variant = _variant(subgraph, chain, layouts, dtypes)
            found = None if variant is None else plan(subgraph, variant)
            if isinstance(found, Refusal):
                refused = found
            elif variant is not None:
                offered.append(variant)
    return list(dict.fromkeys(offered)) or refused


def _dtypes(chain: Chain, target: Target) -> list[tuple[str, str]]:
    """In which factors, and all else, are stored: as they are, or rounded where the target allows it."""
    own = chain.graph.type_of(chain.output).dtype
    rounded = [t for t in NARROW if own == "float32" and t in target.precisions]
    return [(own, own), *((t, out) for t in rounded for out in (t, own))]


def _variant(
    subgraph: Subgraph, chain: Chain, layouts: tuple[Format, ...], dtypes: tuple[str, str]
) -> Variant | None:
    """None where one value would need two formats."""
    graph, (of_left, of_right, of_out) = chain.graph, layouts
    of_factor, of_rest = dtypes
    formats: dict[str, Format] = {}
    asked = [(chain.left, of_left, of_factor), (chain.right, of_right, of_factor)]
    for addend in chain.addends:
        like_out = graph.type_of(addend.name) == graph.type_of(chain.output)
        asked.append((addend.name, of_out if like_out else graph.plain_format(addend.name), of_rest))
    for name, format, dtype in asked:
        stored = Format(dtype, format.layout, NAME)
        if not graph.is_constant(name) and formats.setdefault(name, stored) != stored:
            return None
    unread = [v for v in subgraph.inputs if v not in formats]  # a Gemm's C whose beta is 0
    formats |= {v: graph.plain_format(v).on(NAME) for v in unread}
    out = Format(of_rest, of_out.layout, NAME)
    return Variant(tuple(formats[v] for v in subgraph.inputs), (out,))


def _formats(graph: Graph, name: str, other: Format | None) -> list[Format]:
    """A constant's is the kernel's affair."""
    plain = graph.plain_format(name)
    return [plain] if other is None or other == plain else [plain, other]
