"""`python concurrent_contexts.py FOLDER`: run one bundle in several contexts, in a process of its own.

FOLDER holds `model.collage` and, for input number *i*, `x<i>.npy` and `y<i>.npy`. Prints a JSON object:
errors: the largest max|difference| / max|expected| of every thread. built: kernels built for the contexts.
arena_bytes: of one context. arenas: allocated for further contexts. grown_bytes: by which resident memory
grew with each of those.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from collage_core import Context, Executable, load
from collage_core.formats import Array
from collage_core.plugins import default_registry
from collage_core.runtime import Arena

THREADS, RUNS, FURTHER = 4, 25, 4


def main(folder: Path) -> dict[str, Any]:
    executable = load(folder / "model.collage")
    count = len(list(folder.glob("x*.npy")))
    cases = [(np.load(folder / f"x{i}.npy"), np.load(folder / f"y{i}.npy")) for i in range(count)]
    built = count_builds()
    contexts = [executable.context() for _ in range(THREADS)]
    return {
        "errors": run_together(executable, contexts, cases),
        **memory_of_further_contexts(executable, cases[0][0]),
        "built": len(built),
    }


def count_builds() -> list[str]:
    """A list that grows with every kernel built from now on."""
    built: list[str] = []
    for backend in default_registry().available():
        for name in ("build", "build_conversion"):
            original = getattr(backend, name)

            def counted(*args: object, original: Any = original, name: str = name) -> object:
                built.append(name)
                return original(*args)

            setattr(backend, name, counted)
    return built


def run_together(
    executable: Executable, contexts: list[Context], cases: list[tuple[Array, Array]]
) -> list[float]:
    errors = [np.inf] * len(contexts)
    start = threading.Barrier(len(contexts))
    (output,) = executable.outputs

    def work(index: int, context: Context) -> None:
        worst = 0.0
        result = {output: np.empty_like(cases[0][1])}
        start.wait()
        for run in range(RUNS):
            x, expected = cases[(3 * index + run) % len(cases)]
            if run % 2:
                context.run(x, result)
            else:
                result = context(x)
            worst = max(worst, float(np.abs(result[output] - expected).max() / np.abs(expected).max()))
        errors[index] = worst

    threads = [threading.Thread(target=work, args=item) for item in enumerate(contexts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def memory_of_further_contexts(executable: Executable, x: Array) -> dict[str, int]:
    executable.context()(x)
    gc.collect()
    arenas, before = Arena.allocations, resident_bytes()
    further = [executable.context() for _ in range(FURTHER)]
    for context in further:
        context(x)
    grown = resident_bytes() - before
    return {
        "arena_bytes": further[0].arena_bytes["cpu"],
        "arenas": Arena.allocations - arenas,
        "grown_bytes": grown // FURTHER,
    }


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * int(os.sysconf("SC_PAGE_SIZE"))


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
