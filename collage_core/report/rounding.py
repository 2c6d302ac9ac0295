"""What rounding costs: of an answer within an error that was allowed, as JSON and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from collage_core.counted import counted
from collage_core.ir import Graph, Subgraph
from collage_core.pipeline.error_limit import Spent, Tried
from collage_core.placement import Conversion, Group
from collage_core.rounding import Site, converted_site, rounded_sites

__all__ = ["conversion_error", "group_error", "limit_json", "limit_text"]


def group_error(graph: Graph, group: Group, spent: Spent | None) -> float | None:
    """What the outputs would be off by, max|difference| / max|expected|, if this group alone rounded; None
    where it does not, or nobody asked.
    """
    return _error_of(rounded_sites(Subgraph(graph, group.nodes), group.variant), spent)


def conversion_error(graph: Graph, c: Conversion, spent: Spent | None) -> float | None:
    """The same of a conversion."""
    site = converted_site(graph, c.value, c.source, c.destination)
    return None if site is None else _error_of([site], spent)


def limit_json(spent: Spent | None) -> dict[str, Any] | None:
    """What was allowed, and what came of it on inputs that nothing was chosen by. tried: what was found on
    the way, the fastest first; on the front is what nothing else is as fast and as right as.
    """
    if spent is None:
        return None
    return {
        "most": spent.most,
        "metric": spent.metric,
        "held_out_error": spent.error,
        "held_out_samples": spent.samples,
        "made_up_inputs": spent.is_made_up,
        "tried": [
            {**t._asdict(), "is_on_front": not any(_is_better(other, t) for other in spent.tried)}
            for t in spent.tried
        ],
    }


def _is_better(other: Tried, t: Tried) -> bool:
    """Whether it is as fast and as right at least, and one of both more. What both were run on is what
    counts, else what was weighed.
    """
    theirs, its = other.error, t.error
    if other.held_out_error is not None and t.held_out_error is not None:
        theirs, its = other.held_out_error, t.held_out_error
    as_good = other.predicted_ms <= t.predicted_ms and theirs <= its
    return as_good and (other.predicted_ms, theirs) != (t.predicted_ms, its)


def limit_text(limit: Mapping[str, Any], max_rel_error: float | None) -> str:
    """The same in words. max_rel_error: of the answer that was compared with the reference's."""
    error, metric = limit["held_out_error"], limit.get("metric")
    if error is None:
        beyond = not metric and max_rel_error is not None and max_rel_error > limit["most"]
        more = f", and it is off by {max_rel_error:.1e} without that" if beyond else ""
        what = f"{metric} of" if metric else "an error of"
        return f"{what} {limit['most']:g} was allowed; nothing is rounded{more}"
    many = counted(limit["held_out_samples"], "held-out input")
    if metric:
        return f"{metric} is {error:.3g} on {many}, of the {limit['most']:g} that was allowed"
    return f"off by {error:.1e} at most on {many}, of the {limit['most']:g} that was allowed"


def _error_of(sites: Iterable[Site], spent: Spent | None) -> float | None:
    known = {} if spent is None else spent.squared_errors
    found = [known[site] for site in sites if site in known]
    return math.sqrt(math.fsum(found)) if found else None
