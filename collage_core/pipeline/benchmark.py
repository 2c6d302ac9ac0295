"""Placements beside whole runtimes, in one run of alternating rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage_core.costs.check import Difference, compare_all
from collage_core.costs.limits import check_limits
from collage_core.ir import Graph
from collage_core.measuring.beside import Load
from collage_core.measuring.comparison import Comparison, Contest, Plan
from collage_core.measuring.entrants import peer_entrant, placement_entrant
from collage_core.measuring.machine import Machine
from collage_core.measuring.workspace import Workspace
from collage_core.peer import Peer
from collage_core.pipeline.proof import COLLAGE
from collage_core.placement import Placement
from collage_core.serving import Serving

__all__ = ["ONE_SESSION", "PEER", "Benchmark", "benchmark"]

PEER = "peer:"
"""What peers' names begin with among the contenders."""
ONE_SESSION = ", one session"
"""And how they end where requests that are asked at a time are answered one after the other."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A comparison with peers (names with `PEER`), and how far Collage's outputs are from each peer's
    that has any.
    """

    comparison: Comparison
    peers: tuple[str, ...]
    differences: Mapping[str, Difference]


def benchmark(
    machine: Machine,
    graph: Graph,
    placements: Mapping[str, Placement],
    peers: Sequence[Peer],
    model_file: str | None = None,
    rounds: int | None = None,
    serving: Serving | None = None,
) -> Benchmark:
    """Run placements by name, one of them "collage", and peers, anew.

    model_file: what the peers load; the graph itself where None, and where shapes of outputs hang on values,
    for peers write into buffers of known shapes. rounds: of everybody; see `Plan` for None.
    serving: how requests are answered that are asked at a time; times are what one takes of all (`Load.of`)
    then. Peers take part twice, with sessions of one thread beside each other, and with one that has all of
    the machine's (`ONE_SESSION`).
    """
    check_limits()
    if graph.open_outputs:
        model_file = None
    with Workspace(graph) as workspace:
        load = None if serving is None else Load.of(serving)
        ours = [
            placement_entrant(workspace, n, p, machine.registry, load=load) for n, p in placements.items()
        ]
        theirs = [
            peer_entrant(workspace, PEER + p.name + how, p, machine.target, model_file, load)
            for p in peers
            for how, load in _ways(serving, machine.target.threads).items()
        ]
        plan = Plan() if rounds is None else Plan.of_rounds(rounds)
        comparison = Contest("benchmark", [*ours, *theirs], plan, is_checked=False).run(machine)
        answers = comparison.outputs[COLLAGE]
        answered = {e.name: outputs for e in theirs if (outputs := comparison.outputs[e.name])}
        held_to = next(e for e in ours if e.name == COLLAGE).held_to()
        differences = (
            {name: compare_all(answers, outputs, held_to) for name, outputs in answered.items()}
            if answers
            else {}
        )
    return Benchmark(comparison, tuple(e.name for e in theirs), differences)


def _ways(serving: Serving | None, threads: int) -> dict[str, Load | None]:
    """In which a peer takes part, by what its name ends with. threads: of all sessions together."""
    if serving is None:
        return {"": None}
    one = Load.of(Serving(serving.concurrency, 1))
    beside = Load.of(Serving.of(serving.concurrency, 1, threads))
    return {ONE_SESSION: one} if beside == one else {"": beside, ONE_SESSION: one}
