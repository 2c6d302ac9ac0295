"""How much a computation does, counted where no other process makes it more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


def lines_run(compute: Callable[[], Result]) -> tuple[int, Result]:
    """How many lines of Python are run, each as often as it is, and the result."""
    lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Callable[[FrameType, str, Any], Any]:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        result = compute()
    finally:
        sys.settrace(before)
    return lines, result
