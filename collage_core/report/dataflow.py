"""What flows between the operators of a placement, and what its groups do with it, as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from collage_core.backend import rounded_to
from collage_core.costs.roofline import Peaks, Work, flops_of, peaks_of, shows_peaks, work_of
from collage_core.formats import Format
from collage_core.ir import Graph, Node, Subgraph
from collage_core.placement import VIEW, Group, Placement
from collage_core.report.step_costs import took_ms

__all__ = ["Hop", "dataflow_json", "hops", "peaks_json"]

_MOST = 10


def peaks_json(peaks: Peaks) -> dict[str, Any]:
    """gflops: in float32. memory_gb_per_s and copy_gb_per_s: of copies, read and written; the latter by the
    bytes that lie in a cache.
    """
    copies = peaks.copy_gb_per_s
    return {
        "gflops": peaks.gflops,
        "memory_gb_per_s": copies[max(copies)],
        "copy_gb_per_s": {str(size): rate for size, rate in copies.items()},
    }


def dataflow_json(graph: Graph, placement: Placement, report: Mapping[str, Any]) -> dict[str, Any]:
    """report: what is told of the placement so far, with its `groups`, and `peaks` where they were measured.

    - operators: in the graph's order, with the index of their group.
    - transfers: indices of the conversions that bring a value to another device.
    - edges: each value, as an operator gets it from another. `from` and `to` are indices of operators, None
      for the model's inputs and outputs. `conversions`: those on its way, in order. `moved`: the format and
      the bytes before the first of them and behind each; empty within a group.
    - groups: `flops`, None where not all of them can be counted, and `bytes`. What the peaks allow:
      `at_peaks_ms`, and whether `arithmetic` or `memory` limits it; None on other devices than the target's.
    - peaks: those; or what groups reach, where that is more.
    - flops: of the groups where they are known; bytes: of all groups, conversions and transfers.
    - largest: of the values that leave their group for one that reads them, with those groups.
    """
    flow = _Flow(graph, placement)
    parts = [Subgraph(graph, g.nodes) for g in placement.groups]
    counted = [_counted(g, part) for g, part in zip(placement.groups, parts, strict=True)]
    here = placement.target.device
    peaks = _peaks(report, placement, parts, counted)
    groups = [
        _group(*of, peaks if g.variant.device == here else None)
        for g, of in zip(placement.groups, counted, strict=True)
    ]
    moved = {"groups": sum(g["bytes"] for g in groups), "conversions": 0, "transfers": 0}
    transfers = []
    for i, c in enumerate(placement.conversions):
        shape = graph.shape_of(c.value)
        if c.source.device != c.destination.device:
            transfers.append(i)
            moved["transfers"] += c.source.size_bytes(shape)  # what passes the link, once
        else:
            moved["conversions"] += c.source.size_bytes(shape) + c.destination.size_bytes(shape)
    return {
        "operators": [{"name": n.name, "op": n.op_type, "group": flow.group_of[n.id]} for n in graph.nodes],
        "transfers": transfers,
        "edges": list(flow.edges()),
        "groups": groups,
        "peaks": None if peaks is None else peaks_json(peaks),
        "flops": sum(g["flops"] or 0 for g in groups),
        "bytes": moved,
        "largest": flow.largest(),
    }


class Hop(NamedTuple):
    """A value on one piece of its way, between nodes of a drawing.

    source, target: `n3` for the operator of that index, `c3` for a conversion, `in NAME` and `out NAME` for
    the model's ends. kind: `within` a group, where bytes and format are None; `moved`; next to a conversion
    `converted`, or `transfer`.
    """

    source: str
    target: str
    value: str
    type: str
    format: str | None
    bytes: int | None
    kind: str


def hops(report: Mapping[str, Any]) -> Iterator[Hop]:
    """What a drawing has to show of a report with its `dataflow`. A value goes to each conversion once,
    however many read it after that.
    """
    told = set()
    transfers = frozenset(report["dataflow"]["transfers"])
    for edge in report["dataflow"]["edges"]:
        value = edge["value"]
        way = [
            f"in {value}" if edge["from"] is None else f"n{edge['from']}",
            *(f"c{i}" for i in edge["conversions"]),
            f"out {value}" if edge["to"] is None else f"n{edge['to']}",
        ]
        moved = edge["moved"] or [{"format": None, "bytes": None}]
        for (source, target), piece in zip(pairwise(way), moved, strict=True):
            if (source, target, value) not in told:
                told.add((source, target, value))
                kind = _kind(transfers, source, target) if edge["moved"] else "within"
                yield Hop(source, target, value, edge["type"], piece["format"], piece["bytes"], kind)


def _kind(transfers: frozenset[int], *ends: str) -> str:
    passed = {int(end[1:]) for end in ends if end[0] == "c"}
    if passed & transfers:
        return "transfer"
    return "converted" if passed else "moved"


_Counted = tuple[int | None, int]
"""FLOPs, None where not all of them can be counted, and bytes."""


def _counted(group: Group, part: Subgraph) -> _Counted:
    if group.backend == VIEW:
        return 0, 0
    values = (v for n in part.nodes for v in (*n.inputs, *n.outputs) if v)
    if not all(part.graph.type_of(v).is_static for v in values):
        return None, 0
    return flops_of(part), work_of(part, group.variant).bytes


def _group(flops: int | None, bytes: int, peaks: Peaks | None) -> dict[str, Any]:
    at_peaks_ms, limit = None, None
    if peaks is not None:
        work = Work(flops or 0, bytes)
        at_peaks_ms = peaks.least_ms(work)
        if at_peaks_ms and flops is not None:
            limit = "memory" if peaks.memory_ms(work) == at_peaks_ms else "arithmetic"
    return {"flops": flops, "bytes": bytes, "at_peaks_ms": at_peaks_ms, "limit": limit}


def _peaks(
    report: Mapping[str, Any], placement: Placement, parts: Sequence[Subgraph], counted: Sequence[_Counted]
) -> Peaks | None:
    told = report.get("peaks")
    if told is None:
        return None
    showing = []
    of_groups = zip(report["groups"], placement.groups, parts, counted, strict=True)
    for g, group, part, (flops, bytes) in of_groups:
        ms = took_ms(g)
        is_here = group.variant.device == placement.target.device
        if ms and is_here and shows_peaks(part) and not rounded_to(part, group.variant):
            showing.append((Work(flops or 0, bytes), ms))
    return peaks_of(told).raised(showing)


class _Flow:
    """Who makes each value, in which format, and by way of which conversions others get it."""

    def __init__(self, graph: Graph, placement: Placement) -> None:
        self._graph, self._groups = graph, placement.groups
        self.group_of = {n: i for i, g in enumerate(placement.groups) for n in g.nodes}
        self._position = {n.id: i for i, n in enumerate(graph.nodes)}
        self._made: dict[str, Format] = {}
        self._read: dict[tuple[int, str], Format] = {}
        for i, g in enumerate(placement.groups):
            part = Subgraph(graph, g.nodes)
            self._made |= dict(zip(part.outputs, g.variant.outputs, strict=True))
            self._read |= {(i, v): f for v, f in zip(part.inputs, g.variant.inputs, strict=True)}
        self._conversions = {(c.value, str(c.destination)): i for i, c in enumerate(placement.conversions)}
        self._ends = [(c.source, c.destination) for c in placement.conversions]

    def edges(self) -> Iterator[dict[str, Any]]:
        for value, producer, reader in self._readings():
            formats, way = self._way(value, producer, reader)
            yield {
                "value": value,
                "type": str(self._graph.type_of(value)),
                "from": None if producer is None else self._position[producer.id],
                "to": None if reader is None else self._position[reader.id],
                "conversions": way,
                "moved": [{"format": str(f), "bytes": self._bytes(value, f)} for f in formats],
            }

    def largest(self) -> list[dict[str, Any]]:
        """Once each, with the groups that get it (None: the model's outputs). A view moves nothing."""
        found: dict[str, dict[str, Any]] = {}
        for value, producer, reader in self._readings():
            target = self._group(reader)
            formats, way = self._way(value, producer, reader)
            if not formats or (target is not None and self._groups[target].backend == VIEW):
                continue
            told = found.setdefault(
                value,
                {"value": value, "bytes": 0, "from": self._group(producer), "to": [], "conversions": []},
            )
            told["bytes"] = max(told["bytes"], *(self._bytes(value, f) for f in formats))
            told["to"] += [target] if target not in told["to"] else []
            told["conversions"] += [i for i in way if i not in told["conversions"]]
        return sorted(found.values(), key=lambda v: (-v["bytes"], v["value"]))[:_MOST]

    def _bytes(self, value: str, format: Format) -> int:
        return format.size_bytes(self._graph.shape_of(value))

    def _group(self, node: Node | None) -> int | None:
        return None if node is None else self.group_of[node.id]

    def _readings(self) -> Iterator[tuple[str, Node | None, Node | None]]:
        """Each value that is no constant, with who makes it (None: the model's inputs) and one who reads it
        (None: the model's outputs).
        """
        readings: list[tuple[Node | None, tuple[str, ...]]] = [(n, n.inputs) for n in self._graph.nodes]
        for reader, values in [*readings, (None, tuple(self._graph.outputs))]:
            for value in dict.fromkeys(filter(None, values)):
                if not self._graph.is_constant(value):
                    yield value, self._graph.producer(value), reader

    def _way(self, value: str, producer: Node | None, reader: Node | None) -> tuple[list[Format], list[int]]:
        """In which formats a value passes from one to the other, and by way of which conversions: none within
        a group, where a kernel keeps it as it likes.
        """
        target = self._group(reader)
        if producer is not None and self._group(producer) == target:
            return [], []
        made = self._made.get(value) or self._graph.plain_format(value)
        at = self._graph.plain_format(value) if target is None else self._read.get((target, value), made)
        way: list[int] = []
        while at != made:
            step = self._conversions.get((value, str(at)))
            if step is None or step in way:  # of a placement that was edited by hand
                break
            way.insert(0, step)
            at = self._ends[step][0]
        return [at, *(self._ends[step][1] for step in way)], way
