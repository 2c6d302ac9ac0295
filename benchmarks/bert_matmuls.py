"""What a transformer takes beyond its matrix products, and beside ONNX Runtime.

    python benchmarks/bert_matmuls.py [--network bert_base] [--rounds N] [--json FILE]

Places the network on oneDNN and TVM, as `collage optimize` does, and then runs in alternating rounds, each in
a process of its own: the whole; ONNX Runtime; and the same matrix products bare, that is, every MatMul of
the model alone, without bias and activation, in the model's order on oneDNN, each with its own weights,
activations of one shape in the same buffers. Prints medians in ms, the whole minus its products, and its lead
on ONNX Runtime; then what the groups take in place, added up by their operators. The exit status is 1 if the
difference or the ratio misses its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from collage_benchmarks.kernels.bare import open_bare
from collage_benchmarks.networks import NETWORKS

from collage_core.cli.progress import ProgressBars
from collage_core.costs.check import compare_all
from collage_core.costs.rounds import Rounds, Turns, measure_rounds
from collage_core.costs.seats import Contender, Outcome
from collage_core.errors import CollageError
from collage_core.measuring.entrants import peer_entrant, placement_entrant
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.optimize import Optimization, optimize
from collage_core.placement import VIEW
from collage_core.plugins import default_registry
from collage_core.report.tables import Table
from collage_core.target import Target

_BACKENDS = ("dnnl", "tvm")
_PRODUCTS_ON = "dnnl"
_PEER = "onnxruntime"
_WHOLE, _BARE = "whole", "bare products"
_MOST_BEYOND_MS = 5.0
_LEAST_RATIO = 1.1
_RUNS_PER_ROUND = 3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--network", default="bert_base", choices=sorted(NETWORKS), help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=30, help="alternating rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="for every library (default: %(default)s)")
    parser.add_argument("--costs", metavar="FILE", help="cost database (default: in the user's cache folder)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to a file")
    arguments = parser.parse_args()
    try:
        report = _measured(arguments)
    except CollageError as error:
        print(f"bert_matmuls: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    return _print(report)


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    network, target = NETWORKS[arguments.network], Target("cpu", arguments.threads)
    with tempfile.TemporaryDirectory() as folder, ProgressBars() as progress:
        model = Path(folder) / f"{network.name}.onnx"
        onnx.save(network.build(), model)
        found = optimize(
            model,
            backends=_BACKENDS,
            target=target,
            costs=arguments.costs,
            inputs=network.inputs(),
            rounds=arguments.rounds,
            progress=progress,
        )
        outcomes = _run(found, model, network.inputs(), arguments.rounds)
    for name, outcome in outcomes.items():
        if outcome.reason is not None:
            raise CollageError(f"{name}: {outcome.reason}")
    wrong = compare_all(outcomes[_WHOLE].outputs, outcomes[_PEER].outputs).reason
    if wrong is not None:
        raise CollageError(f"not the answer of {_PEER}: {wrong}")
    samples = {name: o.samples for name, o in outcomes.items() if o.samples is not None}
    median_ms = {name: s.median_ms for name, s in samples.items()}
    return {
        "network": network.name,
        "threads": target.threads,
        "median_ms": median_ms,
        "spread_ms": {name: s.spread_ms for name, s in samples.items()},
        "beyond_ms": median_ms[_WHOLE] - median_ms[_BARE],
        "ratio": median_ms[_PEER] / median_ms[_WHOLE],
        "parts": _parts(found, outcomes[_WHOLE].parts_ms),
    }


def _run(found: Optimization, model: Path, inputs: Mapping[str, Any], rounds: int) -> Mapping[str, Outcome]:
    """The three contenders, by name."""
    registry, target = default_registry(), found.placement.target
    products = registry.backend(_PRODUCTS_ON)
    with Workspace(found.graph, inputs) as workspace:
        contenders = [
            placement_entrant(workspace, _WHOLE, found.placement, registry, parts=True).contender(),
            Contender(
                _BARE,
                products.environment(target),
                open_bare,
                (workspace.graph_folder, products.name, target),
                registry.modules(),
            ),
            peer_entrant(workspace, _PEER, registry.peer(_PEER), target, str(model)).contender(),
        ]
        return measure_rounds(contenders, Rounds(rounds), Turns(_RUNS_PER_ROUND))


def _parts(found: Optimization, parts_ms: Sequence[float]) -> dict[str, tuple[int, float]]:
    """How often each sort of step occurs in the whole, and what all of the sort take in place, the longest
    first.
    """
    placement, graph = found.placement, found.graph
    names = [f"{g.backend} {'+'.join(graph.node(n).op_type for n in g.nodes)}" for g in placement.groups] + [
        f"conversion by {c.backend}" for c in placement.conversions
    ]
    sums: dict[str, tuple[int, float]] = {}
    for name, ms in zip(names, parts_ms, strict=True):
        if not name.startswith(VIEW):
            times, total_ms = sums.get(name, (0, 0.0))
            sums[name] = times + 1, total_ms + ms
    return dict(sorted(sums.items(), key=lambda s: -s[1][1]))


def _print(report: Mapping[str, Any]) -> int:
    """The figures, and whether they are within the limits: 0 if so."""
    rows = [(n, f"{ms:.2f}", f"{report['spread_ms'][n]:.2f}") for n, ms in report["median_ms"].items()]
    print(Table((report["network"], "ms", "IQR"), rows, right=[1, 2]))
    close, fast = report["beyond_ms"] <= _MOST_BEYOND_MS, report["ratio"] >= _LEAST_RATIO
    print(f"whole - bare products: {report['beyond_ms']:.2f} ms; at most {_MOST_BEYOND_MS:g}: {_met(close)}")
    print(f"{_PEER} / whole: {report['ratio']:.3f}; at least {_LEAST_RATIO:g}: {_met(fast)}\n")
    parts = [(name, str(times), f"{ms:.2f}") for name, (times, ms) in report["parts"].items()]
    print(Table(("in place, of the whole", "times", "ms"), parts, right=[1, 2]))
    return 0 if close and fast else 1


def _met(limit: bool) -> str:
    return "met" if limit else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
