"""Placements beside whole runtimes, in one run of alternating rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collage_core.backend import Peer
from collage_core.costs.check import Difference, compare_all
from collage_core.costs.database import CostDatabase
from collage_core.costs.limits import check_limits
from collage_core.device import Target
from collage_core.ir import Graph
from collage_core.pipeline.comparison import Comparison, Plan, compare
from collage_core.pipeline.entrants import Entrant, peer_entrant
from collage_core.pipeline.optimize import COLLAGE
from collage_core.pipeline.progress import Progress
from collage_core.pipeline.workspace import Workspace

__all__ = ["PEER", "Benchmark", "benchmark"]

PEER = "peer:"
"""What peers' names begin with among the contenders."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A comparison with peers (names with `PEER`), and how far Collage's outputs are from each peer's
    that has any.
    """

    comparison: Comparison
    peers: tuple[str, ...]
    differences: Mapping[str, Difference]


def benchmark(
    graph: Graph,
    placements: Sequence[Entrant],
    peers: Sequence[Peer],
    target: Target,
    model_file: str | None,
    *,
    costs: str | Path | None,
    rounds: int | None,
    progress: Progress,
) -> Benchmark:
    """Run placements, one of them named "collage", and peers, anew.

    model_file: what the peers load; the graph itself where None. costs: the cost database's file, the user's
    own where None. rounds: of everybody; see `Plan` for None.
    """
    check_limits()
    theirs = [peer_entrant(PEER + p.name, p, target, model_file) for p in peers]
    with Workspace(graph) as workspace, CostDatabase(costs) as database:
        comparison = compare(
            graph,
            [*placements, *theirs],
            target,
            database,
            workspace,
            progress,
            title="benchmark",
            plan=Plan() if rounds is None else Plan.of_rounds(rounds),
            fresh=True,
        )
    ours = comparison.outputs[COLLAGE]
    answered = {e.name: outputs for e in theirs if (outputs := comparison.outputs[e.name])}
    held_to = next(e for e in placements if e.name == COLLAGE).held_to(graph)
    differences = (
        {name: compare_all(ours, outputs, held_to) for name, outputs in answered.items()} if ours else {}
    )
    return Benchmark(comparison, tuple(e.name for e in theirs), differences)
