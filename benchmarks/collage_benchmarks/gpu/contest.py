"""`python -m collage_benchmarks.gpu.contest NETWORK BUNDLE`: a bundle and PyTorch in turn, on one GPU, in one
process. Prints every run as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from collage_benchmarks.gpu.contenders import WAYS, Contender, collage_of, torch_of
from collage_benchmarks.networks import NETWORKS
from collage_core.formats import Array
from collage_core.ir import from_model
from collage_core.ir.passes import normalise

__all__ = ["main", "take_turns"]

_COLLAGE = "collage"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--dtype", default="float32", help="PyTorch's floats (default: %(default)s)")
    parser.add_argument("--ways", default="eager,graph,compile", help=f"of {','.join(WAYS)}")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=10, help="of each contender in a round")
    args = parser.parse_args(arguments)
    network = NETWORKS[args.network]
    inputs = network.inputs(1)
    graph = normalise(from_model(network.build()))
    contenders: dict[str, Contender] = {}
    failed: dict[str, str] = {}
    prepared_s: dict[str, float] = {}
    contenders[_COLLAGE], calls = collage_of(args.bundle, inputs)
    for way in filter(None, args.ways.split(",")):
        begun_s = time.monotonic()
        try:
            contenders[f"torch {way}"] = torch_of(graph, inputs, way, args.dtype)
        except Exception as error:  # whatever a compiler raises; the others are compared all the same
            failed[f"torch {way}"] = f"{type(error).__name__}: {error}"[:500]
        prepared_s[f"torch {way}"] = time.monotonic() - begun_s
    runs_ms = take_turns(contenders, args.rounds, args.runs)
    expected = contenders[_COLLAGE].outputs()
    told: dict[str, Any] = {
        "network": args.network,
        "dtype": args.dtype,
        **calls,
        "median_ms": {name: median(times) for name, times in runs_ms.items()},
        "off_by": {name: _off_by(c.outputs(), expected) for name, c in contenders.items()},
        "prepared_s": prepared_s,
        "failed": failed,
        "runs_ms": runs_ms,
    }
    json.dump(told, sys.stdout)
    return 0


def take_turns(contenders: Mapping[str, Contender], rounds: int, runs: int) -> dict[str, list[float]]:
    """Milliseconds of each run, host to host. In each round everybody has so many runs behind each other,
    after one that is not timed; whoever begins changes from round to round.
    """
    names = list(contenders)
    runs_ms: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            run = contenders[name].run
            run()
            for _ in range(runs):
                begun_ns = time.perf_counter_ns()
                run()
                runs_ms[name].append((time.perf_counter_ns() - begun_ns) / 1e6)
    return runs_ms


def _off_by(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest difference from Collage's answer, of its largest element."""
    return max(
        float(np.abs(f - e).max() / max(np.abs(e).max(), 1e-30)) for f, e in zip(found, expected, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
