"""The pattern language and its matcher."""

from collage_core.ir.attributes import Attributes
from collage_core.patterns.backend_pattern import BackendPattern
from collage_core.patterns.find import find_matches, match, match_all
from collage_core.patterns.pattern import (
    Pattern,
    dominates,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    outputs,
    wildcard,
)
from collage_core.patterns.result import Bindings, Match, MatchResult, NoMatch

__all__ = [
    "Attributes",
    "BackendPattern",
    "Bindings",
    "Match",
    "MatchResult",
    "NoMatch",
    "Pattern",
    "dominates",
    "find_matches",
    "is_constant",
    "is_op",
    "is_tuple",
    "is_tuple_get_item",
    "match",
    "match_all",
    "outputs",
    "wildcard",
]
