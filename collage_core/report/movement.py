"""What flows through a placement, for reading: `report/dataflow.py` as text and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collage_core.counted import counted
from collage_core.report.conclusion import ms_text
from collage_core.report.step_costs import took_ms
from collage_core.report.tables import Table

__all__ = ["dataflow_parts", "peaks_text", "quantity", "reached"]

_MOST = 10


def quantity(number: float | None, unit: str) -> str:
    """With three digits, in thousands, millions or billions of the unit."""
    if number is None:
        return "-"
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def dataflow_parts(report: Mapping[str, Any]) -> list[str | Table]:
    """The groups that take longest beside what they could do, and what moves."""
    flow, groups = report["dataflow"], report["groups"]
    parts: list[str | Table] = []
    timed = [i for i, g in enumerate(groups) if took_ms(g)]
    timed.sort(key=lambda i: -(took_ms(groups[i]) or 0.0))
    if timed:
        rows = [_row(i, groups[i], flow["groups"][i]) for i in timed[:_MOST]]
        header = ("#", "backend", "ms", "arithmetic", "moves", *_REACHED, "at peaks", "limit")
        right = [0, *range(2, len(header) - 1)]
        title = "the longest groups, and what they would take at this machine's peaks, ms"
        parts.append(Table(header, rows, right, title=title))
    parts.append("\n".join(_movement(flow)))
    if flow["largest"]:
        rows = [_largest(value, groups) for value in flow["largest"]]
        title = "the largest values that leave their group"
        parts.append(Table(("value", "bytes", "from", "to", "conversions"), rows, right=[1, 4], title=title))
    return parts


_REACHED = ("FLOP/s", "B/s", "FLOP/B")


def reached(group: Mapping[str, Any], work: Mapping[str, Any]) -> tuple[str, str, str]:
    """Of a group of a report and its `work` in the dataflow: FLOP and bytes per second, FLOP per byte."""
    ms, flops, size = took_ms(group), work["flops"], work["bytes"]
    return (
        quantity(flops / ms * 1e3 if ms and flops is not None else None, "FLOP/s"),
        quantity(size / ms * 1e3 if ms else None, "B/s"),
        "-" if flops is None or not size else f"{flops / size:.3g}",
    )


def peaks_text(peaks: Mapping[str, Any]) -> str:
    """What groups are held against."""
    gflops, gb_per_s = peaks["gflops"], peaks["memory_gb_per_s"]
    *caches, _ = sorted((int(size), rate) for size, rate in peaks["copy_gb_per_s"].items())
    within = "".join(f", {rate:.0f} GB/s within {quantity(size, 'B')}" for size, rate in caches)
    return (
        f"the machine that this was measured on: {gflops:.0f} GFLOP/s in float32, "
        f"{gb_per_s:.0f} GB/s from memory{within}; below {gflops / gb_per_s:.1f} FLOP per byte memory limits"
    )


def _row(index: int, group: Mapping[str, Any], work: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(index),
        group["backend"],
        ms_text(took_ms(group)),
        quantity(work["flops"], "FLOP"),
        quantity(work["bytes"], "B"),
        *reached(group, work),
        ms_text(work["at_peaks_ms"]),
        work["limit"] or "-",
    )


def _movement(flow: Mapping[str, Any]) -> Iterator[str]:
    moved = flow["bytes"]
    yield (
        f"moved: {quantity(moved['groups'], 'B')} by groups and {quantity(moved['conversions'], 'B')} "
        f"by conversions, read and written; {quantity(moved['transfers'], 'B')} by transfers"
    )
    if every := sum(moved.values()):
        unknown = sum(g["flops"] is None for g in flow["groups"])
        least = f" at least: of {counted(unknown, 'group')} it is not known" if unknown else ""
        yield f"arithmetic intensity: {flow['flops'] / every:.1f} FLOP per byte moved{least}"
    if flow["peaks"] is not None:
        yield peaks_text(flow["peaks"])


def _largest(value: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    def named(index: int | None, end: str) -> str:
        return end if index is None else f"{index} {groups[index]['backend']}"

    readers = ", ".join(named(i, "the model's outputs") for i in value["to"])
    where = named(value["from"], "the model's inputs")
    return value["value"], quantity(value["bytes"], "B"), where, readers, str(len(value["conversions"]) or "")
