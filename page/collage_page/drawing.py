"""A placement as elements of Cytoscape.js, each in its place.

https://js.cytoscape.org/#notation/elements-json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collage_core.report.conclusion import ms_text
from collage_core.report.dataflow import Hop, hops
from collage_core.report.dot import where, width_of
from collage_core.report.movement import quantity
from collage_core.report.step_costs import took_ms
from collage_page.layout import Drawing, Point, layered

__all__ = ["graph"]

_OPERATOR = (104.0, 26.0)
_END = (104.0, 22.0)
_CONVERSION = (84.0, 22.0)
_PADDING = 12.0
_LABEL = 16.0
_GAP = 26.0
_CHARACTER = 6.4
"""The width of one in a label, or a little more."""


def graph(
    report: Mapping[str, Any],
    colours: Mapping[str, str],
    longest_ms: float = 0.0,
    moved: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """`elements`, between (0, 0) and (`width`, `height`): groups with their operators, conversions, the
    model's inputs and outputs, and what flows between them.

    colours: by backend. longest_ms: of the group that is drawn hottest. moved: names of operators that
    another placement has elsewhere.
    """
    drawn = _Elements(report, colours, longest_ms, moved)
    return {"elements": list(drawn.all()), "width": drawn.outer.width, "height": drawn.outer.height}


class _Elements:
    def __init__(
        self, report: Mapping[str, Any], colours: Mapping[str, str], longest_ms: float, moved: frozenset[str]
    ) -> None:
        self._report, self._colours, self._longest_ms, self._moved = report, colours, longest_ms, moved
        self._operators: Sequence[Mapping[str, Any]] = report["dataflow"]["operators"]
        self._hops = list(hops(report))
        self._within = self._inner()
        self.outer = self._outline()

    def all(self) -> Iterator[dict[str, Any]]:
        yield from self._groups()
        yield from self._nodes()
        for i, hop in enumerate(self._hops):
            yield self._edge(f"e{i}", hop)

    def _box(self, node: str) -> str:
        """Id of what a node lies in: its group, or itself."""
        is_operator = node[0] == "n" and node[1:].isdigit()
        return f"g{self._operators[int(node[1:])]['group']}" if is_operator else node

    def _inner(self) -> dict[str, Drawing]:
        """How each group's operators lie within it."""
        members: dict[str, dict[str, tuple[float, float]]] = {}
        for i in range(len(self._operators)):
            members.setdefault(self._box(f"n{i}"), {})[f"n{i}"] = _OPERATOR
        edges: dict[str, list[tuple[str, str]]] = {}
        for hop in self._hops:
            if hop.kind == "within":
                edges.setdefault(self._box(hop.source), []).append((hop.source, hop.target))
        return {group: layered(boxes, edges.get(group, ()), _GAP) for group, boxes in members.items()}

    def _outline(self) -> Drawing:
        """How groups, conversions and the model's ends lie beside each other."""
        boxes = {
            group: (d.width + 2 * _PADDING, d.height + 2 * _PADDING + _LABEL)
            for group, d in self._within.items()
        }
        boxes |= {f"c{i}": _CONVERSION for i in range(len(self._report["conversions"]))}
        boxes |= {node: _END for hop in self._hops for node in (hop.source, hop.target) if " " in node}
        return layered(boxes, [(self._box(h.source), self._box(h.target)) for h in self._hops], _GAP)

    def _at(self, node: str) -> Point:
        box = self._box(node)
        x, y = self.outer.centres[box]
        if box == node:
            return x, y
        within = self._within[box]
        inner_x, inner_y = within.centres[node]
        return x - within.width / 2 + inner_x, y - within.height / 2 + _LABEL / 2 + inner_y

    def _groups(self) -> Iterator[dict[str, Any]]:
        for i, g in enumerate(self._report["groups"]):
            if f"g{i}" not in self._within:
                continue
            ms, within, (x, y) = took_ms(g), self._within[f"g{i}"], self.outer.centres[f"g{i}"]
            width = within.width + 2 * _PADDING
            label = f"{i} {ms_text(ms)} ms {where(self._report, g)}"
            yield {
                "data": {
                    "id": f"g{i}",
                    "kind": "group",
                    "group": i,
                    "label": _short(label, width),
                    "colour": self._colours[g["backend"]],
                    "width": width,
                    "height": within.height + 2 * _PADDING + _LABEL,
                    "heat": min(1.0, (ms or 0.0) / self._longest_ms) if self._longest_ms else 0.0,
                    "border": "solid" if g["device"] == self._report.get("device", g["device"]) else "dashed",
                },
                "position": {"x": round(x, 1), "y": round(y, 1)},
            }

    def _nodes(self) -> Iterator[dict[str, Any]]:
        for i, operator in enumerate(self._operators):
            data = {
                "kind": "operator",
                "group": operator["group"],
                "label": _short(operator["op"], _OPERATOR[0]),
            }
            data |= {"moved": operator["name"] in self._moved}
            yield self._node(f"n{i}", {**data, "name": operator["name"], "op": operator["op"]})
        for i, c in enumerate(self._report["conversions"]):
            data = {"kind": "conversion", "conversion": i, "label": f"{ms_text(took_ms(c))} ms"}
            yield self._node(f"c{i}", {**data, "name": c["value"], "colour": self._colours[c["backend"]]})
        for node in self.outer.centres:
            if " " in node:
                value = node.partition(" ")[2]
                yield self._node(node, {"kind": "end", "label": _short(value, _END[0]), "name": value})

    def _node(self, id: str, data: Mapping[str, Any]) -> dict[str, Any]:
        x, y = self._at(id)
        return {"data": {"id": id, **data}, "position": {"x": round(x, 1), "y": round(y, 1)}}

    def _edge(self, id: str, hop: Hop) -> dict[str, Any]:
        size = "" if hop.bytes is None else f", {quantity(hop.bytes, 'B')} as {hop.format}"
        data = {
            "id": id,
            "source": hop.source,
            "target": hop.target,
            "value": hop.value,
            "label": f"{hop.value}: {hop.type}{size}",
            "width": width_of(hop.bytes),
            "kind": hop.kind,
        }
        return {"data": data | self._bends(hop.source, hop.target)}

    def _bends(self, a: str, b: str) -> dict[str, Any]:
        """The points that an edge passes, as Cytoscape wants them: shares of the line from node to node, and
        distances from it. Those that are left out of the layout go straight, wherever that leads.
        """
        box_a, box_b = self._box(a), self._box(b)
        if box_a == box_b:
            within, (x, y) = self._within[box_a], self.outer.centres[box_a]
            left, top = x - within.width / 2, y - within.height / 2 + _LABEL / 2
            points = [(left + px, top + py) for px, py in within.ways.get((a, b), ())]
            is_far = (a, b) in within.far
        else:
            points = self.outer.ways.get((box_a, box_b), [])
            is_far = (box_a, box_b) in self.outer.far
        (ax, ay), (bx, by) = self._at(a), self._at(b)
        dx, dy = bx - ax, by - ay
        square = dx * dx + dy * dy
        if is_far:
            return {"far": True}
        if not points or not square:
            return {}
        length = square**0.5
        weights = [round(((x - ax) * dx + (y - ay) * dy) / square, 4) for x, y in points]
        distances = [round(((y - ay) * dx - (x - ax) * dy) / length, 1) for x, y in points]
        return {"weights": weights, "distances": distances}


def _short(text: str, width: float) -> str:
    """As much as has room."""
    most = int(width / _CHARACTER)
    return text if len(text) <= most else text[: most - 1] + "…"
