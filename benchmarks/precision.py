"""What rounding to bfloat16 brings: one network placed three times and more, then compared in one run.

    python benchmarks/precision.py resnext50 bert_base --effort thorough --json precision.json
    python benchmarks/precision.py resnext50 --max-errors 1e-2 1e-3 --inputs 100

The placements are: all in float32; with bfloat16 allowed; OpenVINO alone with bfloat16 allowed; and one
within each error that is given. Beside them run ONNX Runtime and OpenVINO as whole runtimes, in float32.
Errors are to the reference, on as many inputs as are asked for, made up, none of which an optimization has
seen, and on the one that all have seen. Ratios are to the placement with bfloat16, above 1 where that is
faster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import onnx
from collage_benchmarks.by_network import arguments, placed, run, timed
from collage_benchmarks.networks import NETWORKS

from collage_core import Group, Optimization, Target, Workspace, optimize
from collage_core.backend import rounded_to
from collage_core.costs.database import CostDatabase
from collage_core.costs.inputs import synthesise_inputs
from collage_core.ir import Subgraph
from collage_core.measuring.held_out import HeldOut
from collage_core.measuring.machine import Machine
from collage_core.pipeline.benchmark import benchmark
from collage_core.pipeline.effort import EFFORTS
from collage_core.pipeline.proof import COLLAGE
from collage_core.plugins import default_registry
from collage_core.report.contenders import bench_json
from collage_core.report.tables import Table

_PEERS = ("onnxruntime", "openvino")
_FLOAT32, _ALONE = "float32 mix", "openvino alone, bfloat16"
_FIRST_SEED = 1000
"""Of inputs that no optimization makes up."""


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--max-errors",
        nargs="*",
        type=float,
        default=[],
        metavar="E",
        help="place it within each of these, too",
    )
    parser.add_argument(
        "--inputs", type=int, default=10, help="to look at errors on, beside the first (default: %(default)s)"
    )
    return run("precision", parser.parse_args(), _measured, _text)


def _measured(network: str, args: argparse.Namespace) -> dict[str, Any]:
    exact, rounding = Target("cpu", args.threads), Target("cpu", args.threads, ("bfloat16",))
    ways: Mapping[str, Mapping[str, Any]] = {
        COLLAGE: {"target": rounding},
        _FLOAT32: {"target": exact},
        _ALONE: {"target": rounding, "backends": ["openvino"]},
        **{f"within {e:g}": {"target": exact, "max_error": e} for e in args.max_errors},
    }
    with tempfile.TemporaryDirectory(prefix="collage-precision-") as folder:
        model = Path(folder) / f"{network}.onnx"
        onnx.save(NETWORKS[network].build(), model)
        found = {
            way: optimize(model, effort=EFFORTS[args.effort], costs=args.costs, **how)
            for way, how in ways.items()
        }
        graph = found[COLLAGE].graph
        samples = [synthesise_inputs(graph, _FIRST_SEED + i) for i in range(args.inputs)]
        with CostDatabase(args.costs) as database, Workspace(graph) as workspace:
            machine = Machine.of(database, target=rounding)
            with closing(HeldOut(machine, workspace, samples)) as held_out:
                errors = {way: held_out.error_of(o.placement).worst for way, o in found.items()}
            result = benchmark(
                machine,
                graph,
                {way: o.placement for way, o in found.items()},
                [default_registry().peer(p) for p in _PEERS],
                str(model),
            )
    report = bench_json(result.comparison, result.peers, result.differences)
    told = {way: {**_told(o), "error": errors[way]} for way, o in found.items()}
    return {"network": network, "inputs": args.inputs + 1, "placed": told, **report}


def _told(o: Optimization) -> dict[str, Any]:
    """Who runs how many nodes in which precision, and what was known of that."""

    def who(g: Group) -> str:
        rounded = sorted(rounded_to(Subgraph(o.graph, g.nodes), g.variant))
        return f"{g.backend} {rounded[0] if rounded else 'float32'}"

    return {**placed(o, who), "held_out_error": o.spent.error if o.spent else None}


def _text(told: Mapping[str, Any]) -> str:
    rows = []
    for name, c in told["contenders"].items():
        found = told["placed"].get(name, {})
        nodes = ", ".join(f"{who} {count}" for who, count in found.get("nodes", {}).items())
        shown = "bfloat16 allowed" if name == COLLAGE else name
        rows.append((shown, *timed(c, found.get("error")), nodes))
    return str(Table(("who", "ms", "over bfloat16's", "error", "nodes"), rows, right=[1, 2]))


if __name__ == "__main__":
    sys.exit(main())
