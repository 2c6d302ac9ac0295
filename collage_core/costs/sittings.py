"""What contenders took, turn by turn: what was kept, what was thrown away, and what the processors did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage_core.costs.processors import Look

__all__ = ["SITTINGS", "Sitting", "Turn", "sittings_from_json", "sittings_to_json"]

SITTINGS = "sittings"
"""Among an end-to-end record's details: `sittings_to_json` of all in which the contender might take part."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Runs of one contender that followed each other.

    ms: the median of its timed runs. before, after: looks at the processors at its ends, None where nothing
    can be told. waited_s: for the processors, before it. moved: whether they were not together as usual at
    either end. taken_again: whether that is why it does not count.
    """

    ms: float
    before: Look | None = None
    after: Look | None = None
    waited_s: float = 0.0
    moved: bool = False
    taken_again: bool = False


@dataclass(frozen=True, slots=True)
class Sitting:
    """A contender's turns in one process, in order; none where it took no part.

    as_it_comes: whether nothing was waited for, and nothing taken again.
    """

    turns: tuple[Turn, ...] = ()
    as_it_comes: bool = False

    @property
    def kept(self) -> list[Turn]:
        """One for each round."""
        return [t for t in self.turns if not t.taken_again]


def sittings_to_json(sittings: Iterable[Sitting]) -> list[dict[str, Any]]:
    """As JSON values: times in ms, a look as [ns for an exchange, slowdown]."""
    return [
        {
            "as_it_comes": s.as_it_comes,
            "turns": [
                {
                    "ms": round(t.ms, 6),
                    "before": _look_to_json(t.before),
                    "after": _look_to_json(t.after),
                    "waited_s": round(t.waited_s, 3),
                    "moved": t.moved,
                    "taken_again": t.taken_again,
                }
                for t in s.turns
            ],
        }
        for s in sittings
    ]


def sittings_from_json(values: Sequence[Mapping[str, Any]]) -> tuple[Sitting, ...]:
    """What `sittings_to_json` was given, its times rounded."""
    return tuple(
        Sitting(
            tuple(
                Turn(
                    t["ms"],
                    _look_from_json(t["before"]),
                    _look_from_json(t["after"]),
                    t["waited_s"],
                    t["moved"],
                    t["taken_again"],
                )
                for t in s["turns"]
            ),
            s["as_it_comes"],
        )
        for s in values
    )


def _look_to_json(look: Look | None) -> list[float] | None:
    return None if look is None else [round(look.exchange_ns, 1), round(look.slowdown, 3)]


def _look_from_json(value: Sequence[float] | None) -> Look | None:
    return None if value is None else Look(*value)
