"""Variables that libraries read once, when they are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping

from collage_run.errors import BackendError

__all__ = ["tell_libraries"]

_told: dict[str, str] = {}
"""What libraries have been told in this process."""


def tell_libraries(variables: Mapping[str, str], who: str) -> None:
    """Set those that are not set yet. BackendError where others in this process needed another value."""
    for name, value in variables.items():
        if _told.setdefault(name, value) != value:
            raise BackendError(
                f"{who} needs {name}={value}, and libraries in this process run with {_told[name]}: another "
                "number of threads needs a process of its own"
            )
        os.environ.setdefault(name, value)
