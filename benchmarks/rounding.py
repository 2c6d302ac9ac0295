"""What rounding alone does to a network: the reference's answer, and that with everything rounded.

    python benchmarks/rounding.py squeezenet dcgan densenet121 resnext50 mobilenet_v2 --json rounding.json
    python benchmarks/rounding.py squeezenet dcgan densenet121 resnext50 mobilenet_v2 --dtype 'a bit off'

Errors are max|difference| / max|expected|, the worst output's, and the same of root mean squares. Inputs and
weights are made up, by the same seeds each time; nothing is timed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from collage_benchmarks.networks import NETWORKS, add_networks

from collage_core.costs.check import largest_error, rms_error
from collage_core.costs.inputs import synthesise_inputs
from collage_core.formats import FLOATS
from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from collage_core.reference import evaluate
from collage_core.reference.evaluator import A_BIT_OFF
from collage_core.report.tables import Table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_networks(parser)
    parser.add_argument(
        "--dtype", choices=(*FLOATS, A_BIT_OFF), default="bfloat16", help="default: %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it to a file")
    args = parser.parse_args()
    found = {name: _errors(name, args.dtype) for name in args.networks}
    rows = [(name, f"{worst:.2g}", f"{whole:.2g}") for name, (worst, whole) in found.items()]
    print(Table(("network", "worst element", "root mean square"), rows, right=[1, 2]))
    if args.json:
        told = {name: {"worst": worst, "rms": whole} for name, (worst, whole) in found.items()}
        args.json.write_text(json.dumps({"dtype": args.dtype, "errors": told}, indent=1) + "\n")


def _errors(network: str, dtype: str) -> tuple[float, float]:
    graph = normalise(from_model(NETWORKS[network].build()))
    inputs = synthesise_inputs(graph)
    exact, rounded = evaluate(graph, inputs), evaluate(graph, inputs, rounded_to=dtype)
    pairs = [(rounded[v].astype(np.float64), a.astype(np.float64)) for v, a in exact.items()]
    return max(largest_error(a, b) for a, b in pairs), max(rms_error(a, b) for a, b in pairs)


if __name__ == "__main__":
    main()
