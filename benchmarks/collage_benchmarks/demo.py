"""`python -m collage_benchmarks.demo`: place a real network and show what it brings.

For each network, built from code with seeded weights: who runs how much of it, and how fast that is beside
each backend alone; then Collage, the backends that came near and each installed peer once more, in one run of
alternating rounds; and whether the answers agree with the peer's.
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

from collage_benchmarks.networks import NETWORKS, add_networks
from collage_core.cli.progress import ProgressBars
from collage_core.costs.database import CostDatabase
from collage_core.errors import CollageError
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Progress
from collage_core.pipeline.benchmark import PEER, benchmark
from collage_core.pipeline.optimize import COLLAGE, Optimization, optimize
from collage_core.plugins import default_registry
from collage_core.report.contenders import bench_json
from collage_core.report.summary import optimization_json
from collage_core.report.tables import Table
from collage_core.report.text import bench_text, optimization_text
from collage_core.target import Target

__all__ = ["main"]

_NETWORKS = ("inception_v2",)
_MOST_ON_REFERENCE = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when an answer is wrong, or the reference takes a hundredth of the time or more."""
    parser = argparse.ArgumentParser(
        prog="python -m collage_benchmarks.demo", description=__doc__.partition("\n")[0]
    )
    add_networks(parser, nargs="*", default=_NETWORKS)
    parser.add_argument("--threads", type=int, default=2, help="for every library (default: 2)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=12,
        help="rounds of the final comparison, at least (default: %(default)s)",
    )
    parser.add_argument("--costs", metavar="FILE", help="cost database (default: in the user's cache folder)")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    args = parser.parse_args(arguments)
    try:
        results = [_show(name, args) for name in args.networks]
    except CollageError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(results, indent=2))
    elif len(results) > 1:
        print(_summary(results))
    return 0 if all(r["right"] and r["reference_share"] < _MOST_ON_REFERENCE for r in results) else 1


def _show(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Optimise one network, compare it, and print both unless JSON is wanted."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"{name}.onnx"
        onnx.save(NETWORKS[name].build(), model)
        target = Target("cpu", args.threads)
        with ProgressBars() as progress:
            optimization = optimize(model, target=target, costs=args.costs, progress=progress)
        with ProgressBars() as progress:  # the budget was of what is over
            comparison = _compare(optimization, model, args, progress)
    report: dict[str, Any] = {
        "network": name,
        "optimize": optimization_json(optimization, name),
        "bench": comparison,
    }
    report["right"] = bool(comparison["max_rel_error"]) and not comparison["disagrees"]
    singles = [c["ratio"] for c in _singles(comparison) if c["ratio"]]
    report["fastest_single_over_collage"] = min(singles, default=None)
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


def _fastest_single_ms(bench: dict[str, Any]) -> float | None:
    """Of the backends that ran alone, or with the reference."""
    return min((c["median_ms"] for c in _singles(bench) if c["median_ms"]), default=None)


def _singles(bench: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for n, c in bench["contenders"].items() if n != COLLAGE and not n.startswith(PEER)]


def _summary(results: Sequence[dict[str, Any]]) -> str:
    """One line per network: nodes by backend, the reference's share, the largest difference from a peer, and
    milliseconds: predicted, measured, of the fastest single backend and of each peer.
    """
    peers = list(dict.fromkeys(n for r in results for n in r["bench"]["contenders"] if n.startswith(PEER)))
    rows = []
    for r in results:
        latency_ms = {name: c["median_ms"] for name, c in r["bench"]["contenders"].items()}
        placed = r["optimize"]
        nodes = {name: s["nodes"] for name, s in placed["shares"].items() if s["nodes"]}
        error = max(r["bench"]["max_rel_error"].values(), default=None)
        times_ms = [placed["predicted_ms"], latency_ms[COLLAGE], _fastest_single_ms(r["bench"])]
        times_ms += [latency_ms.get(peer) for peer in peers]
        rows.append(
            [
                r["network"],
                " ".join(f"{name} {count:.0f}" for name, count in nodes.items()),
                f"{r['reference_share']:.2%}",
                "-" if error is None else f"{error:.1e}",
                *("-" if ms is None else f"{ms:.2f}" for ms in times_ms),
            ]
        )
    header = [
        "network",
        "nodes by backend",
        "reference",
        "error",
        "predicted ms",
        "collage",
        "single",
        *peers,
    ]
    return str(Table(header, rows, right=range(2, len(header))))


def _compare(o: Optimization, model: Path, args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """Collage, every single backend that was worth running, and every peer, in one run."""
    registry = default_registry()
    shown = o.comparison.records if o.comparison else {}
    placements = {COLLAGE: o.placement}
    for s in o.singles:
        if s.placement is not None and (s.label in shown or s.placement.digest == o.placement.digest):
            placements[s.label] = s.placement
    peers = [p for p in registry.peers.values() if p.info().available]
    with CostDatabase(args.costs) as database:
        machine = Machine.of(database, target=o.placement.target, progress=progress)
        result = benchmark(machine, o.graph, placements, peers, str(model), args.rounds)
    return bench_json(result.comparison, result.peers, result.differences)


if __name__ == "__main__":
    sys.exit(main())
