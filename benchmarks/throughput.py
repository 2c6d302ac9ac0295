"""The placement for throughput beside the one for latency, and beside peers, under one load.

    python benchmarks/throughput.py squeezenet dcgan inception_v2 --json throughput.json

Each network is optimised twice, for latency and for throughput. Then all take part in one comparison, in
which so many requests are asked at a time: what was found for throughput, as it is to be served; what was
found for latency, one request after the other, and several beside each other on all threads each; peers with
sessions beside each other (OpenVINO with its hint THROUGHPUT), and with one. Told is what each answers in a
second, and its time relative to that of what was found for throughput, with half the 95 % interval.
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

from collage_core import CostDatabase, Target, Workspace, optimize
from collage_core.cli.progress import ProgressBars
from collage_core.costs.ratio import sittings_of
from collage_core.costs.sittings import sittings_to_json
from collage_core.counted import counted
from collage_core.measuring.beside import Load
from collage_core.measuring.comparison import Contest, Plan
from collage_core.measuring.entrants import Entrant, peer_entrant, placement_entrant
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Progress
from collage_core.pipeline.effort import EFFORTS
from collage_core.pipeline.optimize import COLLAGE, Optimization
from collage_core.report.contenders import bench_json
from collage_core.report.tables import Table
from collage_core.serving import Serving
from collage_core.target import processor


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_networks(parser)
    parser.add_argument("--concurrency", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--effort", default="normal", choices=[*EFFORTS], help="default: %(default)s")
    parser.add_argument("--rounds", type=int, help="of the last comparison (default: until it is told)")
    parser.add_argument("--costs", type=Path, metavar="FILE", help="cost database (default: an empty one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every turn to a file")
    args = parser.parse_args()
    told = []
    with tempfile.TemporaryDirectory() as folder, ProgressBars() as progress:
        for name in args.networks:
            told.append(_compared(name, args, Path(folder), progress))
            print(f"\n{name}\n{_text(told[-1])}", flush=True)
            if args.json:
                head = {"processor": processor().model, "concurrency": args.concurrency}
                args.json.write_text(json.dumps({**head, "effort": args.effort, "networks": told}, indent=1))
    return 0


def _compared(name: str, args: argparse.Namespace, folder: Path, progress: Progress) -> dict[str, Any]:
    costs = args.costs or folder / "costs.sqlite"
    model = NETWORKS[name].build()

    def optimized(concurrency: int | None) -> Optimization:
        effort = EFFORTS[args.effort]
        return optimize(model, costs=costs, effort=effort, concurrency=concurrency, progress=progress)

    served, latency = optimized(args.concurrency), optimized(None)
    with Workspace(served.graph) as workspace, CostDatabase(costs) as database:
        machine = Machine.of(database, progress=progress)
        file = str(folder / f"{name}.onnx")
        onnx.save(model, file)
        entrants = _entrants(workspace, machine, served, latency, args.concurrency)
        theirs = [
            peer_entrant(
                workspace, f"{p.name}, {counted(s.sessions, 'session')}", p, machine.target, file, Load.of(s)
            )
            for p in machine.registry.available_peers(None)
            for s in _ways(args.concurrency)
        ]
        plan = Plan() if args.rounds is None else Plan.of_rounds(args.rounds)
        comparison = Contest("throughput", [*entrants, *theirs], plan).run(machine)
    assert served.serving is not None
    return {
        "network": name,
        "sessions": served.serving.sessions,
        "threads": served.placement.target.threads,
        "chosen": served.chosen,
        "chosen_for_latency": latency.chosen,
        "optimize_s": round(served.total_s, 1),
        "optimize_for_latency_s": round(latency.total_s, 1),
        **bench_json(comparison, [e.name for e in theirs], {}),
        "sittings": {n: sittings_to_json(sittings_of(r)) for n, r in comparison.records.items()},
    }


def _entrants(
    workspace: Workspace, machine: Machine, served: Optimization, latency: Optimization, concurrency: int
) -> Sequence[Entrant]:
    assert served.serving is not None
    ways = {COLLAGE: (served.placement, served.serving)}
    ways |= {
        f"for latency, {counted(s.sessions, 'session')}": (latency.placement, s) for s in _ways(concurrency)
    }
    return [
        placement_entrant(workspace, name, placement, machine.registry, load=Load.of(serving))
        for name, (placement, serving) in ways.items()
    ]


def _ways(concurrency: int) -> list[Serving]:
    """One session, and as many as there are processors for."""
    one, most = Serving(concurrency, 1), Serving.of(concurrency, 1, Target.default().threads)
    return [one, most] if most != one else [one]


def _text(told: dict[str, Any]) -> str:
    rows = [
        (
            name,
            f"{1000 / c['median_ms']:.4g}",
            f"{c['ratio']:.3f}" + ("" if c["half_interval"] is None else f" +-{c['half_interval']:.3f}"),
            str(c["sittings"]),
        )
        for name, c in sorted(told["contenders"].items(), key=lambda item: item[1]["median_ms"] or 0.0)
        if c["median_ms"]
    ]
    failed = [f"{name}: {reason}" for name, reason in told["failed"].items()]
    served = Serving(told["sessions"], told["sessions"]).text(told["threads"])
    title = f"for throughput {told['chosen']}, {served}; for latency {told['chosen_for_latency']}"
    header = ("contender", "requests a second", "time relative to collage's", "sittings")
    return "\n".join([str(Table(header, rows, right=range(1, 4), title=title)), *failed])


if __name__ == "__main__":
    sys.exit(main())
