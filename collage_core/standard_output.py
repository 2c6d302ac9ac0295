"""Standard output is for whoever has asked, and not for libraries."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

__all__ = ["not_for_others"]

_OUTPUT, _ERRORS = 1, 2


@contextmanager
def not_for_others() -> Iterator[None]:
    """What is written to standard output within it goes to standard error, from Python or not. Other threads'
    output does so, too: it is for moments in which somebody else's code is asked.
    """
    with suppress(OSError, ValueError, AttributeError):  # none, closed, or a notebook's
        sys.stdout.flush()
    kept = None
    with suppress(OSError):
        kept = os.dup(_OUTPUT)
        os.dup2(_ERRORS, _OUTPUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, _OUTPUT)
            os.close(kept)
