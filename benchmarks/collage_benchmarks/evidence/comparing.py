"""`python -m collage_benchmarks.evidence.comparing BUNDLE ...`: bundles of one model beside each other.

Prints a list in JSON, of each bundle what `collage bench` says of a contender; ratios are to the first one.
Of equal placements one is run for all. The exit status is 1 where one of them does not run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from collage_core.costs.database import CostDatabase
from collage_core.errors import CollageError
from collage_core.measuring.machine import Machine
from collage_core.pipeline.benchmark import benchmark
from collage_core.pipeline.proof import COLLAGE
from collage_core.report.contenders import bench_json
from collage_core.runtime.bundle import read

__all__ = ["main"]


def main(files: Sequence[str] | None = None) -> int:
    files = sys.argv[1:] if files is None else files
    try:
        bundles = [read(file) for file in files]
        names = {bundles[0].placement.digest: COLLAGE}
        for file, bundle in zip(files, bundles, strict=True):
            names.setdefault(bundle.placement.digest, file)
        placements = {names[b.placement.digest]: b.placement for b in bundles}
        with CostDatabase() as database:
            machine = Machine.of(database, target=bundles[0].placement.target)
            result = benchmark(machine, bundles[0].graph, placements, [])
    except CollageError as error:
        print(f"comparing: {error}", file=sys.stderr)
        return 1
    contenders = bench_json(result.comparison, [], {})["contenders"]
    for name, contender in contenders.items():
        if contender["reason"]:
            print(f"comparing: {name}: {contender['reason']}", file=sys.stderr)
    print(json.dumps([contenders[names[b.placement.digest]] for b in bundles]))
    return 1 if any(c["reason"] for c in contenders.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
