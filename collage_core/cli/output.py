"""What commands print on standard output."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from collage_core.printable import printable

__all__ = ["show"]


def show(report: Any, as_json: bool, as_text: Callable[[Any], str]) -> None:
    """Print a report: JSON values as they are, or what `as_text` makes of them, of printable characters.

    JSON knows no NaN and no infinity: they are null (RFC 8259, section 6).
    """
    if as_json:
        print(json.dumps(_finite(report), indent=2, allow_nan=False))
    else:
        print(printable(as_text(report)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
