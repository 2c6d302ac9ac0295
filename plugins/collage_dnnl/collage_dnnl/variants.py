"""Which formats oneDNN offers for a group: few that are likely to win."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import BFLOAT16, Format, Layout
from collage_core.ir import Graph, Node, Subgraph
from collage_core.ir.views import input_format, is_view, output_format
from collage_core.target import Target
from collage_dnnl.chain import Chain, has_spatial_operands
from collage_dnnl.enums import Alg
from collage_dnnl.kernels.plan import Eltwise
from collage_dnnl.quantised import parse_group
from collage_dnnl.support import REDUCTIONS
from collage_dnnl.tensor import FP32, operand_format

__all__ = ["convolved_channels", "own_variants", "variants"]

_Way = Callable[[Graph, str], Layout]
_Dtypes = tuple[str, str]
"""In which what the anchor works on is stored, and the output with what is added to it."""

_POOL_OPS = frozenset(["AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"])
_CONTRACTIONS = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])
_NORMALISATIONS = frozenset(["LayerNormalization", "LogSoftmax", "Softmax"])
_SPATIAL_OPS = frozenset(
    ["AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "LRN", "MaxPool", "Resize"]
)


def variants(subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
    """The variants offered for a group where it stands; a Refusal if it cannot be one primitive. In bfloat16
    as well, where the target allows it and the processor has units for it.
    """

    def dtypes(chain: Chain) -> list[_Dtypes]:
        return [(FP32, FP32), *(_rounded(chain) if target.multiplies_bfloat16 else [])]

    return _of_chain(
        subgraph, lambda chain: (*_own_layouts(chain), *_layouts_beside_transposes(chain)), dtypes
    )


def own_variants(subgraph: Subgraph) -> Sequence[Variant] | Refusal:
    """Those of the variants that follow from the group alone: equal for equal structural keys, whatever
    stands beside it.
    """
    return _of_chain(subgraph, _own_layouts, lambda chain: [(FP32, FP32)])


def _of_chain(
    subgraph: Subgraph,
    layouts: Callable[[Chain], Iterable[dict[str, Layout]]],
    dtypes: Callable[[Chain], Sequence[_Dtypes]],
) -> Sequence[Variant] | Refusal:
    found = parse_group(subgraph)
    if isinstance(found, Refusal):
        return found
    chain, quantisation = found
    if quantisation is not None:
        return _on_whole_numbers(subgraph, chain)
    return _offered(subgraph, chain, layouts(chain), dtypes(chain))


def _on_whole_numbers(subgraph: Subgraph, chain: Chain) -> Sequence[Variant]:
    """Images channels-last: oneDNN compiles nothing else for these. What is elementwise in either layout.
    Version 3.2 forgets zero points where it changes the layout in passing.
    """
    graph = subgraph.graph
    ways = [_plain]
    if chain.anchor is not None and chain.anchor.op_type in _SPATIAL_OPS:
        ways = [_last]
    elif chain.anchor is None:
        ways = [_last, _plain]

    def formats(names: Sequence[str], way: _Way) -> tuple[Format, ...]:
        return tuple(Format.of(graph.type_of(v).dtype, graph.shape_of(v), way(graph, v)) for v in names)

    found = (Variant(formats(subgraph.inputs, way), formats(subgraph.outputs, way)) for way in ways)
    return list(dict.fromkeys(found))


def convolved_channels(subgraph: Subgraph) -> int:
    """How many channels it convolves with each other; 0 where it convolves none."""
    graph = subgraph.graph
    for node in subgraph.nodes:
        if node.op_type in ("Conv", "ConvTranspose"):
            return graph.shape_of(node.inputs[0])[1] // int(node.attributes.get("group", 1))
    return 0


def _offered(
    subgraph: Subgraph,
    chain: Chain,
    choices: Iterable[dict[str, Layout]],
    dtypes: Sequence[_Dtypes],
) -> Sequence[Variant]:
    offered = [_variant(subgraph, chain, layouts, of) for layouts in choices for of in dtypes]
    return list(dict.fromkeys(v for v in offered if v is not None))


def _rounded(chain: Chain) -> list[_Dtypes]:
    """All in bfloat16; and where the library changes from one to the other in passing, that as well."""
    anchor = chain.anchor
    if any(isinstance(s, Eltwise) and s.alg == Alg.ELTWISE_ROUND for s in chain.steps):
        return []
    if anchor is not None:
        data = anchor.inputs if anchor.op_type == "Concat" else anchor.inputs[:1]
        if any(chain.graph.is_constant(v) for v in data):
            return []  # constants are stored in fp32, but for weights
        if anchor.op_type in _CONTRACTIONS:
            return [(BFLOAT16, BFLOAT16), (BFLOAT16, FP32)]
        if anchor.op_type in _NORMALISATIONS:
            return [(BFLOAT16, BFLOAT16), (FP32, BFLOAT16)]
    return [(BFLOAT16, BFLOAT16)]


def _plain(graph: Graph, name: str) -> Layout:
    return tuple(range(len(graph.shape_of(name))))


def _last(graph: Graph, name: str) -> Layout:
    rank = len(graph.shape_of(name))
    return (0, *range(2, rank), 1) if rank >= 3 else tuple(range(rank))


def _own_layouts(chain: Chain) -> Iterable[dict[str, Layout]]:
    """For every variant the layouts of the anchor's data inputs and of the output; inputs left out are plain
    or follow the output. Only the group itself is looked at.
    """
    graph, out, anchor = chain.graph, chain.output, chain.anchor
    if anchor is None:
        yield {chain.source: _plain(graph, chain.source), out: _plain(graph, out)}
        if len(graph.shape_of(out)) >= 3:
            yield {chain.source: _last(graph, chain.source), out: _last(graph, out)}
        return
    op, x = anchor.op_type, anchor.inputs[0]
    if op in ("MatMul", "Gemm"):
        yield {v: _plain(graph, v) for v in (*anchor.inputs[:2], out)}
        return
    data = [v for v in anchor.inputs if v] if op == "Concat" else [x]
    if op in _SPATIAL_OPS:
        yield {x: _last(graph, x), out: _last(graph, out)}
        # Plain pooling of version 3.2 reads wrong elements of operands that vary over spatial dimensions.
        if op not in _POOL_OPS or not has_spatial_operands(graph, anchor, chain.steps):
            yield {x: _plain(graph, x), out: _plain(graph, out)}
        return
    yield {**{v: _plain(graph, v) for v in data}, out: _plain(graph, out)}
    keeps_rank = len(graph.shape_of(out)) == len(graph.shape_of(x))
    if op != "LayerNormalization" and len(graph.shape_of(x)) >= 3 and (op not in REDUCTIONS or keeps_rank):
        yield {**{v: _last(graph, v) for v in data}, out: _last(graph, out)}


def _layouts_beside_transposes(chain: Chain) -> Iterable[dict[str, Layout]]:
    """As `_own_layouts`: those in which a Transpose beside the group is a view."""
    graph, out, anchor = chain.graph, chain.output, chain.anchor
    if anchor is not None and anchor.op_type == "MatMul":
        yield from _matmul_layouts(chain, anchor)
    elif (anchor is None or anchor.op_type in ("Softmax", "LogSoftmax")) and len(graph.shape_of(out)) == 4:
        x = chain.source if anchor is None else anchor.inputs[0]
        for order in _transposed_neighbours(graph, chain):
            yield {x: order, out: order}


def _transposed_neighbours(graph: Graph, chain: Chain) -> Iterable[Layout]:
    """Layouts that a Transpose before or after the group gives its values for free."""
    orders = [_given(graph, chain.source), _wanted(graph, chain.output)]
    if chain.anchor is not None:
        orders.append(_given(graph, chain.anchor.inputs[0]))
    plain = _plain(graph, chain.output)
    return list(dict.fromkeys(o for o in orders if o is not None and o != plain and len(o) == len(plain)))


def _matmul_layouts(chain: Chain, anchor: Node) -> Iterable[dict[str, Layout]]:
    """All plain, and for batched products the orders in which a Transpose beside it is a view."""
    graph, out = chain.graph, chain.output
    a, b = anchor.inputs[:2]
    choices = [[_plain(graph, v)] for v in (a, b, out)]
    if len(graph.shape_of(out)) >= 3:
        found = [_given(graph, a), _given(graph, b), _wanted(graph, out)]
        for orders, order in zip(choices, found, strict=True):
            if order is not None and order not in orders:
                orders.append(order)
    for of_a, of_b, of_out in itertools.product(*choices):
        yield {a: of_a, b: of_b, out: of_out}


def _is_transpose(graph: Graph, node: Node) -> bool:
    """Whether it is a Transpose of a computed value, of known shapes."""
    if node.op_type != "Transpose" or not all((*node.inputs, *node.outputs)) or not is_view(graph, node):
        return False
    rank = len(graph.type_of(node.inputs[0]).shape)
    if sorted(node.attributes.get("perm", range(rank))) != list(range(rank)):
        return False
    return not any(graph.type_of(v).symbolic_dims for v in (node.inputs[0], node.outputs[0]))


def _given(graph: Graph, name: str) -> Layout | None:
    """The layout that a value has if the Transpose that computes it is a view of a plain value."""
    producer = graph.producer(name)
    if producer is None or not _is_transpose(graph, producer):
        return None
    x = producer.inputs[0]
    given = Format(graph.type_of(x).dtype, _given(graph, x) or _plain(graph, x))
    format = output_format(graph, producer, given)
    return None if format is None else format.layout


def _wanted(graph: Graph, name: str) -> Layout | None:
    """The layout that a value must have for the Transpose that reads it to be a view that yields a plain
    value.
    """
    for node in graph.consumers(name):
        if _is_transpose(graph, node):
            format = input_format(graph, node, graph.plain_format(node.outputs[0]))
            return None if format is None else format.layout
    return None


def _variant(subgraph: Subgraph, chain: Chain, layouts: dict[str, Layout], dtypes: _Dtypes) -> Variant | None:
    """Formats from layouts; None where one input would need two formats."""
    of_data, of_output = dtypes
    graph = subgraph.graph
    formats: dict[str, Format] = {}
    # Constants are stored plain where they are what is worked on, but for a Concat's, which are put in order.
    plain_data = set(layouts) if chain.anchor is None or chain.anchor.op_type != "Concat" else set()

    def put(name: str, format: Format) -> bool:
        if graph.is_constant(name):
            return name not in plain_data or format.is_plain
        return formats.setdefault(name, format) == format

    def of(name: str, layout: Layout, dtype: str = FP32) -> Format:
        return Format.of(dtype, graph.shape_of(name), layout)

    named = {v: of(v, layout, of_output if v == chain.output else of_data) for v, layout in layouts.items()}
    ok = all(put(v, f) for v, f in named.items())
    if chain.anchor is not None:
        for v in chain.anchor.inputs:
            if v and v not in named:
                is_weights = chain.anchor.op_type in _CONTRACTIONS and v == chain.anchor.inputs[1]
                ok = ok and put(v, of(v, _plain(graph, v), of_data if is_weights else FP32))
    out_layout = layouts[chain.output]
    addends = list(chain.operands)
    if chain.anchor is not None and chain.anchor.op_type == "Gemm":
        addends += [v for v in chain.anchor.inputs[2:3] if v]
    for v in addends:
        ok = ok and put(v, operand_format(of_output, graph.shape_of(v), out_layout))
    if not ok:
        return None
    return Variant(tuple(formats[v] for v in subgraph.inputs), tuple(formats[v] for v in subgraph.outputs))
