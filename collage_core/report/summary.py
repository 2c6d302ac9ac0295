"""Results as JSON values: what `--json` prints, what a bundle keeps, and what the text reports are made
from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from collage_core.backend import BackendKind
from collage_core.formats import Format
from collage_core.ir import Graph, Subgraph
from collage_core.ir.randomness import drawing_nodes, random_values, seed_of
from collage_core.measuring.end_to_end import AMPLIFIES, PARTS
from collage_core.measuring.in_place import InPlace, kernel_key
from collage_core.pipeline.error_limit import Spent
from collage_core.pipeline.optimize import COLLAGE, Optimization
from collage_core.pipeline.original import OriginalCheck
from collage_core.pipeline.tuning import TaskResult, TuneTask, Tuning
from collage_core.placement import VIEW, Placement
from collage_core.report.constraints import constraints_json
from collage_core.report.contenders import contenders_of, faster_than_all
from collage_core.report.dataflow import peaks_json
from collage_core.report.rivals import rivals_of
from collage_core.report.rounding import conversion_error, group_error, limit_json
from collage_core.report.step_costs import cost_json, predicted_ms
from collage_core.search.transitions import Transitions

__all__ = ["optimization_json", "placement_json", "shares", "tuning_json"]
_MAX_REFUSALS = 20
_MISS = 0.1
"""A prediction misses where it is off by more than this share of the group's own time in place..."""
_MISS_OF_WHOLE = 0.01
"""... and by more than this share of the whole."""


def placement_json(
    graph: Graph,
    placement: Placement,
    parts_ms: Sequence[float] = (),
    spent: Spent | None = None,
    transitions: Transitions | None = None,
) -> dict[str, Any]:
    """The groups and conversions of a placement, with the names that a person knows nodes by. Those
    conversions that bring a value from one device to another are told again, as transfers, with the bytes
    that they move.

    parts_ms: what they took in place, as `ExecutableSession.parts_ms` orders them; `in_place_ms` is None
    without. spent: what rounding in each place does; `error` of a group or a conversion, the outputs' if it
    alone rounded, is None without, and where it does not. transitions: what the search reckoned with; without
    them no part has a `predicted_ms`.
    """
    in_place = iter(parts_ms)
    groups = []
    for g in placement.groups:
        subgraph = Subgraph(graph, g.nodes)
        groups.append(
            {
                "backend": g.backend,
                "device": g.variant.device,
                "nodes": [n.name for n in subgraph.nodes],
                "ops": [n.op_type for n in subgraph.nodes],
                "formats": {"inputs": _formats(g.variant.inputs), "outputs": _formats(g.variant.outputs)},
                **cost_json(g.backend, g.cost_ms, transitions),
                "spread_ms": g.spread_ms,
                "in_place_ms": next(in_place, None),
                "error": group_error(graph, g, spent),
            }
        )
    conversions = [
        {
            "value": c.value,
            "from": str(c.source),
            "to": str(c.destination),
            "backend": c.backend,
            **cost_json(c.backend, c.cost_ms, transitions),
            "in_place_ms": next(in_place, None),
            "error": conversion_error(graph, c, spent),
        }
        for c in placement.conversions
    ]
    transfers = [
        {**told, "bytes": c.source.size_bytes(graph.shape_of(c.value))}
        for told, c in zip(conversions, placement.conversions, strict=True)
        if c.source.device != c.destination.device
    ]
    return {"groups": groups, "conversions": conversions, "transfers": transfers}


def shares(report: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Per backend: groups, nodes, conversions, and predicted time (ms, and as a share of all, without what
    crossings take), from a placement's JSON. A share of nodes, views apart, where no time is known: what runs
    as a whole need not have been timed by itself.
    """
    result: dict[str, dict[str, float]] = {}
    for g in report["groups"]:
        row = result.setdefault(g["backend"], dict.fromkeys(("groups", "nodes", "conversions", "ms"), 0))
        row["groups"] += 1
        row["nodes"] += len(g["nodes"])
        row["ms"] += predicted_ms(g) or 0.0
    for c in report["conversions"]:
        row = result.setdefault(c["backend"], dict.fromkeys(("groups", "nodes", "conversions", "ms"), 0))
        row["conversions"] += 1
        row["ms"] += predicted_ms(c) or 0.0
    weights = {name: row["ms"] for name, row in result.items()}
    if not any(weights.values()):
        weights = {name: row["nodes"] if name != VIEW else 0 for name, row in result.items()}
    total = sum(weights.values()) or 1.0
    for name, row in result.items():
        row["share"] = weights[name] / total
    return result


def optimization_json(optimization: Optimization, model: str) -> dict[str, Any]:
    """The result of an optimisation. Times in ms unless the name says otherwise; errors as docs/measuring.md
    defines them.
    """
    o = optimization
    ours = o.comparison.records[COLLAGE] if o.comparison is not None else None
    parts_ms: Any = ours.details.get(PARTS, ()) if ours is not None else ()
    placed = placement_json(o.graph, o.placement, parts_ms, o.spent, o.costs.transitions)
    for told, rivals in zip(placed["groups"], rivals_of(o), strict=True):
        told |= rivals
    end_to_end = {
        known: sum(len(c.records) for c in o.comparisons if c.measured != known) for known in (True, False)
    }
    solution = o.op_level.solution
    measured, cached = o.costs.measured + end_to_end[False], o.costs.cached + end_to_end[True]
    contenders = contenders_of(o)
    random = random_values(o.graph)
    error: dict[str, Any] = {"max_abs_error": None, "max_rel_error": None, "amplifies_rounding": False}
    if ours is not None:
        error = {
            "max_abs_error": ours.details.get("max_abs_error"),
            "max_rel_error": ours.error,
            "amplifies_rounding": AMPLIFIES in ours.details,
        }
    return {
        "model": model,
        "device": o.placement.target.device,
        "devices": list(o.placement.target.devices),
        "precisions": list(o.placement.target.precisions),
        "threads": o.placement.target.threads,
        "serving": None if o.serving is None else asdict(o.serving),
        "peaks": o.peaks and peaks_json(o.peaks),
        "contenders": contenders,
        "faster_than_all": faster_than_all(contenders, o.chosen),
        "beaten_by": list(o.beaten_by),
        "predicted_ms": o.placement.predicted_ms,
        "prediction": _prediction(o, placed, parts_ms),
        "chosen": o.chosen,
        "effort": o.effort,
        "stage": str(o.stage),
        "is_cut_short": o.is_cut_short,
        "rejected": list(o.rejected),
        "constraints": constraints_json(o.constraints),
        "prices": {what: {"ms": p.ms, "is_least": p.is_least} for what, p in o.prices.items()},
        "errors": _errors(o.original) if o.original else [],
        "original": _original(o.original) if o.original else None,
        "second_opinion": asdict(o.opinion) if o.opinion else None,
        "random_outputs": [v for v in o.graph.outputs if v in random],
        "random": [{"node": n.name, "op": n.op_type, "seed": seed_of(n)} for n in drawing_nodes(o.graph)],
        **placed,
        "search": {
            "candidates": len(o.candidates.candidates),
            "measured": measured,
            "cached": cached,
            "measure_s": round(o.costs.measure_s, 3),
            "search_s": round(o.search_s, 4),
            "total_s": round(o.total_s, 3),
            "optimal": o.op_level.placement.optimal,
            "total_ms": o.op_level.placement.predicted_ms,
            "lower_bound_ms": solution.lower_bound_ms if solution else None,
            "method": o.op_level.placement.method,
            "states": solution.states if solution else None,
            "seconds": {phase: round(s, 3) for phase, s in o.seconds.items()},
            "counts": dict(o.counts),
            "in_place": list(o.op_level.history.get("turns", ())),
            "alone_ms": _alone_ms(o),
        },
        "second_level": dict(o.second_level.history) if o.second_level else None,
        **error,
        "error_limit": limit_json(o.spent),
        "shares": shares(placed),
        "singles": [
            {
                "backend": s.backend,
                "alone": s.alone,
                "way": s.way,
                "predicted_ms": s.placement.predicted_ms if s.placement else None,
                "unmeasured_kernels": _unmeasured(o, s.placement) if s.placement else None,
                "reason": s.reason,
                "failed": _failure(o, s.label),
            }
            for s in o.singles
        ],
        "fallback": _fallback(o),
        "infeasible": _infeasible(o),
        "declined": {
            name: _counted([str(r) for r in refusals]) for name, refusals in o.candidates.refusals.items()
        },
    }


def _failure(o: Optimization, label: str) -> str | None:
    """Why what goes by that label failed as a whole; None where it did not."""
    said = (reason.partition(f"{label}: ") for reason in o.rejected)
    return next((why for before, _, why in said if why and not before), None)


def _unmeasured(o: Optimization, placement: Placement) -> int:
    """How many of its kernels have no cost but a bound."""
    keys = [kernel_key(o.graph, g) for g in placement.groups if g.backend != VIEW]
    return sum(key not in o.costs.kernels for key in keys)


def _alone_ms(o: Optimization) -> dict[str, float | None]:
    """What is predicted from costs alone, before anything was seen in place: of what was chosen, and the
    least of all placements. Later costs compare with these.
    """
    alone = replace(o.costs, in_place=InPlace()).priced(o.graph, o.placement)
    turns = o.op_level.history.get("turns", ())
    least_ms = turns[0]["predicted_ms"] if turns else o.op_level.placement.predicted_ms
    return {"chosen": alone.predicted_ms, "least": least_ms}


def _errors(check: OriginalCheck) -> list[str]:
    """What is wrong with how the model was read, or could not be looked at."""
    unchecked = f"not compared with the model as it was given: {check.unchecked}" if check.unchecked else None
    return [*(str(fault) for fault in check.faults), *filter(None, [unchecked])]


def _original(check: OriginalCheck) -> dict[str, Any]:
    """The model as it was given beside what is placed, both on the reference."""
    return {
        "max_rel_error": check.error,
        "unchecked": check.unchecked,
        "passes_left_out": [asdict(fault) for fault in check.faults],
        "seconds": round(check.seconds, 3),
    }


def tuning_json(tuning: Tuning, model: str) -> dict[str, Any]:
    """What `collage tune` found. least_ms: by the roofline; known_ms: the best cost of the same nodes before,
    on any backend; cost_ms: what the backend's best for them costs now; faster: whether that is less than
    known_ms by more than a percent.
    """

    def task(t: TuneTask) -> dict[str, Any]:
        subgraph = t.candidate.subgraph
        return {
            "node": subgraph.nodes[0].name,
            "ops": str(subgraph),
            "backend": t.candidate.backend,
            "variant": str(t.candidate.variant),
            "occurrences": t.occurrences,
            "least_ms": t.least_ms,
            "known_ms": t.known_ms,
        }

    def result(r: TaskResult) -> dict[str, Any]:
        known_ms = r.task.known_ms
        return {
            **task(r.task),
            "trials": r.tuned.trials if r.tuned else 0,
            "new_trials": r.new_trials,
            "tuner_ms": r.tuned.best_ms if r.tuned else None,
            "cost_ms": r.cost_ms,
            "faster": r.cost_ms is not None and (known_ms is None or r.cost_ms < 0.99 * known_ms),
            "seconds": r.seconds,
            "reason": r.reason,
        }

    return {
        "model": model,
        "device": tuning.target.device,
        "threads": tuning.target.threads,
        "peaks": peaks_json(tuning.peaks),
        "tuned": [result(r) for r in tuning.results],
        "left": [task(t) for t in tuning.left],
        "skipped": [task(t) for t in tuning.skipped],
        "seconds": tuning.seconds,
    }


def _prediction(o: Optimization, placed: Mapping[str, Any], parts_ms: Sequence[float]) -> dict[str, Any]:
    """What the predicted latency is made of, what the same took in place, and which groups miss."""
    steps = [*placed["groups"], *placed["conversions"]]
    misses = []
    for i, step in enumerate(steps):
        told_ms, took_ms = step["predicted_ms"], step["in_place_ms"]
        if told_ms is None or took_ms is None:
            continue
        off_ms = abs(told_ms - took_ms)
        if off_ms > max(_MISS * took_ms, _MISS_OF_WHOLE * sum(parts_ms)):
            is_group = i < len(placed["groups"])
            misses.append(
                {
                    "group": i if is_group else None,
                    "backend": step["backend"],
                    "what": "+".join(step["ops"]) if is_group else f"convert {step['value']}",
                    "predicted_ms": told_ms,
                    "in_place_ms": took_ms,
                }
            )
    return {
        "terms_ms": dict(o.placement.terms_ms),
        "transitions": asdict(o.costs.transitions),
        "in_place_ms": sum(parts_ms) if parts_ms else None,
        "misses": sorted(misses, key=lambda m: -abs(m["predicted_ms"] - m["in_place_ms"])),
    }


def _formats(formats: Sequence[Format]) -> list[str]:
    return [str(f) for f in formats]


def _fallback(o: Optimization) -> list[dict[str, Any]]:
    """What falls to the reference, and what each backend said about it."""
    references = {b for b in o.placement.backends() if o.candidates.kinds.get(b) is BackendKind.REFERENCE}
    result = []
    for g in o.placement.groups:
        if g.backend in references:
            for n in Subgraph(o.graph, g.nodes).nodes:
                said = {
                    name: [r.reason for r in refusals if r.node == n.name][:1]
                    for name, refusals in o.candidates.refusals.items()
                }
                reasons = {name: r[0] for name, r in said.items() if r}
                cost = cost_json(g.backend, g.cost_ms, o.costs.transitions)
                result.append({"node": n.name, "op": n.op_type, **cost, "declined": reasons})
    return result


def _infeasible(o: Optimization) -> list[dict[str, Any]]:
    """Candidates that were offered and did not hold, with the reason, each once."""
    found: dict[tuple[str, str, str], int] = {}
    for c in o.candidates.candidates:
        record = o.costs.record_of(c) if c.backend != VIEW else None
        if record is not None and not record.ok:
            key = (c.backend, str(c.subgraph), f"{record.status}: {record.reason}")
            found[key] = found.get(key, 0) + 1
    for (type, source, destination), offers in o.costs.conversion_records.items():
        for backend, record in offers.items():
            if not record.ok and record.status != "declined":
                what = f"{type} from {source} to {destination}"
                found[backend, what, f"{record.status}: {record.reason}"] = 1
    return [{"backend": b, "ops": ops, "reason": reason, "count": n} for (b, ops, reason), n in found.items()]


def _counted(reasons: Sequence[str]) -> list[str]:
    """The commonest reasons, each with how often it was given."""
    counted = Counter(reasons).most_common(_MAX_REFUSALS)
    return [f"{reason} ({n} times)" if n > 1 else reason for reason, n in counted]
