"""Answers of searches are recalled in their order, those that found nothing among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from collage_core import Target
from collage_core.errors import PlacementError
from collage_core.pipeline.answers import Answers
from collage_core.pipeline.memory import Memory
from collage_core.placement import Placement
from collage_core.search.searcher import SearchResult


def _result(ms: float) -> SearchResult:
    return SearchResult(Placement((), (), Target("cpu", 1), ms))


def _nothing() -> SearchResult:
    raise PlacementError("a beam found nothing")


@dataclass
class _Limit:
    """Where an error is limited: one that only what takes 2 ms or more holds."""

    search: Callable[[], SearchResult]
    recalled: list[Placement] = field(default_factory=list)

    def holds(self, placement: Placement) -> bool:
        return (placement.predicted_ms or 0.0) >= 2.0

    def recall(self, placement: Placement) -> None:
        self.recalled.append(placement)


def _found(
    search: Callable[[], SearchResult],
    search_seen: Callable[[], SearchResult],
    recalled: Memory | None = None,
) -> Any:
    known = SimpleNamespace(search=search, search_seen=search_seen)
    return SimpleNamespace(known=known, memory=Memory(), recalled=recalled)


def _asked(answers: Answers) -> list[float | None]:
    found = answers.next(), answers.of_seen(), answers.next_if_any(), answers.of_seen()
    return [None if r is None else r.placement.predicted_ms for r in found]


def test_all_are_kept_and_recalled_without_searching() -> None:
    seen = iter([_result(2.5), _result(1.0)])
    limit: Any = _Limit(lambda: _result(3.0))
    first = _found(_nothing, lambda: next(seen))
    assert _asked(Answers(first, limit)) == [3.0, 2.5, 3.0, None], "the last one does not hold the limit"
    second = _found(_nothing, _nothing, first.memory)
    again: Any = _Limit(_nothing)
    assert _asked(Answers(second, again)) == [3.0, 2.5, 3.0, None]
    assert [p.predicted_ms for p in again.recalled] == [3.0, 2.5, 3.0]
    assert second.memory == first.memory


def test_what_finds_nothing_is_kept_in_its_place() -> None:
    times_ms = iter([1.0, None, 2.0])
    first = _found(lambda: _result(ms) if (ms := next(times_ms)) else _nothing(), _nothing)
    answers = Answers(first, None)
    assert answers.next() is not None
    assert answers.of_seen() is None
    assert answers.next_if_any() is None
    assert answers.next().placement.predicted_ms == 2.0
    assert [r is None for r in first.memory.searches] == [False, True, True, False]


def test_after_what_is_recalled_searches_are_asked() -> None:
    found = _found(lambda: _result(2.0), _nothing, Memory([_result(1.0)]))
    answers = Answers(found, None)
    assert [answers.next().placement.predicted_ms for _ in range(2)] == [1.0, 2.0]


def test_where_nobody_can_run_a_node_it_is_said() -> None:
    with pytest.raises(PlacementError):
        Answers(_found(_nothing, _nothing), None).next()
