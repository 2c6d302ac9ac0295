"""Quantised networks, placed and beside whole runtimes on the same file, in one run.

    python benchmarks/quantised.py resnet50 mobilenet_v2 bert_base --effort normal --json quantised.json

Each network is quantised by ONNX Runtime's tool (`collage quantize`) from made-up samples, and optimized.
ONNX Runtime and OpenVINO load the quantised file themselves. Ratios are to Collage's answer, above 1 where
that is faster. Errors are to the reference on the quantised model, max|difference| / max|expected|; and what
the quantised model itself is off from that of floats, on a sample that was held out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from collage_benchmarks.by_network import arguments, placed, run, timed
from collage_benchmarks.networks import NETWORKS

from collage_core import Optimization, Target, optimize, quantise
from collage_core.costs.check import largest_error
from collage_core.costs.database import CostDatabase
from collage_core.costs.inputs import synthesise_inputs
from collage_core.ir import from_model
from collage_core.measuring.machine import Machine
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.benchmark import Benchmark, benchmark
from collage_core.pipeline.effort import EFFORTS
from collage_core.pipeline.proof import COLLAGE
from collage_core.plugins import default_registry
from collage_core.report.contenders import bench_json
from collage_core.report.tables import Table

_PEERS = ("onnxruntime", "openvino")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=8, help="to quantise by (default: %(default)s)")
    return run("quantised", parser.parse_args(), _measured, _text)


def _measured(network: str, args: argparse.Namespace) -> dict[str, Any]:
    target = Target("cpu", args.threads)
    proto = NETWORKS[network].build()
    graph = from_model(proto)
    drawn = [synthesise_inputs(graph, seed) for seed in range(args.samples)]
    samples = {name: np.stack([d[name] for d in drawn]) for name in drawn[0]}
    with tempfile.TemporaryDirectory(prefix="collage-quantised-") as folder:
        model = Path(folder) / f"{network}.onnx"
        made = quantise(proto, samples, model)
        found = optimize(model, effort=EFFORTS[args.effort], target=target, costs=args.costs)
        with CostDatabase(args.costs) as database:
            machine = Machine.of(database, target=target)
            peers = [default_registry().peer(p) for p in _PEERS]
            placements = {COLLAGE: found.placement, **_alone(found)}
            result = benchmark(machine, found.graph, placements, peers, str(model))
        errors = _errors(found, result)
    report = bench_json(result.comparison, result.peers, result.differences)
    quantised = {
        "held_out_error": made.error,
        "quantised_products": made.quantised,
        "products": made.products,
        "bytes_before": made.bytes_before,
        "bytes": made.bytes,
    }
    return {
        "network": network,
        "quantised": quantised,
        "placed": placed(found, lambda g: g.backend),
        "errors": errors,
        **report,
    }


def _alone(found: Optimization) -> dict[str, Any]:
    """The fastest of each library that can run it alone, but for what the answer is anyway."""
    return {
        f"{s.backend} alone": s.placement
        for s in found.singles
        if s.placement is not None and s.placement.digest != found.placement.digest
    }


def _errors(found: Optimization, result: Benchmark) -> dict[str, float]:
    with Workspace(found.graph) as workspace:
        expected = workspace.expected_outputs()
    errors = {}
    for name, answers in result.comparison.outputs.items():
        if answers:
            errors[name] = max(largest_error(answers[v], right) for v, right in expected.items())
    return errors


def _text(told: Mapping[str, Any]) -> str:
    rows = []
    for name, c in told["contenders"].items():
        rows.append((name, *timed(c, told["errors"].get(name))))
    quantised = told["quantised"]
    return (
        f"{quantised['quantised_products']} of {quantised['products']} products quantised, off by "
        f"{quantised['held_out_error']:.1e} from floats; placed in {told['placed']['seconds']} s: "
        + ", ".join(f"{who} {count}" for who, count in told["placed"]["nodes"].items())
        + "\n"
        + str(Table(("who", "ms", "over Collage's", "off from the reference"), rows, right=[1, 2, 3]))
    )


if __name__ == "__main__":
    sys.exit(main())
