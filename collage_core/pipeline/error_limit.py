"""How far outputs may be off, where somebody says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from collage_core.measuring.held_out import HeldOut
from collage_core.rounding import Site

__all__ = ["ErrorLimit", "Spent", "Tried"]


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """most: how far off from the reference rounding may make the answer. held_out: where that is looked at,
    and how.
    """

    most: float
    held_out: HeldOut

    @property
    def of_each_output(self) -> float | None:
        """What any output may be off by, max|difference| / max|expected|; None where a metric counts."""
        return None if self.held_out.metric else self.most


class Tried(NamedTuple):
    """A placement that was found on the way. error: what the errors of its places add up to, as they were
    weighed. held_out_error: on the inputs that were held out; None where it was not run on them.
    """

    predicted_ms: float
    error: float
    held_out_error: float | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What is known of a placement's error. most: what was allowed. error: on the worst of the inputs that it
    was chosen by and of `samples` that were held out, None where nothing is rounded or it was not run on
    them. squared_errors: by place, what rounding there does alone; {} where it was not asked. is_made_up:
    whether nobody gave the inputs. metric: the name of a person's own; None for max|difference| /
    max|expected|. tried: what was found on the way.
    """

    most: float
    error: float | None
    samples: int
    squared_errors: Mapping[Site, float]
    is_made_up: bool
    metric: str | None = None
    tried: tuple[Tried, ...] = ()
