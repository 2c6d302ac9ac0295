"""What the op level's searches answer: what they did in an earlier optimization of the same, or now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from collage_core.errors import PlacementError
from collage_core.pipeline.found import Found
from collage_core.pipeline.rounding import WithinLimit
from collage_core.search.searcher import SearchResult

__all__ = ["Answers"]


class Answers:
    """One after the other, and each is kept for the next optimization. within: who searches where an error is
    limited.
    """

    def __init__(self, found: Found, within: WithinLimit | None) -> None:
        self._found = found
        self._within = within

    def next(self) -> SearchResult:
        """The best of all. PlacementError where there is none."""
        answer = self._recalled_or(self._search)
        assert answer is not None, "an answer of this kind was recalled"
        return answer

    def next_if_any(self) -> SearchResult | None:
        """The best of all; None where a beam finds nothing at these costs."""
        return self._recalled_or(lambda: _if_any(self._search))

    def of_seen(self) -> SearchResult | None:
        """The best of what was seen in place; None where that is not enough, or breaks the error's limit."""
        return self._recalled_or(self._search_seen)

    def _search(self) -> SearchResult:
        return (self._within or self._found.known).search()

    def _search_seen(self) -> SearchResult | None:
        answer = _if_any(self._found.known.search_seen)
        if answer is None or self._within is None or self._within.holds(answer.placement):
            return answer
        return None

    def _recalled_or(self, search: Callable[[], SearchResult | None]) -> SearchResult | None:
        found, number = self._found, len(self._found.memory.searches)
        if found.recalled is None or number >= len(found.recalled.searches):
            answer = search()
        else:
            answer = found.recalled.searches[number]
            if answer is not None and self._within is not None:
                self._within.recall(answer.placement)
        found.memory.searches.append(answer)
        return answer


def _if_any(search: Callable[[], SearchResult]) -> SearchResult | None:
    with suppress(PlacementError):
        return search()
    return None
