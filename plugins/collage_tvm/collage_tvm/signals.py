"""The process's own handling of signals, whatever TVM is loaded for."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["faults_kept"]

_ACTION_BYTES = 256
"""At least what C's `struct sigaction` takes: 152 on x86-64."""


@contextmanager
def faults_kept() -> Iterator[None]:
    """Whoever handles segmentation faults does so afterwards, too.

    TVM's library installs a handler of its own as it is loaded, over Python's `faulthandler`, a debugger's or
    the application's.
    """
    c = ctypes.CDLL(None)
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    known = c.sigaction(signal.SIGSEGV, None, action) == 0
    try:
        yield
    finally:
        if known:
            c.sigaction(signal.SIGSEGV, action, None)
