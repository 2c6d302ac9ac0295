"""Where boxes go: layers from top to bottom, as few crossings as can be, edges around boxes.

Layers and their orders come from fast-sugiyama, which knows no sizes (Gansner et al., A technique for drawing
directed graphs, 1993). What is here gives boxes their room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple, cast

import fast_sugiyama

__all__ = ["Drawing", "layered"]

_PASSING = 8.0
"""The width of an edge where it passes a layer."""
_MOST_PASSED = 3
"""Layers that edges may pass, for each box: a layout of more takes minutes, and nobody could follow it."""

Point = tuple[float, float]
Edge = tuple[str, str]


class Drawing(NamedTuple):
    """centres: of the boxes, by name. ways: the points by way of which an edge goes, where there are any.
    far: edges that had no say in it. All lies between (0, 0) and (width, height), y downwards.
    """

    centres: dict[str, Point]
    ways: dict[Edge, list[Point]]
    far: frozenset[Edge]
    width: float
    height: float


def layered(boxes: Mapping[str, tuple[float, float]], edges: Iterable[Edge], gap: float) -> Drawing:
    """boxes: width and height by name. edges: an acyclic graph of these names. gap: between boxes."""
    every = [e for e in dict.fromkeys(edges) if e[0] != e[1]]
    linked = _near(every, _MOST_PASSED * len(boxes))
    names = sorted({name for e in linked for name in e})
    number = {name: i for i, name in enumerate(names)}
    parts = []
    if linked:
        numbered = [(number[a], number[b]) for a, b in linked]
        for positions, _, _, pieces in _positions(numbered):
            placed = cast("Mapping[int, Point]", dict(positions))
            parts.append(
                _Part(boxes, names, placed, cast("Iterable[tuple[int, int]]", pieces or ())).drawing(gap)
            )
    for name, (width, height) in boxes.items():
        if name not in number:
            parts.append(Drawing({name: (width / 2, height / 2)}, {}, frozenset(), width, height))
    return _side_by_side(parts, gap, frozenset(every) - frozenset(linked))


def _positions(edges: Sequence[tuple[int, int]]) -> fast_sugiyama.Layouts:
    try:
        return fast_sugiyama.from_edges(edges, vertex_spacing=1, dummy_vertices=True)
    except SystemError as error:  # what a signal raised while it was at it, which it does not hand on
        raise error.__cause__ or error from None


def _near(edges: Sequence[Edge], most_passed: int) -> list[Edge]:
    """As many as pass no more layers together, the shortest first. What keeps a box in its layer, an edge
    from the one before it, is always among them.
    """
    layer = _layers(edges)

    def span(edge: Edge) -> int:
        return layer[edge[1]] - layer[edge[0]]

    kept, passed = dict.fromkeys(e for e in edges if span(e) == 1), 0
    for edge in sorted(edges, key=span):
        passed += span(edge) - 1
        if passed > most_passed:
            break
        kept[edge] = None
    return [e for e in edges if e in kept]


def _layers(edges: Sequence[Edge]) -> dict[str, int]:
    """The longest way to each box from one that nothing leads to."""
    before: dict[str, list[str]] = {}
    for a, b in edges:
        before.setdefault(a, [])
        before.setdefault(b, []).append(a)
    layer: dict[str, int] = {}
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:  # of a placement that was edited by hand, and cannot run
        order = list(before)
    for name in order:
        layer[name] = 1 + max((layer.get(a, 0) for a in before[name]), default=-1)
    return layer


class _Part:
    """What hangs together: boxes and the points where long edges pass a layer, by number."""

    def __init__(
        self,
        boxes: Mapping[str, tuple[float, float]],
        names: Sequence[str],
        positions: Mapping[int, Point],
        pieces: Iterable[tuple[int, int]],
    ) -> None:
        self._names = names
        self._positions = positions
        self._sizes = {i: boxes[names[i]] if i < len(names) else (_PASSING, 0.0) for i in positions}
        self._pieces = list(pieces)

    def drawing(self, gap: float) -> Drawing:
        layers: dict[float, list[int]] = {}
        for i, (_, y) in self._positions.items():
            layers.setdefault(-y, []).append(i)
        wide = [w for i, (w, _) in self._sizes.items() if i < len(self._names)]
        pitch = sum(wide) / len(wide) + gap
        centres: dict[int, Point] = {}
        top = 0.0
        for _, layer in sorted(layers.items()):
            layer.sort(key=lambda i: (self._positions[i][0], i))
            height = max(self._sizes[i][1] for i in layer)
            wanted = [self._positions[i][0] * pitch for i in layer]
            for i, x in zip(layer, _apart(wanted, [self._sizes[i][0] for i in layer], gap), strict=True):
                centres[i] = (x, top + height / 2)
            top += height + gap
        left = min(x - self._sizes[i][0] / 2 for i, (x, _) in centres.items())
        right = max(x + self._sizes[i][0] / 2 for i, (x, _) in centres.items())
        moved = {i: (x - left, y) for i, (x, y) in centres.items()}
        named = {self._names[i]: point for i, point in moved.items() if i < len(self._names)}
        return Drawing(named, self._ways(moved), frozenset(), right - left, top - gap)

    def _ways(self, centres: Mapping[int, Point]) -> dict[Edge, list[Point]]:
        """What passes a layer has one piece before it and one behind."""
        after = {a: b for a, b in self._pieces if a >= len(self._names)}
        ways = {}
        for begin, at in self._pieces:
            if begin >= len(self._names) or at < len(self._names):
                continue
            points = []
            while at >= len(self._names):
                points.append(centres[at])
                at = after[at]
            ways[self._names[begin], self._names[at]] = points
        return ways


def _apart(wanted: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """Centres in this order, a gap between neighbours, least squares away from those that are wanted:
    neighbours that would overlap move as one (isotonic regression, by pooling).
    """
    offsets = [0.0]
    for a, b in pairwise(widths):
        offsets.append(offsets[-1] + (a + b) / 2 + gap)
    pools: list[tuple[float, int]] = []  # sum of where their first would be, how many
    for place, offset in zip(wanted, offsets, strict=True):
        total, count = place - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, many = pools.pop()
            total, count = total + before, count + many
        pools.append((total, count))
    firsts = [total / count for total, count in pools for _ in range(count)]
    return [first + offset for first, offset in zip(firsts, offsets, strict=True)]


def _side_by_side(parts: Sequence[Drawing], gap: float, far: frozenset[Edge]) -> Drawing:
    centres: dict[str, Point] = {}
    ways: dict[Edge, list[Point]] = {}
    left = 0.0
    for part in parts:
        centres |= {name: (x + left, y) for name, (x, y) in part.centres.items()}
        ways |= {edge: [(x + left, y) for x, y in points] for edge, points in part.ways.items()}
        left += part.width + gap
    return Drawing(centres, ways, far, max(0.0, left - gap), max((p.height for p in parts), default=0.0))
