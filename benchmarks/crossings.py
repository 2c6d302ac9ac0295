"""What groups and crossings cost on this machine, calibrated several times (docs/adr/0030-crossings.md):

    python benchmarks/crossings.py --times 4

Each time begins with an empty database. Printed are the constants of each backend in microseconds, once for
each time, and what a value takes from one backend to another beyond the reader's constant: the median of
each time, and of how many places.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from collage_core.costs.database import CostDatabase
from collage_core.measuring.calibration import TRANSITIONS, calibrate
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Silent
from collage_core.plugins import default_registry
from collage_core.target import Target, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=4)
    times = parser.parse_args().times
    target, registry = Target.default(), default_registry()
    backends = {b.name: b for b in registry.available(None)}
    found, took_s = [], []
    for i in range(times):
        start = time.monotonic()
        found.append(_calibrated(backends, target))
        took_s.append(time.monotonic() - start)
        print(f"{i + 1} of {times}: {took_s[-1]:.1f} s", file=sys.stderr)
    seconds = ", ".join(f"{s:.1f}" for s in took_s)
    print(f"{processor().model}, {target.threads} threads; seconds: {seconds}\n")
    print("| backend | per group, us | per value that leaves it, us |\n|---|---|---|")
    for name in sorted(backends):
        per_group, per_crossing = (
            ", ".join(f"{1e3 * f[kind][name]:.0f}" for f in found) for kind in ("group_ms", "crossing_ms")
        )
        print(f"| {name} | {per_group} | {per_crossing} |")
    paces = ", ".join(f"{f['pace']:.3f}" for f in found)
    print(f"\nPace, each time: {paces}")
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for details in found:
        for source, backend, ms, count in details["pairs"]:
            pairs[source, backend].append(f"{1e3 * ms:.0f} ({count})")
    print("\n| from | to | us (of so many), each time |\n|---|---|---|")
    for (source, backend), told in sorted(pairs.items()):
        print(f"| {source} | {backend} | {', '.join(told)} |")


def _calibrated(backends: Mapping[str, Any], target: Target) -> Mapping[str, Any]:
    with CostDatabase(":memory:") as database:
        calibrate(Machine(backends, target, database, default_registry(), Silent()))
        details: Mapping[str, Any] = next(
            s.record.details for s in database.items() if s.key.kind == TRANSITIONS
        )
        return details


if __name__ == "__main__":
    main()
