"""Sittings made up from times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from collage_core.costs.record import CostRecord
from collage_core.costs.sittings import SITTINGS, Sitting, Turn, sittings_to_json

__all__ = ["details_of_ms", "record_of_ms", "sittings_of_ms"]


def sittings_of_ms(sittings_ms: Sequence[Sequence[float]]) -> tuple[Sitting, ...]:
    """By sitting, what each turn took; the second of three ran as it came, as they do."""
    return tuple(
        Sitting(tuple(Turn(float(ms)) for ms in turns_ms), as_it_comes=i % 3 == 1)
        for i, turns_ms in enumerate(sittings_ms)
    )


def details_of_ms(sittings_ms: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The details of a record of these."""
    return {SITTINGS: sittings_to_json(sittings_of_ms(sittings_ms))}


def record_of_ms(turns_ms: Iterable[float]) -> CostRecord:
    """A record of as many sittings as turns."""
    turns = [[float(ms)] for ms in turns_ms]
    return CostRecord("ok", median(ms for (ms,) in turns), 1.0, len(turns), details=details_of_ms(turns))
