"""`python -m collage_benchmarks.evidence.replaying BUNDLE`: bounded measuring, replayed on recorded costs.

The bundle is one that `collage optimize --effort thorough` has saved, with the costs that it has measured.
Printed in JSON: what is offered, and what full measuring finds at these costs. Then, of bounded measuring,
what it had to measure and what it found: until that is proven, and until it is within the gap of `normal`.
And what it had found after some seconds of measuring. It begins with the priors that packages bring, and none
of this machine's; what it finds after some seconds without any is told, too.

In the end the same until it is proven, with bounds that nobody can draw: shares of what each kernel costs.
What must be measured even then says how much better bounds could do.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from collage_benchmarks.recorded import RecordedCosts, measuring_s, recorded_ledger
from collage_core import CostDatabase
from collage_core.candidates import CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.costs.roofline import Peaks
from collage_core.errors import CollageError
from collage_core.measuring.bounding import Known, search_placement
from collage_core.measuring.calibration import calibrate
from collage_core.measuring.costing import Converter, Costs
from collage_core.measuring.estimates import Estimates, Hope, as_likely
from collage_core.measuring.known_costs import KnownCosts, look_up
from collage_core.measuring.machine import Machine
from collage_core.measuring.priors import brought_priors
from collage_core.measuring.progress import Silent
from collage_core.pipeline.effort import NORMAL
from collage_core.pipeline.singles import measure_singles
from collage_core.placement import VIEW
from collage_core.plugins import default_registry
from collage_core.report.checked import made_from
from collage_core.runtime.bundle import Bundle, read
from collage_core.search import OpLevelSearch
from collage_core.search.formulate import needed_conversions
from collage_core.search.transitions import Transitions

__all__ = ["main", "replayed"]

_SECONDS = (5, 10, 15, 20, 30, 45, 60)
"""Of measuring, after which its answer is told of, too."""
_SHARES = (0.8, 0.9, 1.0)
"""Of what a kernel costs: `_Informed` bounds."""
_NEEDLESS = CostRecord("failed", reason="not recorded: no kernel that runs needs it")


class _Informed(Estimates):
    """Guesses of one who knows the costs, and bounds that are a `share` of each. Of what fails, which only
    trying tells, as of others.
    """

    def __init__(self, candidates: CandidateSet, peaks: Peaks, truth: Costs, share: float) -> None:
        super().__init__(candidates, peaks)
        self._share = share
        self._truth = {k: r.median_ms for k, r in truth.kernels.items() if r.ok and r.median_ms is not None}

    def bound(self, costs: Costs, converters: Iterable[Converter], *, hopeful: bool = False) -> None:
        super().bound(costs, converters, hopeful=hopeful)
        self._know(costs, lambda ms: self._share * ms)

    def guess(self, costs: Costs, converters: Iterable[Converter], hoped_ms: Hope = as_likely) -> None:
        super().guess(costs, converters, hoped_ms)
        self._know(costs, hoped_ms)

    def _know(self, costs: Costs, taken_ms: Hope) -> None:
        known = {k: taken_ms(self._truth[k]) for k in costs.kernel_bounds_ms if k in self._truth}
        costs.kernel_bounds_ms |= known


def replayed(bundle: Bundle, database: CostDatabase) -> dict[str, Any]:
    """What is said above. CollageError where the cost of a candidate is not known."""
    graph, target, registry = bundle.graph, bundle.placement.target, default_registry()
    took_part = made_from(bundle.report, bundle.origin).took_part
    backends = {b.name: b for b in registry.available(took_part)}
    machine = Machine(backends, target, database, registry, Silent())
    known = look_up(machine, graph)
    _require_all(known)
    _fill(known, backends)
    transitions, _ = calibrate(machine, measure=False)
    known.costs.transitions = transitions
    full = search_placement(known.candidates, known.costs, OpLevelSearch())
    peaks = machine.peaks()
    advised = Estimates(known.candidates, peaks, brought_priors(registry))
    unadvised = Estimates(known.candidates, peaks)

    def bounded(gap: float, most_s: float = math.inf, estimates: Estimates = advised) -> dict[str, Any]:
        recorded = RecordedCosts(graph, known.costs)
        with recorded_ledger(
            known.candidates, backends, recorded, lambda: measuring_s(ledger.costs) >= most_s
        ) as ledger:
            ledger.costs.transitions = transitions
            learnt = Known(ledger, OpLevelSearch(), gap, estimates)
            measure_singles([*backends], learnt)
            found = learnt.search()
            counts = ledger.counts()
        return {
            "offered": counts["offered"],
            "measured": counts["measured"],
            "seconds": round(measuring_s(ledger.costs), 3),
            "ms": known.costs.priced(graph, found.placement).predicted_ms,
        }

    return {
        "full_ms": full.placement.predicted_ms,
        "seconds": round(measuring_s(known.costs), 3),
        "constants": transitions != Transitions(),
        "proven": bounded(0.0),
        "within": bounded(NORMAL.gap),
        "informed": {
            str(share): bounded(0.0, estimates=_Informed(known.candidates, peaks, known.costs, share))
            for share in _SHARES
        },
        "after_s": {str(s): bounded(NORMAL.gap, s)["ms"] for s in _SECONDS},
        "without_priors_after_s": {str(s): bounded(NORMAL.gap, s, unadvised)["ms"] for s in _SECONDS},
    }


def _require_all(known: KnownCosts) -> None:
    if not known.costs.kernels:
        raise CollageError("no cost of this model is known here")
    missing = [
        c
        for c in known.candidates.candidates
        if c.backend != VIEW and c.kernel_key not in known.costs.kernels
    ]
    if missing:
        raise CollageError(
            f"of {len(missing)} candidates no cost is known, the first is one of {missing[0].backend}: "
            "run `collage optimize --effort thorough` with the same costs first"
        )


def _fill(known: KnownCosts, backends: Iterable[str]) -> None:
    """Conversions that only what fails needs were not measured; nobody knows that before it has failed."""
    for conversion in needed_conversions(known.candidates.graph, known.candidates.candidates):
        records = known.costs.conversion_records.setdefault(conversion, {})
        for name in backends:
            records.setdefault(name, _NEEDLESS)


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
            result = replayed(bundle, database)
    except CollageError as error:
        print(f"replaying: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
