"""The program of a worker process: reads calls from a socket, runs them, answers. Started by `worker.Worker`
as a script.

Imports nothing but the standard library until the parent's `sys.path` has arrived, so that a worker finds
whatever its parent finds.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

__all__ = ["GUARDIAN", "TIED", "main"]

GUARDIAN = "collage-guard"
"""What a worker's guardian is called among processes; at most 15 characters."""
TIED = b"."
"""What a worker tells its parent when neither it nor its guardian can outlive it, be they stopped or not."""

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_PF_EXITING, _PF_KTHREAD = 0x4, 0x200000
_SWEEPS = 20
_SWEEP_S = 0.005


def main(arguments: list[str]) -> None:
    """arguments: file descriptor of the socket, of a pipe that the guardian holds open, process id of the
    parent, the environment variable ("name=value") that tells this worker's descendants from all others, and
    the folder to make for temporary files.
    """
    # A daemon that ignores it hands that on. How what is started here ends could not be told then.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fd, guardian_fd, parent = map(int, arguments[:3])
    mark, folder = arguments[3:]
    if not _tie_to_parent(parent, signal.SIGKILL):
        os._exit(1)
    _leave_guardian(guardian_fd, mark.encode(), folder)
    os.write(guardian_fd, TIED)
    os.close(guardian_fd)
    # Not before somebody is there to remove it: this process may be killed at any moment.
    with contextlib.suppress(OSError):  # where none can be made, whoever needs one will say so
        os.mkdir(folder, 0o700)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        # Should memory run out, the kernel shall take the worker and not the process that supervises it.
        score.write("1000")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is the interpreter's own TextIOWrapper
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    sys.path[:], imports = pickle.loads(connection.recv_bytes())
    for name in imports:
        with contextlib.suppress(Exception):  # whichever call needs it will say why it cannot be had
            importlib.import_module(name)
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        if not request:
            return
        connection.send_bytes(_answer(request))


def _tie_to_parent(parent: int, number: signal.Signals) -> bool:
    """Have the kernel send a signal to this process when its parent dies, however it dies; False if it is
    dead already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == parent


def _leave_guardian(fd: int, mark: bytes, folder: str) -> None:
    """Fork a process that waits for this one's end, which may be a SIGKILL, and then ends whatever this one
    has started and removes `folder`, if it is there: the parent may not be, to do it.
    """
    worker = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    guardian = os.fork()
    if guardian == 0:
        try:
            _guard(worker, fd, mark, folder)
        finally:
            os._exit(1)
    # A group of its own before any call is answered, neither halted nor killed with this one; but this
    # session, so that the system gives this process's number to nobody else.
    os.setpgid(guardian, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def _guard(worker: int, fd: int, mark: bytes, folder: str) -> NoReturn:
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, GUARDIAN.encode())
    os.closerange(0, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
    alive = _tie_to_parent(worker, signal.SIGTERM)
    while alive:
        with contextlib.suppress(InterruptedError):
            signal.sigwait([signal.SIGTERM])
        alive = os.getppid() == worker
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)
    for _ in range(_SWEEPS):  # what is being started while it is looked for is found the next time
        found, unknown = _marked(mark)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found and not unknown:
            break
        time.sleep(_SWEEP_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _marked(mark: bytes) -> tuple[list[int], list[int]]:
    """Living processes except this one whose environment holds `mark`, or that of a worker which one of these
    has started, in whatever session they are; and those that have none to be seen, as while they start a
    program.
    """
    found, unknown, nested = [], [], mark + b"."
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes()
                if any(v == mark or v.startswith(nested) for v in environment.split(b"\0")):
                    found.append(int(entry.name))
                elif not environment and _runs_a_program(entry):
                    unknown.append(int(entry.name))
    return found, unknown


def _runs_a_program(entry: Path) -> bool:
    """Not a thread of the kernel, and not about to be gone."""
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    state, flags = fields[0], int(fields[6])
    return state != "Z" and not flags & (_PF_EXITING | _PF_KTHREAD)


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
