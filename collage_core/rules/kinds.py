"""Operator kinds under the names that the paper's and TVM's rules use."""

from __future__ import annotations

from collage_core.ir import OpKind

__all__ = [
    "kBroadcast",
    "kElemWise",
    "kElemwise",
    "kFusable",
    "kInjective",
    "kOpaque",
    "kOutEWiseFusable",
    "kReduction",
    "kTuple",
]

kElemwise = kElemWise = OpKind.ELEMWISE  # noqa: N816  # both spellings are in use
"""Each output element from the input elements at the same place."""
kBroadcast = OpKind.BROADCAST  # noqa: N816  # as above
"""The same, with an input that is broadcast."""
kInjective = OpKind.INJECTIVE  # noqa: N816  # as above
"""Each output element from one element of some input."""
kReduction = OpKind.REDUCTION  # noqa: N816  # as above
"""Reduces over axes of an input."""
kFusable = kOutEWiseFusable = OpKind.OUT_ELEMWISE_FUSABLE  # noqa: N816  # as above
"""Convolutions and products: elementwise operators can be fused to their output."""
kTuple = OpKind.TUPLE  # noqa: N816  # as above
"""Several outputs that are parts of one value."""
kOpaque = OpKind.OPAQUE  # noqa: N816  # as above
"""Nothing is known about it."""
