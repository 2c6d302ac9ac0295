"""Pattern rules and the generator that grows groups with them."""

from collage_core.rules.compose import for_backend, restrict, restrict_kinds, restrict_size, union
from collage_core.rules.generator import MAX_NODES, GenerationResult, Provenance, generate
from collage_core.rules.kinds import (
    kBroadcast,
    kElemWise,
    kElemwise,
    kFusable,
    kInjective,
    kOpaque,
    kOutEWiseFusable,
    kReduction,
    kTuple,
)
from collage_core.rules.paths import check_path, nodes_between
from collage_core.rules.postdom import immediate_postdominators
from collage_core.rules.rule import FusionRule, GroupCheck, PatternRule, ValidOp

__all__ = [
    "MAX_NODES",
    "FusionRule",
    "GenerationResult",
    "GroupCheck",
    "PatternRule",
    "Provenance",
    "ValidOp",
    "check_path",
    "for_backend",
    "generate",
    "immediate_postdominators",
    "kBroadcast",
    "kElemWise",
    "kElemwise",
    "kFusable",
    "kInjective",
    "kOpaque",
    "kOutEWiseFusable",
    "kReduction",
    "kTuple",
    "nodes_between",
    "restrict",
    "restrict_kinds",
    "restrict_size",
    "union",
]
