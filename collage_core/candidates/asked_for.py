"""What is offered for what a person asks for, and whether all of that can be had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collage_core.backend import Backend
from collage_core.candidates.constraints import FixedGroup, Kept
from collage_core.candidates.offers import Candidate, is_library, offers_for
from collage_core.errors import PlacementError, Refusal
from collage_core.ir import NodeSet, Subgraph
from collage_core.placement import VIEW
from collage_core.target import Target

__all__ = ["asked_for", "nobody_offers", "require_kept"]


def asked_for(
    kept: Kept, backends: Sequence[Backend], target: Target, found: Sequence[Candidate]
) -> list[Candidate]:
    """What is offered for groups that a person asks for, whether or not anybody would have proposed them, and
    whether or not something else that is asked for allows it.
    """
    by_name = {b.name.lower(): b for b in backends}
    asked: list[tuple[NodeSet, Backend, FixedGroup | None]] = []
    for nodes, fixed in kept.groups:
        if fixed.backend.lower() == VIEW:
            continue
        if (by := by_name.get(fixed.backend.lower())) is None:
            raise fixed.wrong(", which does not take part")
        asked.append((nodes, by, fixed))
    asked += [(t, b, None) for t in kept.together for b in backends if is_library(b)]
    there = {(c.subgraph.node_set, c.backend, c.variant) for c in found}
    more: list[Candidate] = []
    for nodes, backend, group in asked:
        offers, declined = offers_for(Subgraph(kept.graph, nodes), "asked for", backend, target)
        if group is not None and not any(kept.allows(c.subgraph, c.backend, c.variant) for c in offers):
            raise group.wrong(f": {_why_not(group, offers, declined)}")
        more += [c for c in offers if (nodes, c.backend, c.variant) not in there]
        there |= {(nodes, c.backend, c.variant) for c in offers}
    return more


def _why_not(group: FixedGroup, offers: Sequence[Candidate], declined: Sequence[Refusal]) -> str:
    if any(group.accepts(c.variant) for c in offers):
        return "a pin or an exclusion says otherwise"
    if not offers:
        return str(declined[0]) if declined else "it does not offer to run them"
    is_about_options = any(replace(group, options=None).accepts(c.variant) for c in offers)
    variants = [str(c.variant) for c in offers]
    more = f" and {len(variants) - 2} more" if len(variants) > 2 else ""
    what = "with these options" if is_about_options else "in these formats"
    return f"not {what}; it offers {'; '.join(variants[:2])}{more}"


def require_kept(
    kept: Kept,
    candidates: Sequence[Candidate],
    refusals: Mapping[str, Sequence[Refusal]],
    offered: Mapping[str, NodeSet],
    excluded: Mapping[str, NodeSet],
) -> None:
    """PlacementError, with what its backend said, for a pin that no candidate keeps, and for nodes that are
    to be together and cannot. offered: nodes that a backend offers to run, by its name in small letters.
    excluded: those of them that it may not run, by its name.
    """
    covered = {n.id for c in candidates for n in c.subgraph.nodes}
    for i, (backend, selector) in kept.pins.items():
        if i in covered:
            continue
        node = kept.graph.node(i)
        said = [r.reason for r in refusals.get(backend, ()) if r.node == node.name]
        why = "which does not take part" if backend not in refusals else "which does not offer to run it"
        if i in offered.get(backend.lower(), ()):
            why, said = "which offers to run it, but not as something else that was asked for wants it", []
        by = "" if selector == node.name else f" by {selector!r}"
        raise PlacementError(
            f"node {node.name!r} ({node.op_type}) is pinned to {backend!r}{by}, {why}"
            + (f": {said[0]}" if said else "")
        )
    for nodes in kept.together:
        if not nodes <= NodeSet(covered):
            names = ", ".join(n.name for n in Subgraph(kept.graph, nodes).nodes)
            who = [backend for backend, of in excluded.items() if not nodes.isdisjoint(of)]
            raise nobody_offers(f"{names} as one group", who)


def nobody_offers(what: str, excluded: Sequence[str], said: Sequence[str] = ()) -> PlacementError:
    """The error that says so. excluded: backends that may not run it. said: why others do not offer to."""
    told = [f"excluded: {', '.join(excluded)}"] if excluded else []
    left = " that is left" if excluded else ""
    return PlacementError("; ".join([f"no backend{left} offers to run {what}", *told, *said]))
