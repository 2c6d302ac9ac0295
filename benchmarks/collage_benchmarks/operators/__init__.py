"""docs/operators.md: which backend runs which operator, and what is right where opinions differ."""

from collage_benchmarks.operators.decisions import decisions_text
from collage_benchmarks.operators.evidence import Trial, claimed, generated_trials, node_trials
from collage_benchmarks.operators.page import DECISIONS_HEADING, page

__all__ = [
    "DECISIONS_HEADING",
    "Trial",
    "claimed",
    "decisions_text",
    "generated_trials",
    "node_trials",
    "page",
]
