"""Hangs that end when they have begun, not after some seconds: no test waits for a limit, and none that is
slow is taken for one that hangs.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from collage_core.clock import can_be_paused

__all__ = ["HANGING", "HANGS", "HangingClock", "hang"]

HANGS = "COLLAGE_TEST_HANGS"
"""Names a file that is there from the moment when something hangs until it is noticed."""

HANGING = f"import os; open(os.environ[{HANGS!r}], 'w').close()"
"""Source that says so."""


def hang() -> None:
    if HANGS in os.environ:
        Path(os.environ[HANGS]).touch()
    time.sleep(600)


class HangingClock:
    """Stands for the module `clock` where a worker's limit is looked after. Whenever something hangs a day
    passes.
    """

    can_be_paused = staticmethod(can_be_paused)

    def __init__(self) -> None:
        self._passed_s = 0.0

    def monotonic(self) -> float:
        with suppress(FileNotFoundError):
            Path(os.environ[HANGS]).unlink()
            self._passed_s += 86_400
        return time.monotonic() + self._passed_s
