"""How long-running steps tell where they are."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silent"]


class Progress(Protocol):
    """Told by the pipeline what it is doing; the command line draws bars from it."""

    def phase(self, name: str, total: int | None = None) -> None:
        """A new phase begins, of `total` steps (None: unknown)."""

    def step(self, detail: str = "") -> None:
        """One step of the phase is done."""

    def note(self, text: str) -> None:
        """Something worth a line of its own: waiting for another measurement, a backend that crashed."""


class Silent:
    """Tells nobody."""

    def phase(self, name: str, total: int | None = None) -> None:
        pass

    def step(self, detail: str = "") -> None:
        pass

    def note(self, text: str) -> None:
        pass
