"""A placement as elements of Cytoscape.js, each in its place.

https://js.cytoscape.org/#notation/elements-json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log2
from typing import Any

from collage_core.report.conclusion import ms_text
from collage_core.report.dataflow import took_ms
from collage_core.report.dot import colours_of
from collage_page.layout import Drawing, Point, layered

__all__ = ["elements"]

_OPERATOR = (104.0, 26.0)
_END = (104.0, 22.0)
_CONVERSION = (84.0, 22.0)
_PADDING = 12.0
_LABEL = 16.0
_GAP = 26.0
_LONGEST_LABEL = 15


def elements(report: Mapping[str, Any], moved: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Groups with their operators, conversions, the model's inputs and outputs, and what flows between them.
    moved: names of operators that another placement has elsewhere.
    """
    return list(_Elements(report, moved).all())


class _Elements:
    def __init__(self, report: Mapping[str, Any], moved: frozenset[str]) -> None:
        self._report, self._moved = report, moved
        flow = report["dataflow"]
        self._operators: Sequence[Mapping[str, Any]] = flow["operators"]
        self._edges: Sequence[Mapping[str, Any]] = flow["edges"]
        self._paths = [self._path(edge) for edge in self._edges]
        self._within = self._inner()
        self._outer = self._outline()

    def all(self) -> Iterator[dict[str, Any]]:
        yield from self._groups()
        yield from self._nodes()
        yield from self._flows()

    def _path(self, edge: Mapping[str, Any]) -> list[str]:
        """Ids of the nodes that a value passes, from who makes it to who reads it."""
        begin = f"in {edge['value']}" if edge["from"] is None else f"n{edge['from']}"
        end = f"out {edge['value']}" if edge["to"] is None else f"n{edge['to']}"
        return [begin, *(f"c{i}" for i in edge["conversions"]), end]

    def _box(self, node: str) -> str:
        """Id of what a node lies in: its group, or itself."""
        return f"g{self._operators[int(node[1:])]['group']}" if self._is_operator(node) else node

    @staticmethod
    def _is_operator(node: str) -> bool:
        return node[0] == "n" and node[1:].isdigit()

    def _inner(self) -> dict[str, Drawing]:
        """How each group's operators lie within it."""
        members: dict[str, dict[str, tuple[float, float]]] = {}
        for i in range(len(self._operators)):
            members.setdefault(self._box(f"n{i}"), {})[f"n{i}"] = _OPERATOR
        edges: dict[str, list[tuple[str, str]]] = {}
        for path in self._paths:
            if len(path) == 2 and self._box(path[0]) == self._box(path[1]):
                edges.setdefault(self._box(path[0]), []).append((path[0], path[1]))
        return {group: layered(boxes, edges.get(group, ()), _GAP) for group, boxes in members.items()}

    def _outline(self) -> Drawing:
        """How groups, conversions and the model's ends lie beside each other."""
        boxes = {
            group: (d.width + 2 * _PADDING, d.height + 2 * _PADDING + _LABEL)
            for group, d in self._within.items()
        }
        boxes |= {f"c{i}": _CONVERSION for i in range(len(self._report["conversions"]))}
        boxes |= {node: _END for path in self._paths for node in path if node not in boxes and " " in node}
        links = [(self._box(a), self._box(b)) for path in self._paths for a, b in pairwise(path)]
        return layered(boxes, links, _GAP)

    def _at(self, node: str) -> Point:
        box = self._box(node)
        x, y = self._outer.centres[box]
        if box == node:
            return x, y
        within = self._within[box]
        inner_x, inner_y = within.centres[node]
        return x - within.width / 2 + inner_x, y - within.height / 2 + _LABEL / 2 + inner_y

    def _groups(self) -> Iterator[dict[str, Any]]:
        colours = colours_of(self._report)
        taken = [took_ms(g) or 0.0 for g in self._report["groups"]]
        longest = max(taken, default=0.0)
        for i, g in enumerate(self._report["groups"]):
            if f"g{i}" in self._within:
                yield {
                    "data": {
                        "id": f"g{i}",
                        "kind": "group",
                        "group": i,
                        "label": f"{i} {g['backend']} {ms_text(took_ms(g))} ms",
                        "colour": colours[g["backend"]],
                        "heat": taken[i] / longest if longest else 0.0,
                        "border": "solid" if g["device"] == self._report.get("device", "cpu") else "dashed",
                    }
                }

    def _nodes(self) -> Iterator[dict[str, Any]]:
        for i, operator in enumerate(self._operators):
            data = {"kind": "operator", "group": operator["group"], "label": _short(operator["op"])}
            data |= {"parent": f"g{operator['group']}", "moved": operator["name"] in self._moved}
            yield self._node(f"n{i}", {**data, "name": operator["name"]})
        colours = colours_of(self._report)
        for i, c in enumerate(self._report["conversions"]):
            data = {"kind": "conversion", "conversion": i, "label": f"{ms_text(c['cost_ms'])} ms"}
            yield self._node(f"c{i}", {**data, "name": c["value"], "colour": colours[c["backend"]]})
        for node in self._outer.centres:
            if " " in node:
                value = node.partition(" ")[2]
                yield self._node(node, {"kind": "end", "label": _short(value), "name": value})

    def _node(self, id: str, data: Mapping[str, Any]) -> dict[str, Any]:
        x, y = self._at(id)
        return {"data": {"id": id, **data}, "position": {"x": round(x, 1), "y": round(y, 1)}}

    def _flows(self) -> Iterator[dict[str, Any]]:
        """A value goes once to each conversion, however many read it after that."""
        told = set()
        for edge, path in zip(self._edges, self._paths, strict=True):
            for a, b in pairwise(path):
                if (a, b, edge["value"]) in told:
                    continue
                told.add((a, b, edge["value"]))
                size = f"{edge['bytes'] / 1e6:.3f} MB"
                data = {
                    "id": f"e{len(told)}",
                    "source": a,
                    "target": b,
                    "value": edge["value"],
                    "label": f"{edge['value']}: {edge['type']}, {size}",
                    "width": _width(edge["bytes"]),
                    "kind": "within" if self._box(a) == self._box(b) else "between",
                    **self._bends(a, b),
                }
                if len(path) > 2:
                    data["kind"] = self._kind_of(edge["conversions"])
                yield {"data": data}

    def _kind_of(self, conversions: Sequence[int]) -> str:
        told = [self._report["conversions"][i] for i in conversions]
        return "transfer" if any(t in self._report.get("transfers", ()) for t in told) else "converted"

    def _bends(self, a: str, b: str) -> dict[str, Any]:
        """The points that an edge passes, as Cytoscape wants them: shares of the line from node to node, and
        distances from it.
        """
        box_a, box_b = self._box(a), self._box(b)
        if box_a == box_b:
            within, (x, y) = self._within[box_a], self._outer.centres[box_a]
            left, top = x - within.width / 2, y - within.height / 2 + _LABEL / 2
            points = [(left + px, top + py) for px, py in within.ways.get((a, b), ())]
        else:
            points = self._outer.ways.get((box_a, box_b), [])
        (ax, ay), (bx, by) = self._at(a), self._at(b)
        dx, dy = bx - ax, by - ay
        square = dx * dx + dy * dy
        if not points or not square:
            return {}
        length = square**0.5
        weights = [round(((x - ax) * dx + (y - ay) * dy) / square, 4) for x, y in points]
        distances = [round(((y - ay) * dx - (x - ax) * dy) / length, 1) for x, y in points]
        return {"weights": weights, "distances": distances}


def _width(size_bytes: int) -> float:
    """In pixels: one up to 64 KB, and half of one more for each time that it doubles."""
    return round(1 + max(0.0, log2(max(size_bytes, 1) / 2**16)) / 2, 2)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"
