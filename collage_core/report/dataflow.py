"""What flows between the operators of a placement, and what its groups do with it: JSON values and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collage_core.costs.roofline import Peaks, Work, work_of
from collage_core.formats import Format
from collage_core.ir import Graph, Node, Subgraph
from collage_core.placement import VIEW, Placement, is_transfer
from collage_core.report.conclusion import ms_text
from collage_core.report.tables import Table

__all__ = ["dataflow_json", "dataflow_parts", "peaks_json", "took_ms"]

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
    """report: what is told of the placement so far.

    operators: nodes in the graph's order, with the index of their group. edges: each value as one operator
    gets it from another, with `bytes` in the format in which it is read and the indices of the conversions on
    its way; `from` and `to` are indices of operators, None for the model's inputs and outputs. groups: in the
    placement's order, the arithmetic and the bytes of each, and the `least_ms` that `peaks` (`peaks_json`)
    allow, None where they are not known. flops, bytes: of all; what conversions and transfers read and write.
    largest: of the values that leave their group, with those who get them.
    """
    flow = _Flow(graph, placement)
    works = [
        Work(0, 0) if g.backend == VIEW else work_of(Subgraph(graph, g.nodes), g.variant)
        for g in placement.groups
    ]
    peaks = _peaks(report, works)
    groups = [
        {"flops": w.flops, "bytes": w.bytes, "least_ms": None if peaks is None else peaks.least_ms(w)}
        for w in works
    ]
    moved = {True: 0, False: 0}
    for c in placement.conversions:
        shape = graph.shape_of(c.value)
        moved[is_transfer(c.backend)] += c.source.size_bytes(shape) + c.destination.size_bytes(shape)
    return {
        "operators": [
            {"name": n.name, "op": n.qualified_op, "group": flow.group_of[n.id]} for n in graph.nodes
        ],
        "edges": list(flow.edges()),
        "groups": groups,
        "flops": sum(g["flops"] for g in groups),
        "bytes": {
            "groups": sum(g["bytes"] for g in groups),
            "conversions": moved[False],
            "transfers": moved[True],
        },
        "largest": flow.largest(),
    }


def _peaks(report: Mapping[str, Any], works: Sequence[Work]) -> Peaks | None:
    peaks = report.get("peaks")
    if peaks is None:
        return None
    copies = {int(size): rate for size, rate in peaks["copy_gb_per_s"].items()}
    taken = zip(works, map(took_ms, report["groups"]), strict=True)
    return Peaks(peaks["gflops"], copies).raised([(work, ms) for work, ms in taken if ms])


def took_ms(group: Mapping[str, Any]) -> float | None:
    """What a group of a report takes: in place where it has run there, else by itself."""
    in_place_ms: float | None = group.get("in_place_ms")
    return group["cost_ms"] if in_place_ms is None else in_place_ms


def dataflow_parts(report: Mapping[str, Any]) -> list[str | Table]:
    """The groups that take longest beside what they could do here, and what moves."""
    flow, groups = report["dataflow"], report["groups"]
    parts: list[str | Table] = []
    peaks = report.get("peaks")
    timed = [i for i, g in enumerate(groups) if took_ms(g)]
    timed.sort(key=lambda i: -(took_ms(groups[i]) or 0.0))
    if timed:
        rows = [_reached(i, groups[i], flow["groups"][i]) for i in timed[:_MOST]]
        header = ("#", "backend", "ms", "MFLOP", "MB", "GFLOP/s", "GB/s", "least ms", "of it")
        right = [0, *range(2, len(header))]
        parts.append(
            Table(header, rows, right, title="the longest groups, and the least that they could take")
        )
    parts.append("\n".join(_movement(flow, peaks)))
    if flow["largest"]:
        rows = [_largest(value, groups) for value in flow["largest"]]
        title = "the largest values that leave their group"
        parts.append(Table(("value", "MB", "from", "to", "conversions"), rows, right=[1, 4], title=title))
    return parts


def _reached(index: int, group: Mapping[str, Any], work: Mapping[str, Any]) -> tuple[str, ...]:
    ms = took_ms(group) or math.inf
    least_ms = work["least_ms"]
    return (
        str(index),
        group["backend"],
        ms_text(ms),
        f"{work['flops'] / 1e6:.2f}",
        f"{work['bytes'] / 1e6:.2f}",
        f"{work['flops'] / ms / 1e6:.1f}",
        f"{work['bytes'] / ms / 1e6:.1f}",
        ms_text(least_ms),
        "-" if least_ms is None else f"{least_ms / ms:.0%}",
    )


def _movement(flow: Mapping[str, Any], peaks: Mapping[str, Any] | None) -> Iterator[str]:
    moved = flow["bytes"]
    yield (
        f"moved: {moved['groups'] / 1e6:.1f} MB read and written by groups, "
        f"{moved['conversions'] / 1e6:.1f} by conversions, {moved['transfers'] / 1e6:.1f} by transfers"
    )
    every = sum(moved.values())
    if every:
        yield f"arithmetic intensity: {flow['flops'] / every:.1f} FLOP per byte moved"
    if peaks is not None:
        gflops, gb_per_s = peaks["gflops"], peaks["memory_gb_per_s"]
        yield (
            f"this machine: {gflops:.0f} GFLOP/s in float32, {gb_per_s:.0f} GB/s from memory; "
            f"below {gflops / gb_per_s:.1f} FLOP per byte memory is what limits"
        )


def _largest(value: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    def named(index: int | None, end: str) -> str:
        return end if index is None else f"{index} {groups[index]['backend']}"

    readers = ", ".join(named(i, "the model's outputs") for i in value["to"])
    where = named(value["from"], "the model's inputs")
    return value["value"], f"{value['bytes'] / 1e6:.3f}", where, readers, str(len(value["conversions"]) or "")


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
        self._sources = [c.source for c in placement.conversions]

    def edges(self) -> Iterator[dict[str, Any]]:
        for value, producer, reader in self._readings():
            type = self._graph.type_of(value)
            size, format, way = type.size_bytes, None, list[int]()
            if (target := self._group(reader)) != self._group(
                producer
            ):  # else a kernel keeps it where it likes
                read, way = self._way(value, target)
                size, format = read.size_bytes(type.static_shape), str(read)
            yield {
                "value": value,
                "type": str(type),
                "format": format,
                "bytes": size,
                "from": None if producer is None else self._position[producer.id],
                "to": None if reader is None else self._position[reader.id],
                "conversions": way,
            }

    def largest(self) -> list[dict[str, Any]]:
        """Once each, with the groups that get it (None: the model's outputs)."""
        found: dict[str, dict[str, Any]] = {}
        for value, producer, reader in self._readings():
            source, target = self._group(producer), self._group(reader)
            if source == target:
                continue
            read, way = self._way(value, target)
            told = found.setdefault(
                value, {"value": value, "bytes": 0, "from": source, "to": [], "conversions": []}
            )
            told["bytes"] = max(told["bytes"], read.size_bytes(self._graph.shape_of(value)))
            told["to"] += [target] if target not in told["to"] else []
            told["conversions"] += [i for i in way if i not in told["conversions"]]
        return sorted(found.values(), key=lambda v: (-v["bytes"], v["value"]))[:_MOST]

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

    def _way(self, value: str, target: int | None) -> tuple[Format, list[int]]:
        """The format in which a group gets a value, and the conversions to it, in order."""
        plain = self._graph.plain_format(value)
        made = self._made.get(value, plain)
        read = plain if target is None else self._read.get((target, value), made)
        way: list[int] = []
        at = read
        while (
            at != made and (step := self._conversions.get((value, str(at)))) is not None and step not in way
        ):
            way.append(step)
            at = self._sources[step]
        return read, way[::-1]
