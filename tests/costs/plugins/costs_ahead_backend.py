"""A backend on NumPy that compiles ahead, and logs what it does and when. The variant's option "ahead" says
what compiling one does.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from costs_odd_backend import OddBackend, OddKernel
from hanging import hang
from processes import state_of, wait_until

from collage_core.backend import Backend, Bound, Kernel, Variant
from collage_core.costs.lock import lock_path
from collage_core.devices import Queue
from collage_core.errors import BackendError
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.plugins import hookimpl
from collage_core.target import Target

LOG = "COLLAGE_TEST_LOG"
"""File to which a line is appended: "compile" or "run", the variant's option "number", the process, and
"locked" or "unlocked" for the measuring lock; of a run the states of those that have compiled.
"""
COMPILES = "COLLAGE_TEST_COMPILES"
"""Not set: it does not compile ahead."""


class AheadBackend(OddBackend):
    name = "ahead"

    def __init__(self) -> None:
        self.compiles_ahead = COMPILES in os.environ

    def compile_ahead(self, subgraph: Subgraph, variant: Variant, target: Target) -> None:
        options = dict(variant.options)
        assert os.environ["COLLAGE_TEST_AHEAD"] == "set"
        _log("compile", options["number"], _lock_state())
        match options.get("ahead"):
            case "raise":
                raise BackendError("it does not compile")
            case "crash":
                ctypes.string_at(1)
            case "exit":
                os._exit(7)
            case "hang":
                hang()
            case "sleep":
                time.sleep(600)
            case "meet":
                assert wait_until(lambda: len(compilers()) > 1)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        options = dict(variant.options)
        if options.get("ahead") == "raise":
            raise BackendError("it does not compile")
        constants = {v: subgraph.graph.constants[v] for v in subgraph.constants}
        return LoggingKernel(subgraph, constants, options["number"])

    def environment(self, target: Target) -> Mapping[str, str]:
        return {**super().environment(target), "COLLAGE_TEST_AHEAD": "set"}


class LoggingKernel(OddKernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        bound = super().bind(inputs, outputs, workspace, queue)

        def call() -> object:
            _log("run", self._do, "".join(sorted(set(map(state_of, compilers())))))
            return bound()

        return call


def compilers() -> set[int]:
    """The processes that have compiled."""
    return {int(pid) for what, _, pid, _ in lines() if what == "compile"}


def lines() -> list[list[str]]:
    path = Path(os.environ[LOG])
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _log(what: str, number: str, state: str) -> None:
    with open(os.environ[LOG], "a") as file:
        file.write(f"{what} {number} {os.getpid()} {state}\n")


def _lock_state() -> str:
    with lock_path().open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "locked"
    return "unlocked"


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [AheadBackend()]
