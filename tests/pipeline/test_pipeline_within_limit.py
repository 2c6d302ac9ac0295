"""Which placements are tried within an error's limit, where what is weighed is not what is seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from collage_core.measuring.held_out import Off
from collage_core.pipeline.rounding import WithinLimit
from collage_core.placement import Placement
from collage_core.search.searcher import SearchResult
from collage_core.target import Target

_LIMIT = 0.01


class _Way(NamedTuple):
    """A placement. weighed: what the errors of its places add up to. error: what others are likely to be off
    by.
    """

    ms: float
    weighed: float
    error: float


class _Scripted(WithinLimit):
    """Knows these ways, and nothing else. run: which of them were looked at on held-out inputs, in order.
    split: for which limits a graph was split.
    """

    def __init__(self, *ways: _Way) -> None:
        aim: Any = SimpleNamespace(machine=SimpleNamespace(progress=self), workspace=None)
        limit: Any = SimpleNamespace(most=_LIMIT, held_out=SimpleNamespace(metric=None))
        known: Any = SimpleNamespace(penalties=None)
        super().__init__(aim, limit, known, lambda name, nodes: ())
        known.rounds = True
        self.ways = sorted(ways)
        self.run: list[_Way] = []
        self.split: list[float] = []

    def note(self, text: str) -> None:
        """What people are told."""

    def _result(self, way: _Way) -> SearchResult:
        target = Target("cpu", self.ways.index(way) + 1)  # by which placements differ here
        return SearchResult(Placement((), (), target, way.ms), None)

    def _way(self, placement: Placement) -> _Way:
        return self.ways[placement.target.threads - 1]

    def _found(self) -> SearchResult:
        return self._result(next(w for w in self.ways if not w.weighed))

    def _within(self, limit: float) -> SearchResult | None:
        found = next((w for w in self.ways if w.weighed**2 <= limit), None)
        self._known.penalties = None if found is self.ways[0] else SimpleNamespace()  # type: ignore[assignment]
        return None if found is None else self._result(found)

    def _squared_error_of(self, placement: Placement) -> float:
        return self._way(placement).weighed ** 2

    def _off(self, placement: Placement) -> Off:
        way = self._way(placement)
        self.run.append(way)
        return Off(way.error, way.error)

    def _is_over(self) -> bool:
        return False

    def _split(self, limit: float) -> None:
        self.split.append(limit)


_EXACT = _Way(2.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ways", "best"),
    [
        pytest.param(
            [_Way(1.0, 0.004, 0.013), _Way(1.1, 0.003, 0.006), _Way(1.5, 0.001, 0.001)], 1.1, id="both"
        ),
        pytest.param([_Way(1.0, 0.02, 0.005), _Way(1.5, 0.004, 0.002)], 1.0, id="weighed too high"),
        pytest.param([_Way(1.0, 0.004, 0.04), _Way(1.5, 0.001, 0.008)], 1.5, id="weighed too low"),
        pytest.param([_Way(1.0, 0.008, 0.007)], 1.0, id="more than is aimed for at first"),
        pytest.param([_Way(1.0, 0.004, 0.5), _Way(1.5, 0.003, 0.4)], 2.0, id="none holds"),
        pytest.param(
            [_Way(1.0, 0.005, 0.015), _Way(1.2, 0.004, 0.008), _Way(1.5, 0.0035, 0.0034)],
            1.2,
            id="a step down",
        ),
    ],
)
def test_the_fastest_that_holds_is_found(ways: list[_Way], best: float) -> None:
    within = _Scripted(*ways, _EXACT)
    found = within.search()
    assert found.placement.predicted_ms == best
    assert len(within.run) <= 5
    assert len(within.split) < 5
