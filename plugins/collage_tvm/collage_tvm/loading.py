"""Loading TVM into a process that is somebody else's."""

from __future__ import annotations

import ctypes
import signal
import sys
from functools import cache

__all__ = ["load_tvm"]

_ACTION_BYTES = 256
"""At least what C's `struct sigaction` takes: 152 on x86-64."""


@cache
def load_tvm() -> None:
    """Whoever handles segmentation faults, and exceptions that nobody catches, does so afterwards, too.

    TVM's library installs a handler of its own as it is loaded, over Python's `faulthandler`, a debugger's or
    the application's. TVM's package sets `sys.excepthook` to what ends all of `multiprocessing`'s children.
    """
    c = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    excepthook = sys.excepthook
    known = c.sigaction(signal.SIGSEGV, None, action) == 0
    try:
        import tvm  # noqa: F401
    finally:
        sys.excepthook = excepthook
        if known:
            c.sigaction(signal.SIGSEGV, action, None)
