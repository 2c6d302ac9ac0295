"""Two bundles of one model side by side: what moved from one to the other, and what each took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collage_core.report.conclusion import ms_text
from collage_core.report.dot import where
from collage_core.report.step_costs import predicted_ms, took_ms
from collage_core.report.tables import Table

__all__ = ["beside_json", "beside_parts"]


def beside_json(report: Mapping[str, Any], other: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Both with their `dataflow`; name: of the other. Operators are the same where their names are.

    - moved: nodes whose group differs there in `what`: its backend, device, formats, or nodes. Those that
      went together stand together, with what their groups take.
    - is_same_model: whether operators, and the values between them, are the same in both.
    - only_here, only_there: names that the other does not have.
    - totals: what each took when it was made, was predicted to take, and converts.
    """
    here, there = _groups_by_name(report), _groups_by_name(other)
    together: dict[tuple[int, int], list[str]] = {}
    for node, group in here.items():
        if node in there:
            together.setdefault((group, there[node]), []).append(node)
    moved = []
    for (group, before), nodes in together.items():
        ours, theirs = report["groups"][group], other["groups"][before]
        if what := _differences(ours, theirs):
            told = {"here": _place(report, group), "there": _place(other, before)}
            moved.append({"nodes": nodes, "what": what, **told})
    return {
        "other": name,
        "is_same_model": _model(report) == _model(other),
        "totals": {"here": _totals(report), "there": _totals(other)},
        "moved": moved,
        "only_here": [n for n in here if n not in there],
        "only_there": [n for n in there if n not in here],
    }


def beside_parts(beside: Mapping[str, Any]) -> list[str | Table]:
    """The same for reading."""
    parts: list[str | Table] = ["\n".join(_lines(beside))]
    if moved := beside["moved"]:
        rows = [
            (
                ", ".join(m["nodes"]),
                ", ".join(m["what"]),
                *(text for side in ("there", "here") for text in (m[side]["where"], ms_text(m[side]["ms"]))),
            )
            for m in moved
        ]
        header = ("nodes", "other", "there: group", "ms", "here: group", "ms")
        parts.append(Table(header, rows, right=[3, 5], title="what moved, and what its groups take"))
    return parts


def _lines(beside: Mapping[str, Any]) -> Iterator[str]:
    here, there = beside["totals"]["here"], beside["totals"]["there"]
    count = sum(len(m["nodes"]) for m in beside["moved"])
    if not beside["is_same_model"]:
        yield f"{beside['other']} is of another model: times do not compare"
    yield f"beside {beside['other']}: {count or 'no'} node{'s' * (count != 1)} moved"
    for key, side in (("only_here", "here"), ("only_there", "there")):
        if names := beside[key]:
            yield f"{len(names)} only {side}, {names[0]} first"
    for what in ("measured_ms", "predicted_ms"):
        told = f"{what.removesuffix('_ms')}: {ms_text(there[what])} ms there, {ms_text(here[what])} ms here"
        if there[what] and here[what] and beside["is_same_model"]:
            told += f" ({there[what] / here[what]:.3f} times as fast)"
        yield told
    yield (
        f"conversions: {there['conversions']} there, {ms_text(there['conversions_ms'])} ms; "
        f"{here['conversions']} here, {ms_text(here['conversions_ms'])} ms"
    )
    if there["measured_ms"] and here["measured_ms"]:
        yield "each was measured when it was made; `collage check` compares on the machine as it is now"


def _model(report: Mapping[str, Any]) -> list[object]:
    flow = report["dataflow"]
    operators = [(o["name"], o["op"]) for o in flow["operators"]]
    return [operators, [tuple(e[k] for k in ("value", "type", "from", "to")) for e in flow["edges"]]]


def _groups_by_name(report: Mapping[str, Any]) -> dict[str, int]:
    return {operator["name"]: operator["group"] for operator in report["dataflow"]["operators"]}


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return [what for what in ("backend", "device", "formats", "nodes") if ours[what] != theirs[what]]


def _place(report: Mapping[str, Any], index: int) -> dict[str, Any]:
    group = report["groups"][index]
    return {"group": index, "where": f"{index} {where(report, group)}", "ms": took_ms(group)}


def _totals(report: Mapping[str, Any]) -> dict[str, float | None]:
    ours = (report.get("contenders") or {}).get("collage") or {}
    conversions: Sequence[Mapping[str, Any]] = report["conversions"]
    return {
        "measured_ms": ours.get("median_ms"),
        "predicted_ms": report.get("predicted_ms"),
        "conversions": len(conversions),
        "conversions_ms": sum(predicted_ms(c) or 0.0 for c in conversions),
    }
