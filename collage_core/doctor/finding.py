"""What a check finds."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Finding", "Level", "unseen"]


class Level(enum.Enum):
    """How bad it is; the worst first."""

    PROBLEM = "problem"
    """What is measured here and now is not worth its time."""
    WARNING = "warning"
    """What is measured may be slower or less certain."""
    UNKNOWN = "unknown"
    """It could not be looked at."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """what: what is the case. advice: what to do about it; "" if it is ok. check: what was looked at."""

    level: Level
    what: str
    advice: str = ""
    check: str = ""


def unseen(reason: str, advice: str = "Look on the host.") -> Finding:
    """Of a check that could not look."""
    return Finding(Level.UNKNOWN, f"This could not be looked at: {reason}.", advice)
