"""One supervised child process that runs functions for its parent."""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack

from collage_core import clock
from collage_core.errors import WorkerError
from collage_core.plugins import PLUGINS_VARIABLE
from collage_core.worker.errors import RemoteError, WorkerCrash, WorkerTimeout, exit_cause

__all__ = ["Worker", "family"]

_R = TypeVar("_R")
_Ts = TypeVarTuple("_Ts")

_LOOK_EVERY_S = 0.2
_OUTPUT_LIMIT_BYTES = 16 << 20
_TAIL_BYTES = 8 << 10
_CLOSE_S = 2.0
_STOPPING_S = 1e-4
_MARK = "COLLAGE_WORKER"
"""Environment variable that a worker's descendants inherit, and are known by: its name, behind the names of
those workers that it has been started by, with dots between.
"""
_LOST = "nobody can tell how, for SIGCHLD is ignored, or somebody else has collected it"
_CHILD = Path(__file__).with_name("child.py")


class Worker:
    """A child process for code that may crash, hang, leak or print: vendor libraries, above all.

    It has its own session (a terminal's Ctrl-C does not reach it), dies with this process however this
    process dies, and takes all processes with it that it has started, and its temporary files: it has a
    $TMPDIR of its own. It writes its stdout and stderr to a file without a name, whose end becomes part of a
    crash's reason. One call at a time, from one thread at a time.

    environment: variables set in the child on top of this process's own. plugins: modules that the child's
    `default_registry()` loads besides the installed ones. imports: modules that the child imports right away
    and not when the first call wants them, so that several workers start at the same time.
    memory_limit_bytes: resident memory of the child and its own children beyond which it is killed (a
    `WorkerCrash`). It is looked at a few times a second during calls rather than enforced by RLIMIT_AS,
    because libraries reserve address space that they never use.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        plugins: Sequence[str] = (),
        imports: Sequence[str] = (),
        memory_limit_bytes: int | None = None,
    ) -> None:
        self._memory_limit_bytes = memory_limit_bytes
        variables = {**os.environ, **(environment or {})}
        if plugins:
            known = [p for p in variables.get(PLUGINS_VARIABLE, "").split(",") if p]
            variables[PLUGINS_VARIABLE] = ",".join(dict.fromkeys([*known, *plugins]))
        name = uuid.uuid4().hex
        variables[_MARK] = ".".join(filter(None, (os.environ.get(_MARK), name)))
        self._owner = os.getpid()
        self._is_tied = self._is_lost = False
        self._told_bytes = 0
        with ExitStack() as opened:  # closed if anything fails
            try:
                self._output = opened.enter_context(tempfile.TemporaryFile())
                # Appending writers go on at the new end when the supervisor truncates a file grown too long.
                flags = fcntl.fcntl(self._output, fcntl.F_GETFL)
                fcntl.fcntl(self._output, fcntl.F_SETFL, flags | os.O_APPEND)
                ours, theirs = map(opened.enter_context, socket.socketpair())
                self._guardian_fd, guardians = os.pipe()
                opened.callback(os.close, self._guardian_fd)
                try:
                    with _asking.setdefault(self._owner, threading.Lock()):
                        submit = _spawner(self._owner).submit
                    self._process = submit(self._start, theirs.fileno(), guardians, name, variables).result()
                finally:
                    os.close(guardians)
            except (OSError, RuntimeError) as error:  # the second where there is no room for a thread
                raise WorkerError(f"a worker process cannot be started: {error}") from error
            theirs.close()
            opened.pop_all()
        self._connection: Connection[bytes, bytes] = Connection(ours.detach())
        self._closed = False
        with suppress(OSError):  # should the child be dead already, the first call tells why
            self._connection.send_bytes(pickle.dumps((sys.path, tuple(imports))))

    def _start(
        self, fd: int, guardian_fd: int, name: str, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        numbers = map(str, (fd, guardian_fd, os.getpid()))
        mark = f"{_MARK}={variables[_MARK]}"
        return subprocess.Popen(
            [sys.executable, "-P", str(_CHILD), *numbers, mark, _folder_for(name, variables)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=variables,
            pass_fds=[fd, guardian_fd],
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._closed and not self._exited()

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the child and of its children, theirs included; 0 when it has died."""
        return sum(map(_resident_pages, family(self.pid))) * os.sysconf("SC_PAGE_SIZE")

    def call(self, function: Callable[[Unpack[_Ts]], _R], *args: *_Ts, timeout_s: float | None = None) -> _R:
        """Run `function(*args)` in the child and return its result. Function, arguments and result must be
        picklable.

        Raises RemoteError if the function raised (the worker lives on); WorkerCrash if the process died and
        WorkerTimeout if there is no answer after `timeout_s` seconds (the worker is gone). Whatever else
        interrupts the wait, KeyboardInterrupt say, kills the child.
        """
        if self._closed:
            raise WorkerError("the worker has been closed")
        request = pickle.dumps((function, args), pickle.HIGHEST_PROTOCOL)
        try:
            answer = self._read(self._exchange(request, timeout_s))
        except BaseException:
            self.kill()
            raise
        self._told_bytes = os.fstat(self._output.fileno()).st_size
        if answer[0] == "error":
            raise RemoteError(*answer[1:])
        result: _R = answer[1]
        return result

    def _read(self, answer: bytes) -> Any:
        try:
            return pickle.loads(answer)
        except Exception as error:  # unpickling runs code of whatever the child has sent
            raise WorkerError(
                f"the worker's answer cannot be read here: {type(error).__name__}: {error}"
            ) from error

    def _exchange(self, request: bytes, timeout_s: float | None) -> bytes:
        deadline = None if timeout_s is None else clock.monotonic() + timeout_s
        self._limit_output()
        try:
            self._connection.send_bytes(request)
            while True:
                left = _LOOK_EVERY_S if deadline is None else min(_LOOK_EVERY_S, deadline - clock.monotonic())
                if self._connection.poll(max(left, 0.0)):
                    return self._connection.recv_bytes()
                self._look_after(timeout_s, deadline)
        except (EOFError, OSError):
            raise self._crash() from None

    def _look_after(self, timeout_s: float | None, deadline: float | None) -> None:
        """Between two looks at the connection: is the child still there, too large, too talkative, too
        late?
        """
        if self._exited() and not self._connection.poll(0):
            raise self._crash()
        if self._memory_limit_bytes is not None and self.memory_bytes > self._memory_limit_bytes:
            limit_bytes = self._memory_limit_bytes
            raise WorkerCrash(
                f"it used more than {limit_bytes >> 20} MiB of memory", self._tail(), limit_bytes
            )
        self._limit_output()
        if deadline is not None and timeout_s is not None and clock.monotonic() >= deadline:
            raise WorkerTimeout(timeout_s, self._tail())

    def _limit_output(self) -> None:
        if os.fstat(self._output.fileno()).st_size > _OUTPUT_LIMIT_BYTES:
            os.ftruncate(self._output.fileno(), 0)
            self._told_bytes = 0

    def _crash(self) -> WorkerCrash:
        """Why the child is gone. A child that closed its socket without dying is given a moment, then
        killed.
        """
        if not self._wait_exit(_CLOSE_S):
            return WorkerCrash("it closed its connection and did not exit", self._tail())
        returncode = self._reap()
        return WorkerCrash(_LOST if self._is_lost else exit_cause(returncode), self._tail())

    def wait_tied(self) -> None:
        """Until the child dies with this process, and its guardian is not stopped with it, which takes a
        moment. Who is stopped before that, and whose parent is killed then, stands still for ever.
        """
        told = select.poll()
        told.register(self._guardian_fd, select.POLLIN)
        while not self._is_tied and not self._exited():
            self._is_tied = bool(told.poll(_LOOK_EVERY_S * 1000))

    def pause(self) -> None:
        """Stop the child and every process it has started (SIGSTOP); returns when it has stopped."""
        self.wait_tied()
        self._signal(signal.SIGSTOP)
        how = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        with suppress(ChildProcessError):  # it has ended: see `_exited`
            if not clock.can_be_paused():
                os.waitid(os.P_PID, self.pid, how)
                return
            # Whoever stops this process with all of its own may let the child go on that was just being
            # stopped.
            while os.waitid(os.P_PID, self.pid, how | os.WNOHANG) is None:
                time.sleep(_STOPPING_S)
                self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused child go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def interrupt(self) -> None:
        """From another thread: end the child, so that a call that waits for it raises WorkerCrash. Its thread
        closes the worker as ever.
        """
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Ask the child to exit, and kill it if it does not within two seconds. May be called twice."""
        if self._closed:
            return
        with suppress(OSError):
            self.resume()
            self._connection.send_bytes(b"")
            self._wait_exit(_CLOSE_S)
        self.kill()

    def kill(self) -> None:
        """Kill the child and every process that it has started, now. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._reap()
        # The guardian closes its end when it has ended what was not in the group.
        ended = select.poll()
        ended.register(self._guardian_fd, 0)
        ended.poll(_CLOSE_S * 1000)
        os.close(self._guardian_fd)
        self._connection.close()
        self._output.close()

    def _reap(self) -> int:
        """Kill what is left of the group, then collect the child. In this order: once collected, its id may
        belong to someone else.
        """
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        return self._process.returncode

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None and not (self._exited() and self._is_lost):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _exited(self) -> bool:
        """Whether the child has ended, without collecting it."""
        if self._process.returncode is not None or self._is_lost:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the kernel has, where SIGCHLD is ignored: its number may be another's now
            self._is_lost = True
            return True

    def _wait_exit(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._exited():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def _tail(self) -> str:
        """The end of what the child has written since the last call returned."""
        size = os.fstat(self._output.fileno()).st_size
        start = max(self._told_bytes, size - _TAIL_BYTES)
        return os.pread(self._output.fileno(), _TAIL_BYTES, start).decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.kill()

    def __del__(self) -> None:
        # A fork of this process holds a copy of this object, not the child.
        if getattr(self, "_closed", True) is False and os.getpid() == self._owner:
            self.kill()


def family(pid: int) -> Iterator[int]:
    """A process and its children, theirs included."""
    yield pid
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in tasks.read_text().split():
                yield from family(int(child))


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0


def _folder_for(name: str, variables: Mapping[str, str]) -> str:
    """Where a worker may have its temporary files. Short, for sockets lie there too, whose paths may have 107
    characters.
    """
    parent = variables.get("TMPDIR", "")
    if not (os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK)):
        parent = tempfile.gettempdir()
    return os.path.join(os.path.abspath(parent), f"collage-worker-{name[:12]}")


_asking: dict[int, threading.Lock] = {}
"""By process, as what it guards, so that two that ask at once get one: a child may be forked while another
thread holds its parent's.
"""


@cache
def _spawner(pid: int) -> ThreadPoolExecutor:
    """The thread that starts all workers of process `pid`.

    The kernel's parent-death signal is sent when the *thread* that started a child ends, so the threads of
    callers will not do. RuntimeError where there is no room for a thread.
    """
    spawner = ThreadPoolExecutor(1, thread_name_prefix="collage-spawn")
    # It starts its thread now: a call that finds none stays in its queue, and would run after it has failed.
    spawner.submit(int).result()
    return spawner
