"""What an optimization has found is kept for the next one of the same."""

from __future__ import annotations

from dataclasses import replace

from collage_core import Target
from collage_core.pipeline.memory import Memory
from collage_core.pipeline.proof import Single
from collage_core.placement import Placement
from collage_core.search.problem import Solution
from collage_core.search.searcher import SearchResult

_PLACEMENT = Placement((), (), Target("cpu", 1), 2.0)
_MEMORY = Memory(
    [SearchResult(_PLACEMENT, Solution((), 2.0, False, 1.5, "manual", 7)), SearchResult(_PLACEMENT)],
    (Single("a", _PLACEMENT, alone=True),),
    (Single("a", None, alone=False, reason="it crashed"),),
    2,
    {"0123": "a: it crashed"},
    ("89ab",),
    "4567",
)


def test_it_is_recalled_as_it_was() -> None:
    recalled = Memory.of_record(_MEMORY.to_record())
    assert recalled is not None
    assert replace(recalled, searches=[]) == replace(_MEMORY, searches=[])
    first, second = recalled.searches
    assert first.placement == second.placement == _PLACEMENT
    assert first.solution is not None
    assert (first.solution.lower_bound_ms, first.solution.states) == (1.5, 7)


def test_what_is_damaged_or_of_another_form_is_not_recalled() -> None:
    record = _MEMORY.to_record()
    for key in record.details:
        without = {k: v for k, v in record.details.items() if k != key}
        assert Memory.of_record(replace(record, details=without)) is None
        if key not in ("costs", "left_out"):
            other = replace(record, details={**record.details, key: "others"})
            assert Memory.of_record(other) is None, key
    assert Memory.of_record(None) is None
