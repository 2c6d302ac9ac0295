"""What a virtual machine's moved processors do to each library's kernel (docs/adr/0025-moved-processors.md):

    python benchmarks/moved_processors.py --seconds 120

A convolution of 64 to 96 channels at 28 x 28, by each library's fastest kernel, is run for 50 ms at a time,
one library after the other; before and after all of them the processors are looked at (`costs.processors`).
Printed are, for each state that they were in before and after, its share of the time, half of what a number
needs from one processor to the other and back, how much longer a loop takes beside another, and the medians
of the kernels' times in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from statistics import median

import numpy as np
from collage_benchmarks.variants import calls_of

from collage_core.backend import BackendKind
from collage_core.costs.processors import Look, Processors, Usual
from collage_core.plugins import Registry
from collage_core.target import Target
from collage_core.testing import make_group, node

_SPELL_S = 0.05
_TRIES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    seconds = parser.parse_args().seconds
    target = Target.default()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 64, 28, 28), np.float32)
    w = rng.standard_normal((96, 64, 3, 3), np.float32) / 24
    group = make_group([node("Conv", ["x", "w"], "y", pads=[1] * 4)], {"x": x}, {"w": w})
    infos = {b: b.info() for b in Registry().backends.values()}
    backends = [b for b, i in infos.items() if i.available and i.kind is BackendKind.OPERATOR]
    for backend in backends:
        os.environ.update(backend.environment(target))
    calls = {b.name: calls_of(b, group, x, target) for b in backends}
    kernels = {name: min(found, key=_least_spell) for name, found in calls.items() if found}
    usual = Usual()
    spells: list[tuple[Look, Look, dict[str, float]]] = []
    with closing(Processors(usual=usual)) as processors:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            before = processors.look()
            times_ms = {name: _spell(call) for name, call in kernels.items()}
            time.sleep(0.01)  # threads that still wait for work stop spinning
            after = processors.look()
            if before is not None and after is not None:
                spells.append((before, after, times_ms))
    if not spells:
        sys.exit("moved_processors: nothing can be told of these processors (see COLLAGE_SETTLING_LIMIT_S)")
    found = defaultdict(list)
    for before, after, times_ms in spells:
        state = _state(usual, before)
        found[state if state == _state(usual, after) else "moved meanwhile"].append((before, times_ms))
    for state, seen in sorted(found.items()):
        times = "   ".join(f"{name} {median(t[name] for _, t in seen):.3f} ms" for name in kernels)
        exchange_ns, slowdown = (median(look[k] for look, _ in seen) for k in range(2))
        share = len(seen) / len(spells)
        print(f"{state:16} {share:4.0%}   {exchange_ns:3.0f} ns   {slowdown:.2f} times   {times}")


def _state(usual: Usual, look: Look) -> str:
    if usual.agrees(look):
        return "together"
    return "apart" if usual.agrees(look._replace(exchange_ns=usual.exchange_ns)) else "one core"


def _least_spell(call: Callable[[], object]) -> float:
    return min(_spell(call) for _ in range(3))


def _spell(call: Callable[[], object]) -> float:
    """The median of its times, in ms."""
    times_ms: list[float] = []
    end_s = time.perf_counter() + _SPELL_S
    while time.perf_counter() < end_s or len(times_ms) < _TRIES:
        start_s = time.perf_counter()
        call()
        times_ms.append(1e3 * (time.perf_counter() - start_s))
    return median(times_ms)


if __name__ == "__main__":
    main()
