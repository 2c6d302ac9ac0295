"""A backend on NumPy, right and slow, that logs when its kernels run and leaves a process behind for each
that it builds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from costs_faulty_backends import Good
from costs_odd_backend import OddKernel

from collage_core.backend import Backend, Bound, Kernel, Variant
from collage_core.devices import Queue
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.plugins import hookimpl
from collage_core.target import Target

LOG = "COLLAGE_TEST_LOG"
"""File to which a line is appended for each run of a kernel: the process that supervises it, start and end on
the system's monotonic clock in ns.
"""

_RUN_S = 0.002


class Logging(Good):
    name = "logging"

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
        return LoggingKernel(subgraph, {v: subgraph.graph.constants[v] for v in subgraph.constants}, "right")


class LoggingKernel(OddKernel):
    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        bound = super().bind(inputs, outputs, workspace, queue)
        # Never closed: kernels live as long as their process.
        log = os.open(os.environ.get(LOG, os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def call() -> object:
            start_ns = time.monotonic_ns()
            time.sleep(_RUN_S)
            code = bound()
            os.write(log, f"{os.getppid()} {start_ns} {time.monotonic_ns()}\n".encode())
            return code

        return call


@hookimpl
def collage_backends() -> Sequence[Backend]:
    return [Logging()]
