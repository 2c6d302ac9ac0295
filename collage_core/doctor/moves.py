"""Whether the host of a virtual machine moves its processors about (docs/adr/0025)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from collage_core.costs.lock import measuring_lock
from collage_core.costs.processors import Look, Processors, Usual
from collage_core.doctor.finding import Finding, Level, unseen

__all__ = ["moved_processors"]

_LOOKS, _EVERY_S = 40, 0.02


def moved_processors(sleep: Callable[[float], object]) -> list[Finding]:
    """What this machine's processors were to each other in some looks within a second.

    Nothing is looked at while something else is measured: looks would disturb it.
    """
    usual = Usual(known=True)  # it is learnt from these looks, all of which are wanted
    with closing(Processors(usual=usual)) as processors:
        if processors.unwatched is not None:
            return [unseen(processors.unwatched, "Nothing: what is measured is taken as it comes.")]
        try:
            with measuring_lock(_refuse):
                looks = [look for _ in range(_LOOKS) if (look := _look(processors, sleep)) is not None]
        except _HeldError:
            return [unseen("something else is being measured here", "Wait until it is done.")]
    if not looks:
        return [unseen("no second processor was free", "Wait until what keeps them busy is done.")]
    moved = sum(not usual.agrees(look) for look in looks)
    if not moved:
        return [Finding(Level.OK, "They stayed together for a second.")]
    how = (
        "Two processors share a core now"
        if looks[-1].shares_core
        else "They are being moved, to one core or far from each other"
    )
    what = f"{how} ({moved} of {len(looks)} looks within a second)."
    advice = "Collage waits until they are together, two minutes at most."
    return [Finding(Level.WARNING, what, advice)]


def _look(processors: Processors, sleep: Callable[[float], object]) -> Look | None:
    sleep(_EVERY_S)
    return processors.look()


class _HeldError(Exception):
    """Somebody else holds the machine for measuring."""


def _refuse(line: str) -> None:
    raise _HeldError
