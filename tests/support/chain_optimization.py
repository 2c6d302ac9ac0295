"""A chain of operators optimised with made-up libraries, and what is told meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_core import Optimization, Target, optimize
from collage_core.measuring.progress import Silent

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

__all__ = ["BACKENDS", "CHAIN", "TARGET", "Recorder", "optimize_chain"]

TARGET = Target("cpu", 1)
"""What is optimised for."""
CHAIN = "(float[8] x) => (float y) { [a] a = Relu(x) [b] b = Neg(a) [c] c = Abs(b) [d] y = Exp(c) }"
"""The model."""
BACKENDS = ["operators", "pairs"]
"""Those of the fixture `libraries` that are asked."""
_COMPARISONS = ("first answer", "in place", "choosing", "confirming", "confirming again")


class Recorder(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.bests: list[tuple[str, float]] = []
        self.limits: list[float | None] = []
        self.notes: list[str] = []

    def phase(self, name: str, total: int | None = None) -> None:
        self.phases.append(name)

    def best(self, label: str, latency_ms: float, single: str | None, single_ms: float | None) -> None:
        self.bests.append((label, latency_ms))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def limit(self, seconds: float | None) -> None:
        self.limits.append(seconds)

    @property
    def compared(self) -> list[str]:
        return [p for p in self.phases if p in _COMPARISONS]


def optimize_chain(parse: Parse, costs: Path, **options: Any) -> Optimization:
    """The chain, with the costs in this file."""
    return optimize(parse(CHAIN), backends=BACKENDS, target=TARGET, costs=costs, **options)
