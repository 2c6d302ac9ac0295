"""The program of a worker process: reads calls from a socket, runs them, answers. Started by `worker.Worker`
as a script.

Imports nothing but the standard library until the parent's `sys.path` has arrived, so that a worker finds
whatever its parent finds.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import resource
import signal
import sys
import traceback
from multiprocessing.connection import Connection

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """arguments: file descriptor of the socket, process id of the parent."""
    fd, parent = map(int, arguments)
    _tie_to_parent(parent)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        # Should memory run out, the kernel shall take the worker and not the process that supervises it.
        score.write("1000")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is the interpreter's own TextIOWrapper
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    sys.path[:] = pickle.loads(connection.recv_bytes())
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        if not request:
            return
        connection.send_bytes(_answer(request))


def _tie_to_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however it dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def _answer(request: bytes) -> bytes:
    """("ok", result) or ("error", type, message, traceback) as bytes."""
    try:
        function, args = pickle.loads(request)
        return pickle.dumps(("ok", function(*args)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # a call may raise anything; the parent decides what it means
        kind = type(error)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        return pickle.dumps(("error", name, _message(error), "".join(traceback.format_exception(error))))


def _message(error: Exception) -> str:
    try:
        return str(error)
    except Exception as unprintable:  # a foreign __str__ may fail as well
        return f"(no message: its __str__ raised {type(unprintable).__name__})"


if __name__ == "__main__":
    main(sys.argv[1:])
