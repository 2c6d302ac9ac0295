"""How much of what a group reads it needs: for bounds, so never more than a kernel really has to read."""

from __future__ import annotations

import functools
import math

from collage_core.ir import Graph, Node, OpKind, Subgraph, op_kind

__all__ = ["CONVOLUTIONS", "PRODUCTS", "read_shares", "reads_all"]

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
"""What may do with fewer products than are counted."""
PRODUCTS = frozenset({"Gemm", "MatMul"})
_WINDOWS = frozenset({"AveragePool", "Conv", "LpPool", "MaxPool"})
_BODIES, _RESIZINGS = frozenset({"If", "Loop", "Scan"}), frozenset({"Resize", "Upsample"})
_LOOKUPS = frozenset(
    {"Compress", "Gather", "GatherElements", "GatherND", "GridSample", "MaxRoiPool", "RoiAlign"}
)
_PICKING = _BODIES | _RESIZINGS | _LOOKUPS | {"CenterCropPad", "EyeLike", "Shape", "Size", "Trilu"}
"""Of whose first input values decide what is read, or a body does: as little as nothing."""


def read_shares(subgraph: Subgraph) -> dict[str, float]:
    """Of each value that its nodes read, the least share of the elements that its outputs need.

    What is needed of an intermediate in part only may need nothing of what it was made from.
    """
    graph = subgraph.graph
    shares = dict.fromkeys(subgraph.outputs, 1.0)
    for node in reversed(subgraph.nodes):
        whole = [v for v in node.outputs if shares.get(v, 0.0) == 1.0]
        for i, value in enumerate(node.inputs):
            if value:
                share = _share(graph, node, i, whole) if whole else 0.0
                shares[value] = max(share, shares.get(value, 0.0))
    return shares


def reads_all(subgraph: Subgraph) -> bool:
    """Whether every operator needs each element that it reads: a Gather leaves some out, and so does a
    convolution whose stride is beyond its filter.
    """
    return all(_reads_all(subgraph.graph, n) for n in subgraph.nodes)


def _reads_all(graph: Graph, node: Node) -> bool:
    if node.op_type in _WINDOWS:
        return _share(graph, node, 0, node.outputs) == 1.0
    is_plain = op_kind(graph, node) <= OpKind.BROADCAST
    return is_plain or node.op_type in PRODUCTS | CONVOLUTIONS


def _share(graph: Graph, node: Node, position: int, whole: list[str] | tuple[str, ...]) -> float:
    """Of an input, where these outputs are needed as a whole."""
    if position == 0 and node.op_type in _WINDOWS:
        return _of_windows(graph, node)
    if node.op_type in _PICKING:
        return 0.0 if position == 0 or node.op_type in _BODIES | _RESIZINGS else 1.0
    if op_kind(graph, node) in (OpKind.INJECTIVE, OpKind.TUPLE) and position == 0:
        if node.op_type == "Pad":  # negative ones cut off
            return 0.0
        made = sum(math.prod(graph.shape_of(v)) for v in whole if v)
        return min(1.0, made / max(1, math.prod(graph.shape_of(node.inputs[0]))))
    return 1.0


def _of_windows(graph: Graph, node: Node) -> float:
    """What the windows of a convolution or a pooling touch; nothing where padding is left to the operator."""
    sizes, outs = graph.shape_of(node.inputs[0])[2:], graph.shape_of(node.outputs[0])[2:]
    window = node.attributes.get("kernel_shape") or graph.shape_of(node.inputs[1])[2:]
    ones = (1,) * len(sizes)
    strides, dilations = (node.attributes.get(name) or ones for name in ("strides", "dilations"))
    begins = node.attributes.get("pads") or (0,) * len(sizes)
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID", b"NOTSET", b"VALID"):
        return 0.0
    share = 1.0
    for axis in zip(sizes, outs, window, strides, dilations, begins, strict=False):
        share *= _touched(*map(int, axis)) / max(1, axis[0])
    return share


@functools.lru_cache(4096)
def _touched(size: int, outs: int, window: int, stride: int, dilation: int, begin: int) -> int:
    """Positions of an axis."""
    if dilation == 1 and stride <= window:
        first, last = -begin, (outs - 1) * stride + window - begin
        return max(0, min(size, last) - max(0, first))
    touched = {o * stride + k * dilation - begin for o in range(outs) for k in range(window)}
    return sum(0 <= at < size for at in touched)
