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
from collage_core.report.tables import Table

__all__ = ["rivals_of", "rivals_table"]

_UNMEASURED = "not measured"


def rivals_of(o: Optimization) -> list[list[dict[str, Any]]]:
    """For each group of the placement, the other backends that offer a kernel for just its nodes: `backend`,
    `cost_ms` of the fastest of these kernels in ms, conversions apart, and where no cost is known the
    `reason`. Fastest first. References are left out, and what stores values rounded where the group does not.
    """
    offers: dict[NodeSet, dict[str, list[Candidate]]] = {}
    for c in o.candidates.candidates:
        if c.backend != VIEW and o.candidates.kinds[c.backend] is not BackendKind.REFERENCE:
            offers.setdefault(c.subgraph.node_set, {}).setdefault(c.backend, []).append(c)
    found = []
    for g in o.placement.groups:
        others = {n: kernels for n, kernels in offers.get(NodeSet(g.nodes), {}).items() if n != g.backend}
        if not rounded_to(Subgraph(o.graph, g.nodes), g.variant):
            others = {n: [c for c in kernels if not c.is_rounded] for n, kernels in others.items()}
        told = [_told(o, name, kernels) for name, kernels in others.items() if kernels]
        found.append(sorted(told, key=lambda r: (r["cost_ms"] is None, r["cost_ms"] or 0.0, r["backend"])))
    return found


def _told(o: Optimization, backend: str, candidates: Iterable[Candidate]) -> dict[str, Any]:
    """Of all its kernels for the same nodes."""
    costs_ms: list[float] = []
    reason = _UNMEASURED
    for c in candidates:
        record = o.costs.record_of(c)
        if record is not None and record.median_ms is not None:
            costs_ms.append(record.median_ms)
        elif record is not None and reason == _UNMEASURED:
            reason = f"{record.status}: {record.reason}" if record.reason else record.status
    cost_ms = min(costs_ms, default=None)
    return {"backend": backend, "cost_ms": cost_ms, "reason": None if costs_ms else reason}


def rivals_table(groups: Iterable[Mapping[str, Any]]) -> Table | None:
    """Groups and all others who offer them; None where nobody does."""
    contested = [(i, g) for i, g in enumerate(groups) if g.get("rivals")]
    names = sorted({r["backend"] for _, g in contested for r in g["rivals"]})
    if not contested:
        return None
    rows = []
    for i, g in contested:
        by_name = {r["backend"]: r for r in g["rivals"]}
        rows.append((str(i), g["backend"], ms_text(g["cost_ms"]), *(_cell(by_name.get(n)) for n in names)))
    header = ("#", "placed on", "ms", *names)
    right = [0, *range(2, len(header))]
    return Table(header, rows, right, title="the same nodes on others, ms")


def _cell(rival: Mapping[str, Any] | None) -> str:
    """A dash where it offers nothing for these nodes."""
    if rival is None:
        return "-"
    if rival["cost_ms"] is None:
        return str(rival["reason"]).partition(":")[0]
    return ms_text(rival["cost_ms"])
