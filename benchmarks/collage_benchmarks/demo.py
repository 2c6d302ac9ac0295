"""`python -m collage_benchmarks.demo`: place two real networks and show what it brings.

For each network, built from code with seeded weights: latency of Collage, of each backend alone and of each
installed peer, all in one run of alternating rounds; groups and time per backend; predicted beside measured;
and whether the answers agree with the peer's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from collage_benchmarks.networks import NETWORKS
from collage_core.cli.progress import ProgressBars
from collage_core.device import Target
from collage_core.errors import CollageError
from collage_core.pipeline.benchmark import PEER, benchmark
from collage_core.pipeline.comparison import Entrant, placement_entrant
from collage_core.pipeline.optimize import COLLAGE, Optimization, optimize
from collage_core.pipeline.progress import Progress
from collage_core.plugins import default_registry
from collage_core.report.summary import bench_json, optimization_json
from collage_core.report.text import bench_text, optimization_text

__all__ = ["main"]

_NETWORKS = ("resnext50", "bert_encoder")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when an answer is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m collage_benchmarks.demo", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"default: {' '.join(_NETWORKS)}")
    parser.add_argument("--threads", type=int, default=2, help="for every library (default: 2)")
    parser.add_argument(
        "--rounds", type=int, default=30, help="alternating rounds of the final comparison (default: 30)"
    )
    parser.add_argument("--costs", metavar="FILE", help="cost database (default: in the user's cache folder)")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    args = parser.parse_args(arguments)
    names = args.networks or _NETWORKS
    for name in names:
        if name not in NETWORKS:
            parser.error(f"unknown network {name!r}; known: {', '.join(NETWORKS)}")
    try:
        results = [_show(name, args) for name in names]
    except CollageError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(results, indent=2))
    return 0 if all(r["right"] for r in results) else 1


def _show(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Optimise one network, compare it, and print both unless JSON is wanted."""
    with tempfile.TemporaryDirectory() as folder, ProgressBars() as progress:
        model = Path(folder) / f"{name}.onnx"
        onnx.save(NETWORKS[name].build(), model)
        optimization = optimize(
            model, target=Target("cpu", args.threads), costs=args.costs, progress=progress
        )
        comparison = _compare(optimization, model, args, progress)
    report: dict[str, Any] = {
        "network": name,
        "optimize": optimization_json(optimization, name),
        "bench": comparison,
    }
    report["right"] = bool(comparison["max_rel_error"]) and not comparison["disagrees"]
    singles = [
        ms for n, ms in comparison["latency_ms"].items() if ms and n != COLLAGE and not n.startswith(PEER)
    ]
    ours = comparison["latency_ms"][COLLAGE]
    report["fastest_single_over_collage"] = min(singles) / ours if singles and ours else None
    report["reference_share"] = report["optimize"]["shares"].get("reference", {}).get("share", 0.0)
    if not args.json:
        _print(report)
    return report


def _print(report: dict[str, Any]) -> None:
    print(optimization_text(report["optimize"]), bench_text(report["bench"]), sep="\n\n")
    if report["fastest_single_over_collage"] is not None:
        print(f"fastest single backend / collage: {report['fastest_single_over_collage']:.3f}")
    print(f"share of the reference: {report['reference_share']:.2%}")
    compared = bool(report["bench"]["max_rel_error"] or report["bench"]["disagrees"])
    verdict = "agree" if report["right"] else "DO NOT AGREE" if compared else "were not compared (no peer)"
    print(f"the answers {verdict}\n", flush=True)


def _compare(o: Optimization, model: Path, args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Collage, every single backend that was worth running, and every peer, in one run."""
    registry = default_registry()
    shown = o.comparison.records if o.comparison else {}
    entrants: list[Entrant] = [placement_entrant(COLLAGE, o.placement, registry)]
    for s in o.singles:
        if s.placement is not None and (s.label in shown or s.placement.digest == o.placement.digest):
            entrants.append(placement_entrant(s.label, s.placement, registry))
    peers = [p for p in registry.peers.values() if p.info().available]
    result = benchmark(
        o.graph,
        entrants,
        peers,
        o.placement.target,
        str(model),
        costs=args.costs,
        rounds=args.rounds,
        progress=progress,
    )
    return bench_json(result.comparison, result.peers, result.differences)


if __name__ == "__main__":
    sys.exit(main())
