"""What rounding to bfloat16 brings: one network placed three times, then compared in one run.

    python benchmarks/precision.py resnext50 bert_base --effort thorough --json precision.json

The placements are: all in float32; with bfloat16 allowed; and OpenVINO alone with bfloat16 allowed. Beside
them run ONNX Runtime and OpenVINO as whole runtimes, in float32. Errors are to the reference, as the
optimization told them. Ratios are to the placement with bfloat16, above 1 where that is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from collage_benchmarks.networks import NETWORKS

from collage_core import Optimization, Target, optimize
from collage_core.backend import rounded_to
from collage_core.costs.database import CostDatabase
from collage_core.device import processor
from collage_core.errors import CollageError
from collage_core.ir import Subgraph
from collage_core.measuring.machine import Machine
from collage_core.pipeline.benchmark import benchmark
from collage_core.pipeline.effort import EFFORTS
from collage_core.pipeline.proof import COLLAGE
from collage_core.plugins import default_registry
from collage_core.report.contenders import bench_json
from collage_core.report.text import table

_PEERS = ("onnxruntime", "openvino")
_FLOAT32, _ALONE = "float32 mix", "openvino alone, bfloat16"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="+", choices=sorted(NETWORKS), metavar="NETWORK")
    parser.add_argument("--effort", choices=sorted(EFFORTS), default="normal", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="for every library (default: %(default)s)")
    parser.add_argument("--costs", metavar="FILE", help="cost database (default: in the user's cache folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to a file")
    args = parser.parse_args()
    print(f"{processor().model}, {args.threads} threads, effort {args.effort}")
    told = []
    try:
        for name in args.networks:
            told.append(_measured(name, args))
            print(f"\n{name}\n{_text(told[-1])}", flush=True)
            if args.json:
                args.json.write_text(json.dumps({"processor": processor().model, "networks": told}, indent=1))
    except CollageError as error:
        print(f"precision: {error}", file=sys.stderr)
        return 1
    return 0


def _measured(network: str, args: argparse.Namespace) -> dict[str, Any]:
    exact, rounding = Target("cpu", args.threads), Target("cpu", args.threads, ("bfloat16",))
    ways: Mapping[str, Mapping[str, Any]] = {
        COLLAGE: {"target": rounding},
        _FLOAT32: {"target": exact},
        _ALONE: {"target": rounding, "backends": ["openvino"]},
    }
    with tempfile.TemporaryDirectory(prefix="collage-precision-") as folder:
        model = Path(folder) / f"{network}.onnx"
        onnx.save(NETWORKS[network].build(), model)
        found = {
            way: optimize(model, effort=EFFORTS[args.effort], costs=args.costs, **how)
            for way, how in ways.items()
        }
        with CostDatabase(args.costs) as database:
            result = benchmark(
                Machine.of(database, target=rounding),
                found[COLLAGE].graph,
                {way: o.placement for way, o in found.items()},
                [default_registry().peer(p) for p in _PEERS],
                str(model),
            )
    report = bench_json(result.comparison, result.peers, result.differences)
    return {"network": network, "placed": {way: _told(o) for way, o in found.items()}, **report}


def _told(o: Optimization) -> dict[str, Any]:
    """Who runs how many nodes in which precision, and how wrong the answer is."""
    nodes: Counter[str] = Counter()
    for g in o.placement.groups:
        subgraph = Subgraph(o.graph, g.nodes)
        rounded = sorted(rounded_to(subgraph, g.variant))
        nodes[f"{g.backend} {rounded[0] if rounded else 'float32'}"] += len(g.nodes)
    records = o.comparison.records if o.comparison else {}
    return {
        "nodes": dict(nodes),
        "conversions": len(o.placement.conversions),
        "predicted_ms": o.placement.predicted_ms,
        "error": records[COLLAGE].error if COLLAGE in records else None,
    }


def _text(told: Mapping[str, Any]) -> str:
    rows = []
    for name, c in told["contenders"].items():
        placed = told["placed"].get(name, {})
        error = placed.get("error")
        rows.append(
            (
                "bfloat16 allowed" if name == COLLAGE else name,
                f"{c['median_ms']:.2f}" if c["median_ms"] else "-",
                f"{c['ratio']:.3f} +- {c['half_interval']:.3f}" if c["ratio"] and c["half_interval"] else "-",
                "-" if error is None else f"{error:.1e}",
                ", ".join(f"{who} {count}" for who, count in placed.get("nodes", {}).items()),
            )
        )
    return table(("who", "ms", "over bfloat16's", "error", "nodes"), rows, right=[1, 2])


if __name__ == "__main__":
    sys.exit(main())
