"""Candidates: every way in which some backend offers to run some part of the graph."""

from collage_core.candidates.constraints import Constraints, FixedGroup, Kept
from collage_core.candidates.finding import (
    CandidateSet,
    Taken,
    generate_candidates,
    require_offers,
    tunable_candidates,
)
from collage_core.candidates.library_groups import ALL_TAKEN, connected_groups, library_groups
from collage_core.candidates.offers import Candidate, offers_for
from collage_core.candidates.offload import offloaded_groups

__all__ = [
    "ALL_TAKEN",
    "Candidate",
    "CandidateSet",
    "Constraints",
    "FixedGroup",
    "Kept",
    "Taken",
    "connected_groups",
    "generate_candidates",
    "library_groups",
    "offers_for",
    "offloaded_groups",
    "require_offers",
    "tunable_candidates",
]
