"""Where the `collage` command starts. Imports nothing of `collage_core` yet, which takes most of a second:
whoever presses Ctrl-C meanwhile gets one line, and no traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

__all__ = ["main"]


def main() -> int:
    """Run the command; returns its exit code."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: a file opened later would take its place, and get what is printed there
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
    # A name that the terminal cannot show is no reason to fail.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    usual = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heard = [n for n, h in usual.items() if h in (signal.default_int_handler, signal.SIG_DFL)]
    for number in heard:
        signal.signal(number, _leave)
    from collage_core.cli.main import main as run

    for number in heard:
        signal.signal(number, usual[number])
    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    """Nothing has begun that would have to end in order."""
    with suppress(OSError):
        os.write(2, b"collage: interrupted before anything had begun\n")
    os._exit(128 + number)
