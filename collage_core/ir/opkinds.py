"""Operator kinds, as the paper (section 3) and TVM's fusion use them."""

from __future__ import annotations

import enum

from collage_core.ir.graph import Graph
from collage_core.ir.types import Node

__all__ = ["OpKind", "op_kind"]


class OpKind(enum.IntEnum):
    """Ordered: the kind of a group is the largest kind in it."""

    ELEMWISE = 0
    """Each output element from the input elements at the same place."""
    BROADCAST = 1
    """As ELEMWISE, with at least one input broadcast."""
    INJECTIVE = 2
    """Each output element from one element of some input (transpose, reshape, concat, slice, gather)."""
    REDUCTION = 3
    """Outputs reduce over axes of an input (sums, softmax's and normalisation's statistics, pooling)."""
    OUT_ELEMWISE_FUSABLE = 4
    """Complex, but elementwise operators can be fused to its output (convolution, matmul): the paper's
    kFusable.
    """
    TUPLE = 7
    """Several outputs that are parts of one value (split)."""
    OPAQUE = 8
    """Nothing is known about it."""


_ELEMWISE = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "BitwiseNot",
        "Cast",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "Not",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
    ]
)
_BROADCASTABLE = frozenset(
    [
        "Add",
        "And",
        "BitShift",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "DequantizeLinear",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "Or",
        "Pow",
        "PRelu",
        "QuantizeLinear",
        "Sub",
        "Sum",
        "Where",
        "Xor",
    ]
)
_INJECTIVE = frozenset(
    [
        "Compress",
        "Concat",
        "DepthToSpace",
        "Expand",
        "EyeLike",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "OneHot",
        "Pad",
        "Reshape",
        "Resize",
        "ReverseSequence",
        "Slice",
        "SpaceToDepth",
        "Squeeze",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Upsample",
    ]
)
_REDUCTION = frozenset(
    [
        "ArgMax",
        "ArgMin",
        "AveragePool",
        "BatchNormalization",
        "GlobalAveragePool",
        "GlobalLpPool",
        "GlobalMaxPool",
        "GroupNormalization",
        "Hardmax",
        "InstanceNormalization",
        "LayerNormalization",
        "LogSoftmax",
        "LpNormalization",
        "LpPool",
        "LRN",
        "MaxPool",
        "MeanVarianceNormalization",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "RMSNormalization",
        "Softmax",
    ]
)
_FUSABLE = frozenset(["Conv", "ConvTranspose", "Gemm", "MatMul"])


def op_kind(graph: Graph, node: Node) -> OpKind:
    """Kind of one node in its graph: binary operators are ELEMWISE where no input is broadcast, BROADCAST
    otherwise.

    Batch normalisation at inference is BROADCAST: its statistics are inputs. Operators of other domains are
    OPAQUE.
    """
    if node.domain:
        return OpKind.OPAQUE
    op = node.op_type
    if op in _ELEMWISE:
        return OpKind.ELEMWISE
    if op in _BROADCASTABLE:
        shape = graph.type_of(node.outputs[0]).shape
        same = all(graph.type_of(v).shape == shape for v in node.inputs if v)
        return OpKind.ELEMWISE if same else OpKind.BROADCAST
    if op == "Dropout":
        return OpKind.ELEMWISE
    if op == "BatchNormalization" and not node.attributes.get("training_mode", 0):
        return OpKind.BROADCAST
    if op in _INJECTIVE:
        return OpKind.INJECTIVE
    if op in _REDUCTION:
        return OpKind.REDUCTION
    if op in _FUSABLE:
        return OpKind.OUT_ELEMWISE_FUSABLE
    if op == "Split":
        return OpKind.TUPLE
    return OpKind.OPAQUE
