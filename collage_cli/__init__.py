"""Where the `collage` command starts. Imports nothing of `collage_core` yet, which takes most of a second:
whoever presses Ctrl-C meanwhile gets no traceback.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

__all__ = ["main"]


def main() -> int:
    """Run the command; returns its exit code."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: a file opened later would take its place, and get what is printed there
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:
        # Nothing has begun that would have to end in order.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from collage_core.cli.main import main as run

    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()
