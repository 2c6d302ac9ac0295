"""Where the `collage` command starts. Outside `collage_core`, whose import takes most of a second: whoever
presses Ctrl-C meanwhile gets no traceback.
"""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> int:
    """Run the command; returns its exit code."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears:
        # Nothing has begun that would have to end in order.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from collage_core.cli.main import main as run

    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()
