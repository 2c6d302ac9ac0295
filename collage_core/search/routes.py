"""Routes of conversions: where nobody converts from one format to another, or where several steps are cheaper
than one, a value goes by way of others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

__all__ = ["Routes", "cheapest_routes"]

Hop = tuple[int, int]
"""Source and destination, as numbers of formats."""

Routes = Mapping[Hop, "tuple[float, tuple[Hop, ...]]"]
"""By source and destination: what the cheapest way takes in ms, and its hops in order."""


def cheapest_routes(hops_ms: Mapping[Hop, float], dtypes: Mapping[int, str] | None = None) -> Routes:
    """Of every pair that can be had from these hops (Dijkstra, Numerische Mathematik 1, 1959).

    From one source all routes are a tree: where two of them come by the same format, they came there alike.
    A single hop is taken where several are no cheaper. dtypes: of the formats; on no route the dtype changes
    twice, for a value would be rounded on the way. None where all are alike.
    """
    dtypes = dtypes or {}
    beyond: dict[int, list[tuple[int, float]]] = {}
    for (source, destination), ms in hops_ms.items():
        if math.isfinite(ms):
            beyond.setdefault(source, []).append((destination, ms))
    found: dict[Hop, tuple[float, tuple[Hop, ...]]] = {}
    for source in beyond:
        done: set[int] = set()
        waiting: list[tuple[float, int, int, tuple[Hop, ...]]] = [(0.0, 0, source, ())]
        while waiting:
            ms, count, at, hops = heapq.heappop(waiting)
            if at in done:
                continue
            done.add(at)
            if hops:
                found[source, at] = ms, hops
            is_changed = dtypes.get(at) != dtypes.get(source)
            for destination, hop_ms in beyond.get(at, ()):
                changes_again = is_changed and dtypes.get(destination) != dtypes.get(at)
                if destination not in done and not changes_again:
                    heapq.heappush(waiting, (ms + hop_ms, count + 1, destination, (*hops, (at, destination))))
    return found
