"""A report as a page, which a package of its own draws: it brings a layout and a drawing library."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from collage_core.errors import CollageError

__all__ = ["BEGINS", "page"]

BEGINS = "<!doctype html>\n<!-- collage explain -->\n"
"""What a page of ours begins with, and nobody else's."""

_GROUP = "collage.page"
"""Of the entry point of the function that draws: from a placement's JSON with its `dataflow`, and that of
another bundle or None, to HTML.
"""


def page(report: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> str:
    """One HTML document. other: of the bundle that it stands beside. CollageError where nothing is installed
    that draws it, or cannot be loaded.
    """
    for found in entry_points(group=_GROUP):
        try:
            draw = found.load()
        except Exception as error:  # what it needs may be broken in any way
            raise CollageError(f"--html needs {found.value}, which cannot be loaded: {error}") from None
        return f"{BEGINS}{draw(report, other)}"
    raise CollageError("--html needs the package collage-page: pip install collage-page")
