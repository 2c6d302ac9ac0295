"""Two bundles of one model side by side: what moved from one to the other, and what each took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from collage_core.report.conclusion import ms_text
from collage_core.report.dataflow import took_ms
from collage_core.report.tables import Table

__all__ = ["beside_json", "beside_parts"]


def beside_json(report: Mapping[str, Any], other: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Both with their `dataflow`; name: of the other. Operators are the same where their names are.

    moved: operators that another backend runs there, with what their groups take in both. regrouped: how many
    the same backend runs beside other operators. only_here, only_there: names that the other does not have.
    ms: what each took, when it was confirmed, and was predicted to take.
    """
    here, there = _operators(report), _operators(other)
    both = [name for name in here if name in there]
    moved = [
        {
            "node": name,
            "op": here[name]["op"],
            "here": _place(report, here[name]),
            "there": _place(other, there[name]),
        }
        for name in both
        if _backend(report, here[name]) != _backend(other, there[name])
    ]
    names = {m["node"] for m in moved}
    regrouped = [
        n for n in both if n not in names and _companions(report, here[n]) != _companions(other, there[n])
    ]
    return {
        "other": name,
        "ms": {"here": _ms(report), "there": _ms(other)},
        "moved": moved,
        "regrouped": len(regrouped),
        "only_here": [n for n in here if n not in there],
        "only_there": [n for n in there if n not in here],
    }


def beside_parts(beside: Mapping[str, Any]) -> list[str | Table]:
    """The same for reading."""
    parts: list[str | Table] = ["\n".join(_lines(beside))]
    if moved := beside["moved"]:
        rows = [
            (
                m["node"],
                m["op"],
                f"{m['there']['group']} {m['there']['backend']}",
                ms_text(m["there"]["ms"]),
                f"{m['here']['group']} {m['here']['backend']}",
                ms_text(m["here"]["ms"]),
            )
            for m in moved
        ]
        header = ("node", "operator", "there: group", "ms", "here: group", "ms")
        parts.append(Table(header, rows, right=[3, 5], title="what moved, and what its groups take"))
    return parts


def _lines(beside: Mapping[str, Any]) -> Iterator[str]:
    here, there = beside["ms"]["here"], beside["ms"]["there"]
    yield f"beside {beside['other']}: {len(beside['moved'])} nodes moved, {beside['regrouped']} regrouped"
    for key, where in (("only_here", "here"), ("only_there", "there")):
        if beside[key]:
            yield f"{len(beside[key])} nodes are {where} only, {beside[key][0]} first"
    for what in ("measured", "predicted"):
        told = f"{what}: {ms_text(there[what])} ms there, {ms_text(here[what])} ms here"
        if there[what] and here[what]:
            told += f" ({there[what] / here[what]:.3f} times as fast)"
        yield told
    if there["measured"] and here["measured"]:
        yield "each was measured when it was made; `collage check` compares on the machine as it is now"


def _operators(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {operator["name"]: operator for operator in report["dataflow"]["operators"]}


def _backend(report: Mapping[str, Any], operator: Mapping[str, Any]) -> str:
    backend: str = report["groups"][operator["group"]]["backend"]
    return backend


def _place(report: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    group = report["groups"][operator["group"]]
    return {"group": operator["group"], "backend": group["backend"], "ms": took_ms(group)}


def _companions(report: Mapping[str, Any], operator: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(report["groups"][operator["group"]]["nodes"])


def _ms(report: Mapping[str, Any]) -> dict[str, float | None]:
    ours = (report.get("contenders") or {}).get("collage") or {}
    return {"measured": ours.get("median_ms"), "predicted": report.get("predicted_ms")}
