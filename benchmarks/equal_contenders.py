"""Do equal contenders come out equal (docs/adr/0020-comparisons.md)? The same library on the same network,
several times over, as in a comparison:

    python benchmarks/equal_contenders.py resnext50 openvino --contenders 6 --sittings 18

Printed is how far each is from the mean of its sittings, in percent, with the standard error of that mean;
then the same by whose process started first, second and so on.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev

import onnx
from collage_benchmarks.networks import NETWORKS
from collage_benchmarks.sweep.contending import contender
from collage_benchmarks.sweep.grid import WHOLE, Choice, Use

from collage_core.costs.ratio import HOPELESS
from collage_core.costs.rounds import MOST_ROUNDS, Rounds, Turns, measure_rounds, starting_order
from collage_core.costs.seats import Outcome
from collage_core.ir import load_model
from collage_core.ir.passes import normalise
from collage_core.measuring.machine import RUNS_PER_TURN
from collage_core.measuring.workspace import Workspace
from collage_core.target import Target, processor

_ROUNDS_PER_SITTING = 2
_FIRST_ORDER = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("library", help="a graph library, called by Collage with the whole graph")
    parser.add_argument("--contenders", type=int, default=6)
    parser.add_argument(
        "--sittings", type=int, default=18, help="each is first equally often after 6 for each"
    )
    args = parser.parse_args()
    if args.contenders < 2 or args.sittings < 2:
        parser.error("two contenders and two sittings at least")
    target = Target.default()
    outcomes = _outcomes(args.network, Use(args.library, WHOLE), target, args.contenders, args.sittings)
    for name, outcome in outcomes.items():
        if not outcome.ok:
            sys.exit(f"contender {name}: {outcome.reason}")
    off = _off(outcomes)
    print(f"{args.network}, {args.library}, {processor().model}, {target.threads} threads\n")
    print("| | off the mean, % | slower than the mean |\n|---|---|---|")
    for name, of in off.items():
        print(_row(f"contender {name}", of))
    for place, of in enumerate(_by_place(off), 1):
        print(_row(f"started as number {place}", of))


def _outcomes(
    network: str, use: Use, target: Target, contenders: int, sittings: int
) -> Mapping[str, Outcome]:
    with tempfile.TemporaryDirectory(prefix="collage-equal-") as folder:
        model = Path(folder) / f"{network}.onnx"
        onnx.save(NETWORKS[network].build(), model)
        with Workspace(normalise(load_model(model)), NETWORKS[network].inputs()) as workspace:
            return measure_rounds(
                [contender(use, Choice(str(n + 1)), target, model, workspace) for n in range(contenders)],
                Rounds(
                    sittings * _ROUNDS_PER_SITTING,
                    sittings,
                    MOST_ROUNDS,
                    HOPELESS,
                    first_order=_FIRST_ORDER,
                ),
                Turns(RUNS_PER_TURN),
            )


def _off(outcomes: Mapping[str, Outcome]) -> dict[str, list[float]]:
    """By name, of each sitting: the logarithm of its median over the geometric mean of all."""
    logs = {
        name: [math.log(median([t.ms for t in s.kept] or [math.nan])) for s in outcome.sittings]
        for name, outcome in outcomes.items()
    }
    means = [fmean(sitting) for sitting in zip(*logs.values(), strict=True)]
    return {name: [ms - mean for ms, mean in zip(of, means, strict=True)] for name, of in logs.items()}


def _by_place(off: Mapping[str, Sequence[float]]) -> list[list[float]]:
    """The same by whose process started first, second and so on."""
    names = list(off)
    orders = [starting_order(names, sitting, _FIRST_ORDER) for sitting in range(len(off[names[0]]))]
    return [[off[o[place]][s] for s, o in enumerate(orders)] for place in range(len(names))]


def _row(title: str, off: Sequence[float]) -> str:
    known = [o for o in off if not math.isnan(o)]
    error = stdev(known) / math.sqrt(len(known))
    slower = sum(o > 0 for o in known)
    return f"| {title} | {100 * fmean(known):+.2f} +- {100 * error:.2f} | {slower} of {len(known)} |"


if __name__ == "__main__":
    main()
