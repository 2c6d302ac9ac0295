"""How far outputs may be off, where somebody says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage_core.measuring.held_out import HeldOut
from collage_core.rounding import Site

__all__ = ["ErrorLimit", "Spent"]


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """most: what rounding may make of any output, max|difference| / max|expected|, against the reference.
    held_out: where that is looked at.
    """

    most: float
    held_out: HeldOut


@dataclass(frozen=True, slots=True)
class Spent:
    """What is known of a placement's error. most: what was allowed. error: on the worst of the inputs that it
    was chosen by and of `samples` that were held out, None where nothing is rounded or it was not run on
    them. squared_errors: by place, what rounding there does alone; {} where it was not asked. is_made_up:
    whether nobody gave the inputs.
    """

    most: float
    error: float | None
    samples: int
    squared_errors: Mapping[Site, float]
    is_made_up: bool
