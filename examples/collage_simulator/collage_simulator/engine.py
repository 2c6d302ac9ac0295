"""The device's own process: its memory, and its queue. The host reaches neither but by messages.

One thread takes the messages in, another does what they say, one after the other. So the host goes on while
the device works, and a message says nothing of when its work is done. When the host is gone, so is this
process.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from collage_simulator.costs import SimCosts

__all__ = ["Engine", "Program", "Wire", "main"]

Wire = tuple[int, tuple[int, ...], tuple[int, ...], str]
"""A value in the device's memory: address, shape, strides in bytes, dtype."""

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel as it is sent. function: "module:name" of `f(engine, inputs, outputs, attributes)`, which is
    called here; arguments: of its inputs, the number among the kernel's inputs, or a constant.
    """

    function: str
    arguments: tuple[int | _Array, ...]
    attributes: tuple[tuple[str, Any], ...]
    operations: float
    moved_bytes: float


class Engine:
    """Does what it is told, in order, and keeps the time that this is declared to take."""

    def __init__(self, costs: SimCosts, send: Callable[[object], None]) -> None:
        self._costs = costs
        self._send = send
        self._bases: list[int] = []
        self._blocks: dict[int, _Array] = {}
        self._programs: dict[int, Program] = {}
        self._graphs: dict[int, list[tuple[Any, ...]]] = {}
        self._marks: dict[int, float] = {}
        self._errors: dict[int, str] = {}
        self.clock_us = 0.0
        """Of all that was done so far, as declared."""
        self.launches = 0

    def do(self, message: tuple[Any, ...]) -> None:
        """One message: what to do, for which queue, with what. After an error nothing of this queue runs
        until the host has waited for it, and heard of it.
        """
        kind, number, *arguments = message
        try:
            if kind == "synchronize":
                self._synchronize(number, *arguments)
            elif number not in self._errors or kind not in ("read", "replay", "run", "write"):
                getattr(self, f"_{kind}")(*arguments)
        except Exception as error:  # a kernel may raise anything
            self._errors[number] = f"{type(error).__name__}: {error}"

    def view(self, wire: Wire) -> _Array:
        """The device's own memory as an array; IndexError where there is none."""
        address, shape, strides, dtype = wire
        block, offset = self.block(address)
        return np.ndarray(shape, np.dtype(dtype), block.data, offset, strides)

    def block(self, address: int) -> tuple[_Array, int]:
        """The allocation that an address lies in, and where in it."""
        at = bisect_right(self._bases, address) - 1
        if at < 0 or address - self._bases[at] > len(self._blocks[self._bases[at]]):
            raise IndexError(f"nothing lies at {address:#x}")
        return self._blocks[self._bases[at]], address - self._bases[at]

    def _allocate(self, address: int, size_bytes: int) -> None:
        self._blocks[address] = np.zeros(size_bytes, np.uint8)
        self._bases.insert(bisect_right(self._bases, address), address)

    def _free(self, address: int) -> None:
        if self._blocks.pop(address, None) is not None:
            self._bases.remove(address)

    def _forget(self, number: int) -> None:
        """A program, or what was captured."""
        self._programs.pop(number, None)
        self._graphs.pop(number, None)

    def _write(self, address: int, data: bytes) -> None:
        with self._taking(self._costs.copy_us(len(data))):
            block, offset = self.block(address)
            block[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def _read(self, token: int, address: int, size_bytes: int) -> None:
        with self._taking(self._costs.copy_us(size_bytes)):
            block, offset = self.block(address)
            self._send(("data", token, block[offset : offset + size_bytes].tobytes()))

    def _program(self, number: int, program: Program) -> None:
        self._programs[number] = program

    def _run(self, number: int, inputs: Sequence[Wire], outputs: Sequence[Wire]) -> None:
        self._launch([(self._programs[number], inputs, outputs)])

    def _capture(self, number: int, runs: list[tuple[Any, ...]]) -> None:
        self._graphs[number] = [(self._programs[n], *ends) for _, n, *ends in runs]

    def _replay(self, number: int) -> None:
        self._launch(self._graphs[number])

    def _launch(self, runs: Sequence[tuple[Any, ...]]) -> None:
        self.launches += 1
        with self._taking(self._costs.launch_us):
            pass
        for program, inputs, outputs in runs:
            with self._taking(self._costs.run_us(program.operations, program.moved_bytes)):
                module, name = program.function.split(":")
                given = [self.view(wire) for wire in inputs]
                arguments = [given[a] if isinstance(a, int) else a for a in program.arguments]
                results = [self.view(wire) for wire in outputs]
                getattr(importlib.import_module(module), name)(
                    self, arguments, results, dict(program.attributes)
                )

    def _mark(self, number: int) -> None:
        self._marks[number] = self.clock_us

    def _synchronize(self, number: int, token: int) -> None:
        marks, self._marks = self._marks, {}
        self._send(("synchronized", token, marks, self._errors.pop(number, None), self.launches))

    def _taking(self, us: float) -> _Taking:
        return _Taking(self, us)


class _Taking:
    """What is done inside takes as long as is declared, where the host's processor is fast enough for it."""

    def __init__(self, engine: Engine, us: float) -> None:
        self._engine, self._us = engine, us

    def __enter__(self) -> None:
        self._end_s = time.perf_counter() + self._us / 1e6

    def __exit__(self, *_: object) -> None:
        self._engine.clock_us += self._us
        while time.perf_counter() < self._end_s:
            pass


def main(descriptor: int, costs: SimCosts) -> None:
    """Serve one host until it is gone."""
    connection = Connection(descriptor)
    messages: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def take_in() -> None:
        try:
            while True:
                messages.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)  # whatever is being done: nobody waits for it

    threading.Thread(target=take_in, daemon=True).start()
    engine = Engine(costs, connection.send)
    while True:
        engine.do(messages.get())


if __name__ == "__main__":
    import json

    sys.path[:] = json.loads(sys.argv[3])
    main(int(sys.argv[1]), SimCosts(**json.loads(sys.argv[2])))
