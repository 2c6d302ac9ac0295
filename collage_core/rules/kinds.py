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

kElemwise = kElemWise = OpKind.ELEMWISE  # noqa: N816  # the paper's and TVM's spelling
kBroadcast = OpKind.BROADCAST  # noqa: N816  # as above
kInjective = OpKind.INJECTIVE  # noqa: N816  # as above
kReduction = OpKind.REDUCTION  # noqa: N816  # as above
kFusable = kOutEWiseFusable = OpKind.OUT_ELEMWISE_FUSABLE  # noqa: N816  # as above
kTuple = OpKind.TUPLE  # noqa: N816  # as above
kOpaque = OpKind.OPAQUE  # noqa: N816  # as above
