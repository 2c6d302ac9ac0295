"""How long a candidate may take, and how much memory."""

from __future__ import annotations

import os
from contextlib import suppress

from collage_core.costs.control_groups import memory_limits_bytes
from collage_core.errors import CollageError

__all__ = [
    "candidate_limit_s",
    "check_limits",
    "machine_memory_bytes",
    "settling_limit_s",
    "worker_memory_bytes",
]

_CANDIDATE_VARIABLE = "COLLAGE_CANDIDATE_LIMIT_S"
_MEMORY_VARIABLE = "COLLAGE_WORKER_MEMORY_MIB"
_SETTLING_VARIABLE = "COLLAGE_SETTLING_LIMIT_S"
_CANDIDATE_LIMIT_S = 60.0
_SETTLING_LIMIT_S = 120.0


def candidate_limit_s() -> float:
    """Seconds for building one candidate, and as many for checking and timing it: $COLLAGE_CANDIDATE_LIMIT_S,
    else 60.

    CollageError if that is no positive number.
    """
    return _positive(_CANDIDATE_VARIABLE) or _CANDIDATE_LIMIT_S


def worker_memory_bytes() -> int:
    """Resident memory beyond which a worker is ended, before others are: $COLLAGE_WORKER_MEMORY_MIB, else
    half of what this machine, or the control group of this process, has.

    CollageError if that is no positive number.
    """
    if (mebibytes := _positive(_MEMORY_VARIABLE)) is not None:
        return int(mebibytes * (1 << 20))
    limits = [machine_memory_bytes()]
    with suppress(OSError, ValueError):  # none to be seen
        limits += memory_limits_bytes()
    return min(limits) // 2


def machine_memory_bytes() -> int:
    """All memory of this machine, whoever may use it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def settling_limit_s() -> float:
    """How many seconds `Processors` waits at a time: $COLLAGE_SETTLING_LIMIT_S, else 120; 0 switches it off.

    CollageError if that is no number from 0 on.
    """
    limit_s = _positive(_SETTLING_VARIABLE, or_zero=True)
    return _SETTLING_LIMIT_S if limit_s is None else limit_s


def check_limits() -> None:
    """CollageError names a variable that none of these can read, before anything is done."""
    for limit in (candidate_limit_s, worker_memory_bytes, settling_limit_s):
        limit()


def _positive(variable: str, *, or_zero: bool = False) -> float | None:
    text = os.environ.get(variable)
    if not text:
        return None
    with suppress(ValueError):
        value = float(text)
        if 0 < value < float("inf") or (or_zero and value == 0):
            return value
    raise CollageError(f"{variable} must be a positive number{' or 0' if or_zero else ''}; it is {text!r}")
