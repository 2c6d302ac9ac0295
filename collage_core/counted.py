"""How many of something, in words."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, what: str) -> str:
    """ "1 thread", "2 threads"; what: one of them."""
    return f"{count} {what}{'s' * (count != 1)}"
