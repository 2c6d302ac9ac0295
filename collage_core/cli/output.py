"""What commands print on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from collage_core.printable import printable

__all__ = ["show"]


def show(report: Any, as_json: bool, as_text: Callable[[Any], str]) -> None:
    """Print a report: JSON values as they are, or what `as_text` makes of them, of printable characters."""
    print(json.dumps(report, indent=2) if as_json else printable(as_text(report)))
