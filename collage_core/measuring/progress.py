"""How long-running steps tell where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from collage_core import clock

__all__ = ["Progress", "Silent", "Timed"]


class Progress(Protocol):
    """Told by the pipeline what it is doing; the command line draws bars from it."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A new phase begins, of `total` steps (None: unknown)."""

    def step(self, detail: str = "") -> None:
        """One step of the phase is done."""

    def note(self, text: str) -> None:
        """Something worth a line of its own: waiting for another measurement, a backend that crashed."""

    def best(self, label: str, latency_ms: float, single: str | None, single_ms: float | None) -> None:
        """A better placement is known and saved. single: the best library on its own so far, None where
        there is none.
        """

    def limit(self, seconds: float | None) -> None:
        """How long all of it may take at most, told once, at the start. None: as long as it takes."""


class Silent:
    """Tells nobody."""

    def phase(self, name: str, total: int | None = None) -> None:
        pass

    def step(self, detail: str = "") -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def best(self, label: str, latency_ms: float, single: str | None, single_ms: float | None) -> None:
        pass

    def limit(self, seconds: float | None) -> None:
        pass


class Timed:
    """Tells another, and adds up how long each phase takes. clock: seconds, from anywhere."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = clock.monotonic) -> None:
        self._progress, self._clock = progress, clock
        self._ended: dict[str, float] = {}
        self._begun: tuple[str, float] | None = None

    @property
    def seconds(self) -> dict[str, float]:
        """By the names of phases, in the order in which they first began; of the one under way up to now."""
        if self._begun is None:
            return {}
        name, start_s = self._begun
        return {**self._ended, name: self._ended.get(name, 0.0) + self._clock() - start_s}

    def phase(self, name: str, total: int | None = None) -> None:
        self._ended = self.seconds
        self._begun = name, self._clock()
        self._progress.phase(name, total)

    def step(self, detail: str = "") -> None:
        self._progress.step(detail)

    def note(self, text: str) -> None:
        self._progress.note(text)

    def best(self, label: str, latency_ms: float, single: str | None, single_ms: float | None) -> None:
        self._progress.best(label, latency_ms, single, single_ms)

    def limit(self, seconds: float | None) -> None:
        self._progress.limit(seconds)
