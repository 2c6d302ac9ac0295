"""Placement problems from recorded costs: what the op-level search is tested and timed on.

    python -m collage_benchmarks.problems resnext50 -o resnext50.json

measures on this machine what is not known yet and writes the problem without its names.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from collage_benchmarks.networks import NETWORKS, bert_encoder, mobilenet_v2, nasnet_a, resnext50
from collage_core.candidates import generate_candidates
from collage_core.cli.progress import ProgressBars
from collage_core.costs.database import CostDatabase
from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from collage_core.measuring.calibration import calibrate
from collage_core.measuring.ledger import collect_costs
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Progress
from collage_core.measuring.workspace import Workspace
from collage_core.plugins import default_registry
from collage_core.search import Choice, Problem, ProblemValue
from collage_core.search.formulate import formulate
from collage_core.target import Target

__all__ = [
    "RECORDED",
    "RecordedProblem",
    "load_problem",
    "nasnet_cells",
    "record_problem",
    "transformer_blocks",
]


def transformer_blocks(blocks: int) -> onnx.ModelProto:
    """Layers of BERT at a third of the width of BERT-base: 29 nodes each, and 6 around them."""
    return bert_encoder(layers=blocks, hidden=256, heads=4, vocab=1000)


def nasnet_cells(cells: int) -> onnx.ModelProto:
    """NASNet-A's normal cells, 43 nodes each, and 5 around them."""
    return nasnet_a(cells=cells, channels=32, image=28)


_WHOLE = ("bert_encoder", "dcgan", "mnist", "shufflenet", "squeezenet", "zfnet512")

RECORDED: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnext50": resnext50,
    "mobilenet_v2": mobilenet_v2,
    "nasnet": lambda: nasnet_cells(3),
    "transformer": lambda: transformer_blocks(2),
    **{name: NETWORKS[name].build for name in _WHOLE},
}
"""The networks whose problems the tests keep."""


@dataclass(frozen=True, slots=True)
class RecordedProblem:
    """A problem and what it took to make it: candidates, and the seconds to find them and to look up their
    costs.
    """

    problem: Problem
    candidates: int
    candidates_s: float
    formulate_s: float


def record_problem(
    model: onnx.ModelProto, costs: Path | None, progress: Progress, target: Target | None = None
) -> RecordedProblem:
    """The model's problem over every installed backend, at the costs that are known or are measured now.

    costs: the cost database's file, the user's own where None. target: which devices and float types take
    part; the CPU and the model's own where None.
    """
    target = target or Target.default()
    graph = normalise(from_model(model))
    registry = default_registry()
    backends = {b.name: b for b in registry.available(None)}
    start = time.perf_counter()
    candidates = generate_candidates(graph, backends.values(), target)
    found = time.perf_counter()
    with CostDatabase(costs) as database, Workspace(graph) as workspace:
        machine = Machine(backends, target, database, registry, progress)
        # What is missing is measured in a first pass, so that the second one only looks up.
        collect_costs(machine, workspace, candidates)
        transitions, _ = calibrate(machine)
        begin = time.perf_counter()
        known = collect_costs(machine, workspace, candidates)
        known.transitions = transitions
        problem = formulate(candidates, known.record_of, known.converters(), transitions).problem
    return RecordedProblem(problem, len(candidates.candidates), found - start, time.perf_counter() - begin)


def load_problem(path: Path) -> Problem:
    """What `main` wrote."""
    data = json.loads(path.read_text())
    return Problem(
        data["node_count"],
        tuple(ProblemValue(p, tuple(c), i, o) for p, c, i, o in data["values"]),
        tuple(
            Choice(int(nodes, 16), backend, dict(reads), dict(writes), cost_ms)
            for nodes, backend, reads, writes, cost_ms in data["choices"]
        ),
        {(v, p, q): ms for v, p, q, ms in data["conversion_ms"]},
        {int(b): ms for b, ms in data["group_ms"].items()},
        {int(b): ms for b, ms in data["crossing_ms"].items()},
        {(v, p, q): before for v, p, q, before in data.get("ways", ())},
    )


def _to_json(problem: Problem) -> dict[str, Any]:
    return {
        "node_count": problem.node_count,
        "values": [[v.producer, v.consumers, v.input_format, v.output_format] for v in problem.values],
        "choices": [
            [f"{c.nodes:x}", c.backend, list(c.reads.items()), list(c.writes.items()), round(c.cost_ms, 6)]
            for c in problem.choices
        ],
        "conversion_ms": [[*key, round(ms, 6)] for key, ms in problem.conversion_ms.items()],
        "group_ms": dict(problem.group_ms),
        "crossing_ms": dict(problem.crossing_ms),
        "ways": [[*key, before] for key, before in problem.ways.items()],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m collage_benchmarks.problems",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(RECORDED))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--costs", type=Path, help="the cost database (default: the user's own)")
    options = parser.parse_args(arguments)
    with ProgressBars() as progress:
        recorded = record_problem(RECORDED[options.name](), options.costs, progress)
    options.output.write_text(json.dumps(_to_json(recorded.problem), separators=(",", ":")) + "\n")
    print(options.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
