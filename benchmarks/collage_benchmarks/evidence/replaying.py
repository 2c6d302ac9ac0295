"""`python -m collage_benchmarks.evidence.replaying BUNDLE`: bounded measuring, replayed on recorded costs.

The costs are those that the database has of the bundle's model, where everything was measured (`thorough`);
backends are those that it has costs of.
Prints in JSON what is offered, what full measuring finds at these costs, and of bounded measuring, until its
answer is proven and until it is within the gap of `normal`: what it had to measure, and what it found.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from collage_core import CostDatabase, Target
from collage_core.backend import Backend
from collage_core.costs.record import CostRecord
from collage_core.costs.roofline import Peaks, machine_peaks
from collage_core.errors import CollageError
from collage_core.ir import Graph
from collage_core.pipeline.bounding import Known, search_placement
from collage_core.pipeline.calibration import calibrate
from collage_core.pipeline.costing import Costs, Ledger, default_policy, identity
from collage_core.pipeline.effort import NORMAL
from collage_core.pipeline.estimates import Estimates
from collage_core.pipeline.known_costs import KnownCosts, look_up
from collage_core.pipeline.progress import Silent
from collage_core.pipeline.recorded import RecordedCosts
from collage_core.placement import VIEW
from collage_core.plugins import default_registry
from collage_core.runtime.bundle import read
from collage_core.search import OpLevelSearch
from collage_core.search.formulate import needed_conversions
from collage_core.search.transitions import Transitions

__all__ = ["main", "replayed"]

_NEEDLESS = CostRecord("failed", reason="not recorded: no kernel that runs needs it")


def replayed(graph: Graph, target: Target, database: CostDatabase) -> dict[str, Any]:
    """What is said above. CollageError where the cost of a candidate is not known."""
    registry = default_registry()
    backends = {b.name: b for b in registry.available()}
    kernels = look_up(graph, backends, target, database).costs.kernels
    backends = {name: backends[name] for name in backends if any(name == b for _, _, b in kernels)}
    known = look_up(graph, backends, target, database)
    _require_all(known)
    _fill(known, backends)
    transitions, _ = calibrate(backends, target, database, registry, Silent(), measure=False)
    full = search_placement(known.candidates, known.costs, OpLevelSearch(), None, transitions)
    peaks = machine_peaks(target, database)
    return {
        "full_ms": full.placement.predicted_ms,
        "seconds": _seconds(known.costs),
        "proven": _bounded(known, backends, transitions, peaks, 0.0),
        NORMAL.name: _bounded(known, backends, transitions, peaks, NORMAL.gap),
    }


def _bounded(
    known: KnownCosts, backends: dict[str, Backend], transitions: Transitions, peaks: Peaks, gap: float
) -> dict[str, Any]:
    """With no cost known at first."""
    graph = known.candidates.graph
    nowhere: Any = SimpleNamespace(graph_folder=Path(), recording=SimpleNamespace(directory=Path()))
    with CostDatabase(":memory:") as nothing:
        ledger = Ledger(
            known.candidates,
            backends,
            nothing,
            nowhere,
            default_policy(graph),
            Silent(),
            RecordedCosts(graph, known.costs),
        )
        found = Known(ledger, transitions, gap, Estimates(known.candidates, peaks)).search(OpLevelSearch())
    counts = ledger.counts()
    return {
        "offered": counts["offered"],
        "measured": counts["measured"],
        "seconds": _seconds(ledger.costs),
        "ms": found.placement.predicted_ms,
    }


def _require_all(known: KnownCosts) -> None:
    if not known.costs.kernels:
        raise CollageError("no cost of this model is known here")
    missing = [
        c for c in known.candidates.candidates if c.backend != VIEW and identity(c) not in known.costs.kernels
    ]
    if missing:
        raise CollageError(
            f"of {len(missing)} candidates no cost is known, the first is one of {missing[0].backend}: "
            "run `collage optimize --effort thorough` with the same costs first"
        )


def _fill(known: KnownCosts, backends: dict[str, Backend]) -> None:
    """Conversions that only what fails needs were not measured; nobody knows that before it has failed."""
    for conversion in needed_conversions(known.candidates.graph, known.candidates.candidates):
        records = known.costs.conversion_records.setdefault(conversion, {})
        for name in backends:
            records.setdefault(name, _NEEDLESS)


def _seconds(costs: Costs) -> float:
    """That all of these took to measure."""
    conversions = (r for records in costs.conversion_records.values() for r in records.values())
    return round(math.fsum(r.seconds for r in (*costs.kernels.values(), *conversions)), 1)


def main(files: Sequence[str] | None = None) -> int:
    files = sys.argv[1:] if files is None else files
    if len(files) != 1:
        print(
            "replaying: one bundle is wanted, as `collage optimize --effort thorough` has saved it",
            file=sys.stderr,
        )
        return 2
    try:
        bundle = read(files[0])
        with CostDatabase() as database:
            result = replayed(bundle.graph, bundle.placement.target, database)
    except CollageError as error:
        print(f"replaying: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
