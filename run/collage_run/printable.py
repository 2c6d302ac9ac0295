"""Text for a terminal, whatever the names in it that a file has given."""

from __future__ import annotations

__all__ = ["printable", "printable_line"]


def printable(text: str) -> str:
    """The text with all but printable characters and line ends escaped: a terminal would obey some."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def printable_line(text: str) -> str:
    """The same on one line: line ends are escaped, too."""
    return printable(text).replace("\n", "\\n")
