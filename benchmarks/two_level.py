"""What the graph level and several libraries bring: whole networks, placed and compared here.

    python benchmarks/two_level.py graph [NETWORK ...] [--budget 120s]
    python benchmarks/two_level.py alone [NETWORK ...]
    python benchmarks/two_level.py ablation [NETWORK ...] [--budget 60s]

graph: each network on all installed backends; the placement chosen beside every backend alone (`+reference`:
but for what it declines), in the confirmation run, which did not choose. Columns: the chosen one's time over
the best backend's alone (at most 1.02; the median of the sittings' quotients and half its 95 % confidence
interval), backends with more than 3 % of the time in it, whether it is a mix that is faster than every
backend alone beyond that interval, the op level's own time, what the graph level measured it to gain, the
resident memory of all processes together at its highest (at most 8 GiB), and by how much this process's own
has grown when all is done.

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
import gc
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import psutil
from collage_benchmarks.networks import NETWORKS

from collage_core.backend import BackendKind
from collage_core.cli.arguments import seconds_of
from collage_core.cli.progress import ProgressBars
from collage_core.costs.check import compare_all, standards
from collage_core.costs.ratio import Ratio
from collage_core.device import Target
from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph
from collage_core.pipeline.benchmark import PEER, benchmark
from collage_core.pipeline.comparison import placement_entrant
from collage_core.pipeline.optimize import Optimization, optimize
from collage_core.pipeline.progress import Progress
from collage_core.pipeline.proof import COLLAGE, Single
from collage_core.plugins import default_registry
from collage_core.report.summary import optimization_json
from collage_core.report.text import table
from collage_core.search import GraphLevelSearch, Searcher

_NETWORKS = ("resnext50", "bert_base", "dcgan", "squeezenet", "densenet121", "inception_v2")
_LARGEST_RATIO = 1.02
_REAL_SHARE = 0.03
_MOST_MIB = 8 << 10
_ADDED = ("dnnl", "tvm", "mkl", "onnxruntime", "openvino", "ncnn")
"""The order in which the ablation adds backends: as the issue's plugins were built."""
_ABLATION_ROUNDS = 30
"""Of all: every pair counts, while what goes on unasked is about the fastest."""
_MEMORY_EVERY_S = 0.25
_GRAPH_LEVEL = GraphLevelSearch()
_ITSELF = Ratio(1.0, 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=sorted(_MODES))
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"default: {' '.join(_NETWORKS)}")
    parser.add_argument("--budget", default="120s", help="for the graph level (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the graph level (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="for every library (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="of comparisons, or more (default: as `collage optimize`)")
    parser.add_argument("--costs", metavar="FILE", help="cost database (default: in the user's cache folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything to a file")
    args = parser.parse_args()
    for name in args.networks:
        if name not in NETWORKS:
            parser.error(f"unknown network {name!r}; known: {', '.join(NETWORKS)}")
    try:
        rows = []
        for name in args.networks or _NETWORKS:
            rows += list(_MODES[args.what](name, args))
            if args.json:  # after each network: a run takes an hour
                args.json.write_text(json.dumps(rows, indent=1))
    except CollageError as error:
        print(f"two_level: {error}", file=sys.stderr)
        return 1
    print(_table(rows))
    if args.what == "graph":
        mixes = sum(r["beyond spread"] for r in rows)
        print(f"mixes of several backends that are faster than every one alone: {mixes} of {len(rows)}")
    return 0 if all(r["met"] for r in rows) else 1


def _graph(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    before_bytes = _resident_bytes()
    with _model(name) as (model, progress), _peak_memory() as peak_bytes:
        placed = _placed(model, args, progress, None)
    row = _graph_row(name, placed)
    del placed
    peak_mib = peak_bytes() >> 20
    row |= {"peak MiB": peak_mib, "grown MiB": (_resident_bytes() - before_bytes) / 2**20}
    yield {**row, "met": row["met"] and peak_mib <= _MOST_MIB}


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _graph_row(name: str, placed: Optimization) -> dict[str, Any]:
    report = optimization_json(placed, name)
    latency_ms: Mapping[str, float] = {k: v for k, v in report["latency_ms"].items() if v is not None}
    alone = [label for label in map(_label, report["singles"]) if label in latency_ms]
    assert placed.comparison is not None
    ratios = {b: placed.comparison.ratio(COLLAGE, b) or _ITSELF for b in alone}
    best = max(alone, key=lambda b: ratios[b].median)
    shares = {b: s["share"] for b, s in report["shares"].items() if s["share"] > _REAL_SHARE}
    level = report["second_level"]
    tried = [t["median_ms"] for t in level.get("evaluations", ()) if t["median_ms"]]
    return {
        "network": name,
        "chosen": report["chosen"],
        "ms": latency_ms[COLLAGE],
        "IQR": report["spread_ms"][COLLAGE],
        "best alone": f"{best} {latency_ms[best]:.3f}",
        "ratio": ratios[best].median,
        "+-": ratios[best].uncertainty,
        "mix": " ".join(f"{b} {share:.0%}" for b, share in sorted(shares.items(), key=lambda s: -s[1])),
        "beyond spread": len(shares) > 1 and all(r.is_below_one for r in ratios.values()),
        "op level": latency_ms.get(placed.mix_contender),
        "tries": len(tried),
        "gain of the graph level": level["op_level_ms"] / level["best_ms"] - 1
        if tried and level["op_level_ms"]
        else None,
        "report": report,
        "met": ratios[best].median <= _LARGEST_RATIO,
    }


def _label(single: Mapping[str, Any]) -> str:
    """Of a backend on its own, among the contenders."""
    return str(Single(single["backend"], None, single["alone"]).label)


def _alone(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    registry = default_registry()
    libraries = [b.name for b in registry.available() if b.info().kind is BackendKind.GRAPH]
    for library in libraries:
        with _model(name) as (model, progress):
            placed = _placed(model, args, progress, [library], level=None)
            ours = placement_entrant(COLLAGE, placed.placement, registry)
            result = benchmark(
                placed.graph,
                [ours],
                [registry.peer(library)],
                placed.placement.target,
                str(model),
                costs=args.costs,
                rounds=args.rounds,
                progress=progress,
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
            "ratio": ratio.median,
            "+-": ratio.uncertainty,
            "right": not wrong,
            "met": ratio.median <= _LARGEST_RATIO and not wrong,
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
        entrants = [
            placement_entrant(names[digest], placement, registry)
            for digest, placement in {o.placement.digest: o.placement for o in placed.values()}.items()
        ]
        comparison = benchmark(
            last.graph,
            entrants,
            [],
            last.placement.target,
            None,
            costs=args.costs,
            rounds=args.rounds or _ABLATION_ROUNDS,
            progress=progress,
        ).comparison
        wrong = _disagreeing(last.graph, comparison.outputs)
        _tell(wrong, progress)
    before: list[str] = []
    for label, o in placed.items():
        now, same = names[o.placement.digest], first[o.placement.digest]
        ran = comparison.records[now].ok
        ratios = [r for other in before if other != now and (r := comparison.ratio(now, other))]
        ratio = max(ratios, key=lambda r: r.median, default=_ITSELF)
        yield {
            "network": name,
            "backends": label,
            "chosen": o.chosen if label == same else f"as {same}",
            "ms": comparison.records[now].median_ms,
            "IQR": comparison.records[now].spread_ms,
            "of the fastest before": ratio.median if ran else None,
            "+-": ratio.uncertainty if ran else None,
            "right": ran and now not in wrong,
            "met": ran and now not in wrong and all(r.median <= 1.0 + r.uncertainty for r in ratios),
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
    "graph": _graph,
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


@contextmanager
def _peak_memory() -> Iterator[Callable[[], int]]:
    """Bytes resident in this process and all its descendants together, at the highest; memory that several
    map counts several times.
    """
    us, peak, stop = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(_MEMORY_EVERY_S):
            resident = 0
            for process in [us, *us.children(recursive=True)]:
                try:
                    resident += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peak[0] = max(peak[0], resident)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: peak[0]
    finally:
        stop.set()
        watcher.join()


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = [c for c in rows[0] if c != "report"]
    return table(columns, [[_cell(r[c]) for c in columns] for r in rows])


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
