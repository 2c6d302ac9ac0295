"""What others take for the groups of a placement: why they lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from collage_core.backend import BackendKind, rounded_to
from collage_core.candidates import Candidate
from collage_core.ir import NodeSet, Subgraph
from collage_core.pipeline.optimize import Optimization
from collage_core.placement import VIEW
from collage_core.report.conclusion import ms_text
from collage_core.report.step_costs import cost_json, ms_header, predicted_ms
from collage_core.report.tables import Table

__all__ = ["rivals_of", "rivals_table"]

_UNMEASURED = "not measured"


def rivals_of(o: Optimization) -> list[dict[str, list[dict[str, Any]]]]:
    """For each group of the placement, who else could run just its nodes. References are left out, and what
    stores values rounded where the group does not.

    - rivals: other backends, `cost_ms` and `predicted_ms` of the fastest of their kernels, conversions apart,
      and where no cost is known the `reason`. Fastest first. One that offers none says why it declined one of
      the nodes.
    - ways: other kernels of the same backend, by their formats and options, with cost or reason likewise.
    """
    offers: dict[NodeSet, dict[str, list[Candidate]]] = {}
    for c in o.candidates.candidates:
        if c.backend != VIEW and o.candidates.kinds[c.backend] is not BackendKind.REFERENCE:
            offers.setdefault(c.subgraph.node_set, {}).setdefault(c.backend, []).append(c)
    declined = _declined(o)
    found = []
    for g in o.placement.groups:
        part = Subgraph(o.graph, g.nodes)
        kernels = offers.get(part.node_set, {})
        if not rounded_to(part, g.variant):
            kernels = {n: [c for c in of if not c.is_rounded] for n, of in kernels.items()}
        rivals = [_cost_of(o, name, of) for name, of in kernels.items() if of and name != g.backend]
        known = {g.backend, *(name for name, of in kernels.items() if of)}
        for name, reasons in declined.items():
            said = next((reasons[n.name] for n in part.nodes if n.name in reasons), None)
            if said is not None and name not in known and g.backend != VIEW:
                rivals.append({**_cost(o, name, None), "reason": f"declined: {said}"})
        ways = [
            {"variant": str(c.variant), **_cost_of(o, g.backend, [c])}
            for c in kernels.get(g.backend, ())
            if c.variant != g.variant
        ]
        found.append({"rivals": sorted(rivals, key=_by_cost), "ways": sorted(ways, key=_by_cost)})
    return found


def _by_cost(told: Mapping[str, Any]) -> tuple[bool, float, str]:
    ms = predicted_ms(told)
    return ms is None, ms or 0.0, told.get("variant", told["backend"])


def _declined(o: Optimization) -> dict[str, dict[str, str]]:
    """Backend -> what it said first of each node that it declined."""
    said: dict[str, dict[str, str]] = {}
    for name, refusals in o.candidates.refusals.items():
        if o.candidates.kinds.get(name) is not BackendKind.REFERENCE:
            for r in refusals:
                if r.node is not None:
                    said.setdefault(name, {}).setdefault(r.node, str(r))
    return said


def _cost(o: Optimization, backend: str, cost_ms: float | None) -> dict[str, Any]:
    return {"backend": backend, **cost_json(backend, cost_ms, o.costs.transitions)}


def _cost_of(o: Optimization, backend: str, candidates: Iterable[Candidate]) -> dict[str, Any]:
    """Of all these kernels of a backend for the same nodes."""
    costs_ms: list[float] = []
    reason = _UNMEASURED
    for c in candidates:
        record = o.costs.record_of(c)
        if record is not None and record.median_ms is not None:
            costs_ms.append(record.median_ms)
        elif record is not None and reason == _UNMEASURED:
            reason = f"{record.status}: {record.reason}" if record.reason else record.status
    return {**_cost(o, backend, min(costs_ms, default=None)), "reason": None if costs_ms else reason}


def rivals_table(groups: Iterable[Mapping[str, Any]]) -> Table | None:
    """Groups and all others who offer them; None where nobody does."""
    contested = [(i, g) for i, g in enumerate(groups) if g.get("rivals")]
    names = sorted({r["backend"] for _, g in contested for r in g["rivals"]})
    if not contested:
        return None
    rows = []
    for i, g in contested:
        by_name = {r["backend"]: r for r in g["rivals"]}
        rows.append((str(i), g["backend"], ms_text(predicted_ms(g)), *(_cell(by_name.get(n)) for n in names)))
    what = ms_header(g for _, g in contested)
    header = ("#", "placed on", what, *names)
    right = [0, *range(2, len(header))]
    return Table(header, rows, right, title=f"the same nodes on others, {what} ms")


def _cell(rival: Mapping[str, Any] | None) -> str:
    """A dash where it offers nothing for these nodes."""
    if rival is None:
        return "-"
    if rival["cost_ms"] is None:
        return str(rival["reason"]).partition(":")[0]
    return ms_text(predicted_ms(rival))
