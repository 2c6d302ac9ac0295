"""What a backend registers to say what it can run, written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage_core.errors import Refusal

if TYPE_CHECKING:
    from collage_core.patterns.pattern import Pattern
    from collage_core.patterns.result import Match

__all__ = ["BackendPattern"]


@dataclass(frozen=True, slots=True)
class BackendPattern:
    """A pattern that `backend` can run as one kernel.

    check: looks closer at a match; None accepts it, a `Refusal` declines it and says why.
    """

    backend: str
    pattern: Pattern
    name: str = ""
    check: Callable[[Match], Refusal | None] | None = None
