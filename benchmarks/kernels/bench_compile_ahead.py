"""What compiling takes, in one process and in several: the kernels of a backend that compiles ahead.

    python benchmarks/kernels/bench_compile_ahead.py [--network inception_v2] [--backend tvm] [--repeats N]

All groups of the network that the backend offers are built in one process, as measuring does. Then they are
compiled ahead by one process and by as many as there are processors, and built after that. Each time nothing
is compiled yet. Prints ms per kernel, median and range. The start of the processes that compile ahead counts,
the import of the library before building does not.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

from collage_benchmarks.kernels.building import build_each
from collage_benchmarks.networks import NETWORKS

from collage_core.candidates import generate_candidates
from collage_core.costs import KernelItem, MeasureJob, Policy
from collage_core.costs.ahead import AheadCompiler
from collage_core.ir import from_model, save_stored
from collage_core.ir.passes import normalise
from collage_core.plugins import default_registry
from collage_core.target import Target
from collage_core.worker import Worker


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--network", default="inception_v2", choices=sorted(NETWORKS), help="default: %(default)s"
    )
    parser.add_argument("--backend", default="tvm", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="default: %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = job_of(Path(folder), arguments.network, arguments.backend)
        print(f"{len(job.items)} kernels of {arguments.network} on {arguments.backend}, ms per kernel")
        compare(job, arguments.repeats)


def job_of(folder: Path, network: str, backend: str) -> MeasureJob:
    """Every kernel once that differs in more than its constants."""
    graph, target = normalise(from_model(NETWORKS[network].build())), Target("cpu", 2)
    save_stored(graph, folder)
    offered = generate_candidates(graph, [default_registry().backend(backend)], target).candidates
    kernels = {(c.subgraph.key, c.variant): c for c in offered if c.backend == backend}
    items = [
        KernelItem(k, tuple(n.id for n in c.subgraph.nodes), c.variant)
        for k, c in enumerate(kernels.values())
    ]
    return MeasureJob(folder, folder, backend, target, Policy(), tuple(items))


def compare(job: MeasureJob, repeats: int) -> None:
    processors = len(os.sched_getaffinity(0))
    taken_ms: dict[str, list[float]] = {}

    def take(what: str, run: Callable[[MeasureJob], float]) -> None:
        taken_ms.setdefault(what, []).append(run(job))

    for _ in range(repeats):
        with nothing_kept():
            take("built, nothing compiled", build_all)
        for count in sorted({1, processors}):
            with nothing_kept():
                take(f"compiled ahead by {count}", partial(compile_all, processes=count))
                take(f"built after {count}", build_all)
    for what, each_ms in taken_ms.items():
        print(f"{what:26}{median(each_ms):7.1f}   {min(each_ms):.1f} .. {max(each_ms):.1f}")


@contextmanager
def nothing_kept() -> Iterator[None]:
    """A cache folder of its own."""
    with tempfile.TemporaryDirectory() as home, mock.patch.dict(os.environ, {"COLLAGE_HOME": home}):
        yield


def compile_all(job: MeasureJob, processes: int) -> float:
    """ms per kernel of compiling them ahead."""
    start = time.perf_counter()
    with AheadCompiler(job, processes) as compiler:
        compiler.compile(job.items)
    return 1e3 * (time.perf_counter() - start) / len(job.items)


def build_all(job: MeasureJob) -> float:
    """ms per kernel of building them in a new process."""
    environment = default_registry().backend(job.backend).environment(job.target)
    with Worker(environment) as worker:
        return worker.call(build_each, job)


if __name__ == "__main__":
    main()
