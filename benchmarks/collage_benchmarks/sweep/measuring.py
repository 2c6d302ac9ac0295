"""One use of a library on one network: all choices of settings in one run of alternating rounds."""

from __future__ import annotations

import math
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from collage_benchmarks.evidence.collecting import started_now
from collage_benchmarks.evidence.machine import os_version, processor_json
from collage_benchmarks.evidence.repository import Commit
from collage_benchmarks.networks import NETWORKS
from collage_benchmarks.sweep.contending import contender, operators_contender
from collage_benchmarks.sweep.grid import IN_USE, OPERATORS, WITHIN, Choice, Use, choices
from collage_core.backend import BackendKind
from collage_core.costs.check import standards
from collage_core.costs.ratio import ENOUGH_SITTINGS, FEWEST_SITTINGS, HOPELESS, ratio_of, sittings_of
from collage_core.costs.record import CostRecord
from collage_core.costs.rounds import MOST_ROUNDS, Rounds, Turns, measure_rounds
from collage_core.costs.seats import Contender
from collage_core.costs.sittings import Sitting
from collage_core.errors import CollageError
from collage_core.ir import Graph, load_model
from collage_core.ir.passes import normalise
from collage_core.measuring.end_to_end import record_of_outcome
from collage_core.measuring.machine import RUNS_PER_TURN
from collage_core.measuring.progress import Progress
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.optimize import optimize
from collage_core.plugins import Registry, default_registry
from collage_core.report.backends import backends_json
from collage_core.target import Target

__all__ = ["FORMAT", "may_be_faster", "measure_use", "software"]

FORMAT = 1
_ROUNDS_PER_SITTING = 2
"""At least; as many more as cost less than starting the processes."""
_MOST_SITTINGS = 12


def measure_use(
    network: str,
    use: Use,
    target: Target,
    sittings: int,
    costs: Path | None,
    commit: Commit,
    progress: Progress,
) -> dict[str, Any]:
    """The record of the sweep: every choice with its median, its ratio to the settings in use, or why it has
    none. Every answer is compared with the reference's.

    sittings: that all choices have. Those that may be faster than what is in use have further ones, until
    eight found the processors as usual, or twelve in all.
    costs: the cost database that the mix of operator libraries is placed from; the user's own where None.
    CollageError where the settings in use do not run or answer wrongly.
    """
    registry, started = default_registry(), started_now()
    known = choices(use, target)
    with tempfile.TemporaryDirectory(prefix="collage-sweep-") as folder:
        model = Path(folder) / f"{network}.onnx"
        onnx.save(NETWORKS[network].build(), model)
        graph, made = _contenders(use, target, model, network, costs, registry, progress)
        with Workspace(graph, NETWORKS[network].inputs()) as workspace:
            progress.phase(f"{network}, {use}", sittings * _ROUNDS_PER_SITTING)
            outcomes = measure_rounds(
                [made(choice, workspace) for choice in known],
                Rounds(sittings * _ROUNDS_PER_SITTING, sittings, MOST_ROUNDS, HOPELESS),
                Turns(RUNS_PER_TURN),
                go_on=may_be_faster if sittings >= FEWEST_SITTINGS else None,
                on_round=lambda done: progress.step(),
                on_wait=progress.note,
            )
            right, held_to = workspace.expected_outputs(), standards(graph)
            records = {name: record_of_outcome(o, right, held_to) for name, o in outcomes.items()}
    in_use = records[IN_USE]
    if not in_use.ok:
        raise CollageError(f"{network}, {use}, in use: {in_use.reason}")
    return {
        "format": FORMAT,
        "network": network,
        "use": asdict(use),
        "processor": processor_json(),
        "threads": target.threads,
        "sittings": sittings,
        "commit": {"id": commit.id, "date": commit.date},
        "dirty": commit.dirty,
        "started": started,
        "software": software(registry),
        "choices": [_told(choice, records[choice.label], in_use) for choice in known],
    }


def software(registry: Registry) -> dict[str, Any]:
    """What is measured, with versions, as JSON."""
    return {
        "python": platform.python_version(),
        "system": os_version(),
        "backends": backends_json(registry),
    }


def may_be_faster(sittings: Mapping[str, Sequence[Sitting]]) -> set[str]:
    """Choices of which further sittings would tell whether they are faster by more than `WITHIN`, and those
    in use.
    """
    usual = sittings.get(IN_USE, ())
    ratios = {name: ratio_of(ours, usual) for name, ours in sittings.items() if name != IN_USE}
    going_on = {
        name
        for name, r in ratios.items()
        if r is not None
        and r.value - r.half_interval < 1.0 - WITHIN
        and r.sittings < ENOUGH_SITTINGS
        and sum(bool(s.turns) for s in sittings[name]) < _MOST_SITTINGS
    }
    return {IN_USE, *going_on} if going_on else going_on


def _contenders(
    use: Use,
    target: Target,
    model: Path,
    network: str,
    costs: Path | None,
    registry: Registry,
    progress: Progress,
) -> tuple[Graph, Callable[[Choice, Workspace], Contender]]:
    """The graph as it is run, and what makes a contender of a choice."""
    if use.library != OPERATORS:
        return normalise(load_model(model)), lambda choice, workspace: contender(
            use, choice, target, model, workspace
        )
    names = [b.name for b in registry.available() if b.info().kind is BackendKind.OPERATOR]
    placed = optimize(
        model,
        backends=names,
        target=target,
        costs=costs,
        inputs=NETWORKS[network].inputs(),
        progress=progress,
    )
    mix = placed.op_level.placement
    return placed.graph, lambda choice, workspace: operators_contender(choice, mix, registry, workspace)


def _told(choice: Choice, record: CostRecord, in_use: CostRecord) -> Mapping[str, Any]:
    sittings = sittings_of(record)
    ratio = ratio_of(sittings, sittings_of(in_use)) if record is not in_use else None
    certain = ratio is not None and math.isfinite(ratio.half_interval)
    return {
        "label": choice.label,
        "settings": dict(choice.settings),
        "environment": dict(choice.environment),
        "status": record.status,
        "reason": record.reason,
        "median_ms": record.median_ms,
        "spread_ms": record.spread_ms,
        "max_rel_error": record.error,
        "sittings": sum(bool(s.turns) for s in sittings),
        "ratio": ratio.value if ratio else 1.0 if record is in_use else None,
        "half_interval": ratio.half_interval if ratio and certain else None,
    }
