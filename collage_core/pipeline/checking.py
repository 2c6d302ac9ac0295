"""A bundle is looked at again: it runs beside single libraries, here and with what is installed now."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from collage_core.backend import Backend, BackendKind
from collage_core.candidates import Constraints, offers_for
from collage_core.costs.limits import check_limits
from collage_core.costs.lock import measuring_lock
from collage_core.costs.rounds import Limits
from collage_core.errors import BackendError, ModelError, PlacementError, Refusal
from collage_core.formats import CPU
from collage_core.ir import Graph, Subgraph
from collage_core.ir.digests import structure_digest
from collage_core.ir.randomness import random_values
from collage_core.measuring.beside import Load
from collage_core.measuring.bounding import search_placement
from collage_core.measuring.calibration import calibrate
from collage_core.measuring.comparison import Comparison, Contest, Plan
from collage_core.measuring.end_to_end import AMPLIFIES
from collage_core.measuring.entrants import placement_entrant
from collage_core.measuring.known_costs import look_up
from collage_core.measuring.machine import Machine
from collage_core.measuring.workspace import Workspace
from collage_core.pipeline.proof import COLLAGE
from collage_core.pipeline.verdicts import Facts, Made, Prediction, Shown, backend_of_label
from collage_core.placement import VIEW, Group, Placement
from collage_core.plugins import Registry
from collage_core.runtime.bundle import Bundle
from collage_core.runtime.origin import other_processor, version_changes
from collage_core.runtime.plan import schedule
from collage_core.search.op_level import OpLevelSearch
from collage_core.target import processor

__all__ = ["check_bundle"]

_UNTIL_SETTLED = Plan(sittings=1, unsettled_s=math.inf)
"""Once each, and then those that are close, as long as there is time."""


def check_bundle(
    machine: Machine,
    file: str,
    bundle: Bundle,
    made: Made,
    budget_s: float,
    backends: Sequence[str] | None = None,
) -> Facts:
    """What there is to say of the bundle that was read from `file`, whose backends are all here.

    machine: for its placement's target. backends: libraries to compare it with; where None those that took
    part when it was made, and of a bundle that does not say that every graph library. budget_s: in all,
    waiting for other measurements apart; everybody sits once, however long that takes.

    PlacementError where the placement does not fit the graph, BackendError where it does not run.
    """
    check_limits()
    registry, progress = machine.registry, machine.progress
    graph, placement = bundle.graph, bundle.placement
    schedule(graph, placement)
    if backends is not None:
        backends = [registry.backend(name).name for name in backends]
    singles, not_compared = _singles(bundle, made, registry, backends)
    with measuring_lock(progress.note), Workspace(graph) as workspace:
        end_s = time.monotonic() + budget_s
        # Which placements hold a limit to the error costs do not say.
        prediction = None if made.is_limited else _prediction(machine, bundle, made)
        load = None if bundle.serving is None else Load.of(bundle.serving)
        entrants = [
            placement_entrant(workspace, n, p, registry, most_error=made.max_error, load=load)
            for n, p in {COLLAGE: placement, **singles}.items()
        ]
        limits = Limits(has_time=lambda seconds: time.monotonic() + seconds <= end_s)
        comparison = Contest("check", entrants, _UNTIL_SETTLED).run(machine, limits)
    record = comparison.records[COLLAGE]
    if not record.ok and record.status != "wrong":
        raise BackendError(f"{file}: it does not run here: {record.reason}")
    failed = {n: r.reason or r.status for n, r in comparison.records.items() if n != COLLAGE and not r.ok}
    then = other_processor(bundle.origin)
    return Facts(
        file,
        replace(made, singles=_of_libraries(made.singles, registry)),
        None if record.ok else record.reason or record.status,
        record.error,
        record.median_ms,
        placement.backends(),
        {label: _shown(label, comparison) for label in singles if label not in failed},
        {**not_compared, **failed},
        tuple(version_changes(bundle.origin, registry)),
        None if then is None else (then, processor().model),
        prediction,
        AMPLIFIES in record.details,
        not random_values(graph).keys().isdisjoint(graph.outputs),
    )


def _shown(label: str, comparison: Comparison) -> Shown:
    return Shown(comparison.ratio(label, COLLAGE), comparison.median_ms(label))


def _of_libraries(singles: Mapping[str, Shown], registry: Registry) -> dict[str, Shown]:
    """The reference alone is no library to be compared with."""
    kinds = {b.name: b.info().kind for b in registry.backends.values()}
    return {n: s for n, s in singles.items() if kinds.get(backend_of_label(n)) is not BackendKind.REFERENCE}


def _singles(
    bundle: Bundle, made: Made, registry: Registry, names: Sequence[str] | None
) -> tuple[dict[str, Placement], dict[str, str]]:
    """Placements of libraries alone by label, and why there are none of others: what the bundle holds, and
    of graph libraries the whole graph.
    """
    held = {backend_of_label(label): label for label in bundle.singles}
    ran = {backend_of_label(label): shown.ratio for label, shown in made.singles.items()}
    named = made.took_part if names is None else names
    if named is None:
        libraries = [b.name for b in registry.available() if b.info().kind is BackendKind.GRAPH]
        named = tuple(dict.fromkeys([*held, *libraries]))
    found: dict[str, Placement] = {}
    reasons: dict[str, str] = {}
    for name in named:
        backend = registry.backends.get(name.lower())
        reason = _absence(name, registry)
        if reason is not None or backend is None:
            reasons[name] = f"it is {reason}"
        elif backend.info().kind is BackendKind.REFERENCE:
            continue
        elif name in held:
            single = bundle.singles[held[name]]
            absent = [f"{n} is {why}" for n in single.backends() if (why := _absence(n, registry))]
            if absent:
                reasons[name] = ", ".join(absent)
            else:
                found[held[name]] = single
        elif bundle.placement.backends() == (name,):
            continue  # that is what runs
        elif backend.info().kind is not BackendKind.GRAPH:
            ratio = ran.get(name)
            took = f"; when it was made it took {ratio.value:.2f} times as long" if ratio else ""
            reasons[name] = f"the bundle does not hold how it runs this alone{took}"
        elif names is None and ran and name not in ran:
            reasons[name] = "it did not run this alone when it was made (--backends has it try)"
        else:
            whole = _whole(bundle.graph, backend, bundle.placement, made.constraints)
            if isinstance(whole, Placement):
                found[name] = whole
            else:
                reasons[name] = whole.reason
    return found, reasons


def _absence(name: str, registry: Registry) -> str | None:
    """Why a backend cannot run here; None if it can."""
    backend = registry.backends.get(name.lower())
    if backend is None:
        return "not installed here"
    reason = backend.info().reason
    return None if reason is None else f"not available here: {reason}"


def _whole(
    graph: Graph, backend: Backend, placement: Placement, constraints: Constraints
) -> Placement | Refusal:
    """The graph as one group, or why not. Whether the library takes it all, it says when it is built."""
    whole, target, kept = Subgraph(graph, graph.all_nodes), placement.target, constraints.on(graph)
    offers, refusals = offers_for(whole, "check", backend, target)
    # As it comes and goes: here are no conversions, nor transfers to another device.
    offers = [o for o in offers if o.variant.device == CPU and not o.is_rounded]
    if not offers:
        return next(iter(refusals), Refusal("it does not take the whole graph"))
    offers = [o for o in offers if kept.allows(whole, backend.name, o.variant)]
    if not offers:
        return Refusal("it was kept out when it was made")
    nodes = tuple(n.id for n in graph.nodes)
    group = Group(backend.name, nodes, offers[0].variant)
    return Placement((group,), (), target, graph=structure_digest(graph))


def _prediction(machine: Machine, bundle: Bundle, made: Made) -> Prediction | None:
    """What known costs say of the backends that took part; None where they do not cover the graph, or do not
    price the placement. Nothing is measured.
    """
    graph, registry = bundle.graph, machine.registry
    if made.took_part is None or made.alone_ms is None:
        return None
    machine.progress.phase("looking up costs")
    backends = {n: registry.backend(n) for n in made.took_part if _absence(n, registry) is None}
    machine = replace(machine, backends=backends)
    try:
        known = look_up(machine, graph, made.constraints, made.made_at or 0.0)
        known.costs.transitions, _ = calibrate(machine, measure=False)
        best = search_placement(known.candidates, known.costs, OpLevelSearch()).placement
    except (ModelError, PlacementError):
        return None
    priced = known.costs.priced(graph, bundle.placement)
    if priced.predicted_ms is None or best.predicted_ms is None:
        return None
    newer = known.newer if made.made_at is not None else 0
    return Prediction(priced.predicted_ms, best.predicted_ms, _nodes_of(best), newer)


def _nodes_of(placement: Placement) -> dict[str, int]:
    """By backend, how many nodes it runs, the most first."""
    counts: dict[str, int] = {}
    for g in placement.groups:
        if g.backend != VIEW:
            counts[g.backend] = counts.get(g.backend, 0) + len(g.nodes)
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
