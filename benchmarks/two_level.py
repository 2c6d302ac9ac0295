"""What several libraries bring, one after the other: whole networks, placed and compared here.

    python benchmarks/two_level.py alone [NETWORK ...]
    python benchmarks/two_level.py ablation [NETWORK ...] [--budget 10m]

alone: each network on one graph library at a time, beside the same library called directly at its own best
settings (its peer), in one run of alternating rounds; the ratio may be at most 1.02, and both must answer the
same within the tolerance (`right`).

ablation: backends added one at a time, and the placements found with the first, the first two, ... compared
in one run of alternating rounds; none may be slower than any with fewer backends beyond the interval, and all
must answer the same within the tolerance.

The exit status is 1 if something misses its limit. Networks are built from code with seeded weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from collage_benchmarks.networks import NETWORKS, add_networks

from collage_core.backend import BackendKind
from collage_core.cli.arguments import seconds_of
from collage_core.cli.progress import ProgressBars
from collage_core.costs.check import compare_all, standards
from collage_core.costs.database import CostDatabase
from collage_core.costs.ratio import ENOUGH_SITTINGS, Ratio
from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Progress
from collage_core.pipeline.benchmark import PEER, benchmark
from collage_core.pipeline.effort import THOROUGH
from collage_core.pipeline.optimize import Optimization, optimize
from collage_core.pipeline.proof import COLLAGE
from collage_core.plugins import default_registry
from collage_core.report.tables import Table
from collage_core.search import GraphLevelSearch, Searcher
from collage_core.target import Target

_NETWORKS = ("resnext50", "bert_base", "dcgan", "squeezenet", "densenet121", "inception_v2")
_LARGEST_RATIO = 1.02
_ADDED = ("dnnl", "tvm", "mkl", "onnxruntime", "openvino", "ncnn")
"""The order in which the ablation adds backends: as the issue's plugins were built."""
_ABLATION_ROUNDS = 24
"""Of all: every pair counts, while what goes on unasked is about the fastest."""
_GRAPH_LEVEL = GraphLevelSearch()
_ITSELF = Ratio(1.0, 0.0, ENOUGH_SITTINGS)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=sorted(_MODES))
    add_networks(parser, nargs="*", default=_NETWORKS)
    parser.add_argument("--budget", default="15m", help="of each optimization (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the graph level (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="for every library (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="of comparisons, or more (default: as `collage optimize`)")
    parser.add_argument("--costs", metavar="FILE", help="cost database (default: in the user's cache folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to a file")
    args = parser.parse_args()
    try:
        rows = []
        for name in args.networks:
            rows += list(_MODES[args.what](name, args))
            if args.json:  # after each network: a run takes an hour
                args.json.write_text(json.dumps(rows, indent=1))
    except CollageError as error:
        print(f"two_level: {error}", file=sys.stderr)
        return 1
    print(_table(rows))
    return 0 if all(r["met"] for r in rows) else 1


def _alone(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    registry = default_registry()
    libraries = [b.name for b in registry.available() if b.info().kind is BackendKind.GRAPH]
    for library in libraries:
        with _model(name) as (model, progress):
            placed = _placed(model, args, progress, [library], level=None)
            with CostDatabase(args.costs) as database:
                result = benchmark(
                    Machine.of(database, target=placed.placement.target, progress=progress),
                    placed.graph,
                    {COLLAGE: placed.placement},
                    [registry.peer(library)],
                    str(model),
                    args.rounds,
                )
            wrong = {who: d.reason for who, d in result.differences.items() if d.reason is not None}
            _tell(wrong, progress)
        comparison = result.comparison
        found, ratio = comparison.records, comparison.ratio(COLLAGE, PEER + library)
        if ratio is None:
            raise CollageError("; ".join(f"{who}: {r.reason}" for who, r in found.items() if not r.ok))
        yield {
            "network": name,
            "library": library,
            "ms": found[COLLAGE].median_ms,
            "IQR": found[COLLAGE].spread_ms,
            "directly": found[PEER + library].median_ms,
            "IQR directly": found[PEER + library].spread_ms,
            "ratio": ratio.value,
            "+-": ratio.half_interval,
            "right": not wrong,
            "met": ratio.value <= _LARGEST_RATIO and not wrong,
        }


def _ablation(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    registry = default_registry()
    available = {b.name for b in registry.available()}
    added = [b for b in _ADDED if b in available]
    with _model(name) as (model, progress):
        sets = [added[: n + 1] for n in range(len(added))]
        placed = {"+".join(backends): _placed(model, args, progress, backends) for backends in sets}
        # Of placements that did not change one is enough.
        first: dict[str, str] = {}
        for label, o in placed.items():
            first.setdefault(o.placement.digest, label)
        # Whatever comes first goes by Collage's name.
        names = {**first, next(iter(first)): COLLAGE}
        *_, last = placed.values()
        placements = {names[o.placement.digest]: o.placement for o in placed.values()}
        with CostDatabase(args.costs) as database:
            machine = Machine.of(database, target=last.placement.target, progress=progress)
            rounds = args.rounds or _ABLATION_ROUNDS
            comparison = benchmark(machine, last.graph, placements, [], rounds=rounds).comparison
        wrong = _disagreeing(last.graph, comparison.outputs)
        _tell(wrong, progress)
    before: list[str] = []
    for label, o in placed.items():
        now, same = names[o.placement.digest], first[o.placement.digest]
        ran = comparison.records[now].ok
        ratios = [r for other in before if other != now and (r := comparison.ratio(now, other))]
        ratio = max(ratios, key=lambda r: r.value, default=_ITSELF)
        yield {
            "network": name,
            "backends": label,
            "chosen": o.chosen if label == same else f"as {same}",
            "ms": comparison.records[now].median_ms,
            "IQR": comparison.records[now].spread_ms,
            "of the fastest before": ratio.value if ran else None,
            "+-": ratio.half_interval if ran else None,
            "right": ran and now not in wrong,
            "met": ran and now not in wrong and not any(r.speaks_against for r in ratios),
        }
        before.append(now)


def _disagreeing(graph: Graph, outputs: Mapping[str, Mapping[str, Array]]) -> dict[str, str]:
    """Whose outputs differ from Collage's beyond the tolerance, and how; everybody's where it has none."""
    ours, held_to = outputs[COLLAGE], standards(graph)
    others = {name: o for name, o in outputs.items() if name != COLLAGE and o}
    if not ours:
        return dict.fromkeys(others, f"there is no answer of {COLLAGE} to compare with")
    found = {name: compare_all(o, ours, held_to).reason for name, o in others.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def _tell(wrong: Mapping[str, str], progress: Progress) -> None:
    for who, reason in wrong.items():
        progress.note(f"{who}: {reason}")


_MODES: Mapping[str, Callable[[str, argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "alone": _alone,
    "ablation": _ablation,
}


def _placed(
    model: Path,
    args: argparse.Namespace,
    progress: Progress,
    backends: Sequence[str] | None,
    level: Searcher | None = _GRAPH_LEVEL,
) -> Optimization:
    return optimize(
        model,
        backends=backends,
        target=Target("cpu", args.threads),
        costs=args.costs,
        inputs=NETWORKS[model.stem].inputs(),
        searcher=level,
        effort=THOROUGH,
        budget_s=seconds_of("--budget", args.budget),
        seed=args.seed,
        rounds=args.rounds,
        progress=progress,
    )


@contextmanager
def _model(name: str) -> Iterator[tuple[Path, ProgressBars]]:
    with tempfile.TemporaryDirectory() as folder, ProgressBars() as progress:
        model = Path(folder) / f"{name}.onnx"
        onnx.save(NETWORKS[name].build(), model)
        progress.note(f"{name}:")
        yield model, progress


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = [c for c in rows[0] if c != "report"]
    return str(Table(columns, [[_cell(r[c]) for c in columns] for r in rows]))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
