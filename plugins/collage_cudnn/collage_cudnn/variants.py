"""Which formats cuDNN offers for a group: few that are likely to win. Loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from collage_cuda import NAME

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Format, Layout
from collage_core.ir import Graph, Subgraph
from collage_core.target import Target
from collage_cudnn.attention import LAYOUTS, Attention, parse_attention
from collage_cudnn.chain import TOO_MANY_WAYS, Chain, parse, pointwise_place
from collage_cudnn.place import operand_format

__all__ = ["variants"]

_ROUNDED = ("bfloat16", "float16")
_IMAGE_OPS = frozenset(
    ["AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"]
)
_IN_ORDER = frozenset(["Gemm", "LayerNormalization", "MatMul"])
_REDUCED = "Reduce"


def variants(subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
    """The variants offered for a group; a Refusal if it cannot be one kernel. Images channels-last and, where
    nothing is rounded, row-major; in each of the target's half precisions as well.
    """
    if NAME not in target.accelerators:
        return Refusal(f"device {NAME!r} does not take part")
    attention = parse_attention(subgraph)
    if isinstance(attention, Attention):
        return _attention_variants(subgraph, attention, target)
    chain = parse(subgraph) if attention is None else attention
    if isinstance(chain, Refusal):
        return chain
    own = subgraph.graph.type_of(chain.output).dtype
    rounded = [d for d in _ROUNDED if own == "float32" and d in target.precisions]
    layouts = list(_layouts(chain))
    if chain.anchor is None:
        layouts = [layout for layout in layouts if pointwise_place(chain, layout) is not None]
        if not layouts:
            return Refusal(TOO_MANY_WAYS, subgraph.nodes[0].name)
    found = []
    for layout in layouts:
        for dtype in (own, *rounded):
            is_image = chain.anchor is not None and chain.anchor.op_type in ("Conv", "ConvTranspose")
            if dtype == "float32" or layout != _plain(chain.shape) or not is_image:
                found.append(_variant(subgraph, chain, layout, dtype))
    offered = list(dict.fromkeys(v for v in found if v is not None))
    return offered or Refusal("an input would have to lie in two orders at once", subgraph.nodes[0].name)


def _attention_variants(
    subgraph: Subgraph, attention: Attention, target: Target
) -> Sequence[Variant] | Refusal:
    own = subgraph.graph.type_of(attention.output).dtype
    dtypes = [own] if own in _ROUNDED else [d for d in _ROUNDED if d in target.precisions]
    if not dtypes:
        return Refusal("cuDNN has attention in half precisions only", subgraph.nodes[0].name)

    def of(name: str, dtype: str, layouts: tuple[Layout, Layout]) -> Format:
        layout = layouts[1] if name == attention.keys else layouts[0]
        return Format.of(dtype, subgraph.graph.shape_of(name), layout, NAME)

    found = (
        Variant(
            tuple(of(v, dtype, layouts) for v in subgraph.inputs),
            tuple(of(v, dtype, layouts) for v in subgraph.outputs),
        )
        for layouts in LAYOUTS
        for dtype in dtypes
    )
    return list(dict.fromkeys(found))


def _plain(shape: Sequence[int]) -> Layout:
    return tuple(range(len(shape)))


def _last(shape: Sequence[int]) -> Layout:
    rank = len(shape)
    return (0, *range(2, rank), 1) if rank >= 3 else tuple(range(rank))


def _layouts(chain: Chain) -> Iterable[Layout]:
    """Of the output. What is no image is channels-last as well, where it may stand beside images."""
    op = "" if chain.anchor is None else chain.anchor.op_type
    if op in _IMAGE_OPS:
        return [_last(chain.shape), _plain(chain.shape)]
    if op in _IN_ORDER or op.startswith(_REDUCED) or len(chain.shape) not in (4, 5):
        return [_plain(chain.shape)]
    return [_plain(chain.shape), _last(chain.shape)]


def _variant(subgraph: Subgraph, chain: Chain, layout: Layout, dtype: str) -> Variant | None:
    """None where one input would need two formats."""
    graph, anchor = subgraph.graph, chain.anchor
    formats: dict[str, Format] = {}

    def put(name: str, format: Format) -> bool:
        return graph.is_constant(name) or formats.setdefault(name, format) == format

    fits = put(chain.output, Format.of(dtype, chain.shape, layout, NAME))
    if anchor is not None:
        is_last = layout != _plain(chain.shape)
        read = anchor.inputs[:1] if anchor.op_type.startswith((_REDUCED, "Global")) else anchor.inputs
        for v in (v for v in read if v):
            fits = put(v, _anchor_format(graph, v, dtype, is_last)) and fits
    for v in chain.operands:
        fits = put(v, operand_format(dtype, graph.shape_of(v), layout, NAME)) and fits
    if not fits:
        return None
    return Variant(tuple(formats[v] for v in subgraph.inputs), tuple(formats[v] for v in subgraph.outputs))


def _anchor_format(graph: Graph, name: str, dtype: str, is_last: bool) -> Format:
    shape = graph.shape_of(name)
    return Format.of(dtype, shape, _last(shape) if is_last else _plain(shape), NAME)
