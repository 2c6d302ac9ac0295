"""Text for a terminal, whatever the names in it that a file has given."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """The text with all but printable characters and line ends escaped: a terminal would obey some."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
