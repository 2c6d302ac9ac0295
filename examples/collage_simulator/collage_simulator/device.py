"""The device as the host sees it: messages to a process that has the memory and the queue."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from collage_core.devices import Buffers, Device, DeviceArray, DeviceInfo, Memory, Queue
from collage_core.errors import BackendError, CollageError
from collage_core.formats import Array, Format
from collage_simulator import __version__
from collage_simulator.costs import SimCosts, declared
from collage_simulator.engine import Program, Wire

__all__ = ["NAME", "SimDevice", "SimQueue"]

NAME = "sim"
_ALIGNMENT_BYTES = 256
_FENCE_BYTES = 64
_FENCE = 0xA5
_SPACE_BYTES = 1 << 44
"""Of addresses, for each process: what was kept from one that has died is nowhere in the next."""


_NOBODY = -1
"""The queue of what nobody waits for."""

_spaces = itertools.count(1)


class _Host:
    """One running device process, and what it has been told. Threads take turns.

    All of it belongs to somebody's queue, by its number: an error is told to whoever waits for that queue.
    """

    def __init__(self, costs: SimCosts) -> None:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "collage_simulator.engine"),
                *(str(theirs.fileno()), costs.text, json.dumps(sys.path)),
            ],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        weakref.finalize(self, _end, self._process, self._connection)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._next_address = next(_spaces) * _SPACE_BYTES
        self._arriving: dict[int, tuple[int, Array]] = {}
        self._captured = threading.local()
        self._given_up: deque[tuple[Any, ...]] = deque()
        """Told with the next message: whatever lets go of something may be in the middle of one."""
        self.elapsed_us: dict[int, float] = {}
        self.launches = 0
        """As of the last time that the host waited."""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def tell(self, kind: str, queue: int, *arguments: Any) -> None:
        """Queue something."""
        runs: list[tuple[Any, ...]] | None = getattr(self._captured, "runs", None)
        if runs is not None:
            if kind != "run":
                raise BackendError(f"{kind} cannot be captured")
            runs.append((queue, *arguments))
            return
        with self._lock:
            self._send((kind, queue, *arguments))

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            while self._given_up:
                self._connection.send(self._given_up.popleft())
            self._connection.send(message)
        except (OSError, ValueError):
            raise self._died() from None

    def number(self) -> int:
        return next(self._numbers)

    def allocate(self, queue: int, size_bytes: int) -> int:
        """An address."""
        with self._lock:
            address = self._next_address
            step = -(-max(size_bytes, 1) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            self._next_address += step + _ALIGNMENT_BYTES
            self._send(("allocate", queue, address, size_bytes))
        return address

    def give_up(self, kind: str, what: int) -> None:
        """Nobody holds it any more."""
        self._given_up.append((kind, _NOBODY, what))

    def fetch(self, queue: int, address: int, destination: Array) -> None:
        """Queue a copy; `destination` has it after `synchronize`."""
        token = self.number()
        with self._lock:
            self._arriving[token] = queue, destination
        self.tell("read", queue, token, address, destination.nbytes)

    def synchronize(self, queue: int) -> None:
        """Wait for what has been told so far. What arrives meanwhile may be for others."""
        token = self.number()
        with self._lock:
            self._send(("synchronize", queue, token))
            while True:
                try:
                    kind, number, *told = self._connection.recv()
                except (EOFError, OSError):
                    raise self._died() from None
                if kind == "data":
                    _, destination = self._arriving.pop(number, (queue, None))
                    if destination is not None:
                        _flat(destination)[...] = np.frombuffer(told[0], np.uint8)
                elif number == token:
                    marks, error, self.launches = told
                    self.elapsed_us |= marks
                    break
            if error is not None:  # what it was to bring will not come
                self._arriving = {t: (q, a) for t, (q, a) in self._arriving.items() if q != queue}
        if error is not None:
            raise BackendError(f"the simulated device failed: {error}")

    def capture(self, queue: int, calls: Sequence[Callable[[], object]]) -> int:
        """The number of what these calls would run."""
        runs: list[tuple[Any, ...]] = []
        self._captured.runs = runs
        try:
            statuses = [call() for call in calls]
            if any(statuses):
                raise BackendError("a call that is captured returns an error code")
        finally:
            self._captured.runs = None
        number = self.number()
        self.tell("capture", queue, number, runs)
        return number

    def _died(self) -> BackendError:
        self._connection.close()
        code = self._process.wait()
        return BackendError(f"the simulated device's process died (exit code {code})")


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    """Whoever is gone from one end of a connection is gone from the other."""
    connection.close()
    process.wait()


def _flat(array: Array) -> Array:
    """The bytes of a dense array, in whatever order its dimensions lie."""
    order = sorted(range(array.ndim), key=lambda d: (array.shape[d] == 1, -array.strides[d]))
    return array.transpose(order).reshape(-1).view(np.uint8)


class SimQueue(Queue):
    """Their process does what is on all of them in the order in which it is told."""

    def __init__(self, host: _Host) -> None:
        self.host = host
        self.number = host.number()

    def synchronize(self) -> None:
        self.host.synchronize(self.number)

    def mark(self) -> int:
        number = self.host.number()
        self.host.tell("mark", self.number, number)
        return number

    def elapsed_ms(self, first: int, last: int) -> float:
        return (self.host.elapsed_us.pop(last) - self.host.elapsed_us.pop(first)) / 1e3

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
        number, tell, queue = self.host.capture(self.number, calls), self.host.tell, self.number

        def replay() -> None:
            tell("replay", queue, number)

        weakref.finalize(replay, self.host.give_up, "forget", number)
        return replay

    def launcher(
        self, program: Program, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]
    ) -> Callable[[], object]:
        """What runs a program on these."""
        number, tell, queue = self.host.number(), self.host.tell, self.number
        tell("program", queue, number, program)
        given, results = [_wire(a) for a in inputs], [_wire(a) for a in outputs]

        def launch() -> None:
            tell("run", queue, number, given, results)

        weakref.finalize(launch, self.host.give_up, "forget", number)
        return launch


def _wire(array: DeviceArray) -> Wire:
    return array.address, array.shape, array.strides, array.dtype


class _SimMemory(Memory):
    def __init__(self, host: _Host, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._host = host
        self._queue = host.number()
        self._address = host.allocate(self._queue, size_bytes)
        weakref.finalize(self, host.give_up, "free", self._address)

    def array(self, offset: int, shape: Sequence[int], format: Format) -> DeviceArray:
        return DeviceArray.of(self._address + offset, shape, format)

    def fill(self, offset: int, size_bytes: int, byte: int) -> None:
        self._host.tell("write", self._queue, self._address + offset, bytes([byte]) * size_bytes)

    def bytes(self, offset: int, size_bytes: int) -> bytes:
        found = np.empty(size_bytes, np.uint8)
        self._host.fetch(self._queue, self._address + offset, found)
        self.wait()
        return found.tobytes()

    def wait(self) -> None:
        """Until what was told of it is done; BackendError where that failed, as for want of room."""
        self._host.synchronize(self._queue)


class _SimBuffers(Buffers):
    def __init__(self, host: _Host) -> None:
        self._host = host
        self._made: list[tuple[str, _SimMemory, int]] = []

    def array(self, shape: Sequence[int], format: Format, name: str) -> DeviceArray:
        size_bytes = format.size_bytes(shape)
        memory = _SimMemory(self._host, size_bytes + 2 * _FENCE_BYTES)
        for offset in (0, _FENCE_BYTES + size_bytes):
            memory.fill(offset, _FENCE_BYTES, _FENCE)
        self._made.append((name, memory, size_bytes))
        return memory.array(_FENCE_BYTES, shape, format)

    def trespass(self) -> str | None:
        for name, memory, size_bytes in self._made:
            for where, offset in (("before", 0), ("behind", _FENCE_BYTES + size_bytes)):
                if set(memory.bytes(offset, _FENCE_BYTES)) != {_FENCE}:
                    return f"{where} {name}"
        return None


class SimDevice(Device):
    """An accelerator that is a process of its own. It is started when it is first needed, and again after it
    has died.
    """

    name = NAME

    def __init__(self) -> None:
        self._host: _Host | None = None
        self._starting = threading.Lock()

    def info(self) -> DeviceInfo:
        try:
            declared()
        except CollageError as error:
            return DeviceInfo(self.name, __version__, "", str(error))
        return DeviceInfo(self.name, __version__, "a simulated accelerator")

    def fingerprint(self) -> Mapping[str, str]:
        return {"costs": declared().text}

    def queue(self) -> SimQueue:
        return SimQueue(self._running())

    def allocate(self, size_bytes: int) -> Memory:
        memory = _SimMemory(self._running(), size_bytes)
        memory.wait()
        return memory

    def fenced(self, protect: bool) -> Buffers:
        return _SimBuffers(self._running())

    def upload(self, source: Array, destination: DeviceArray, queue: Queue) -> None:
        assert isinstance(queue, SimQueue)
        queue.host.tell("write", queue.number, destination.address, _flat(source).tobytes())

    def download(self, source: DeviceArray, destination: Array, queue: Queue) -> None:
        assert isinstance(queue, SimQueue)
        queue.host.fetch(queue.number, source.address, destination)

    def _running(self) -> _Host:
        with self._starting:
            if self._host is None or not self._host.is_alive:
                self._host = _Host(declared())
            return self._host
