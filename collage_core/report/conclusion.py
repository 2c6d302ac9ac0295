"""What `collage optimize` prints, from the JSON values of `summary`: who was measured, and in at most ten
lines what a person wants to know first. The rest is in `text.explain_text`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collage_run.printable import printable_line

from collage_core.costs.ratio import interval_text, ratio_text
from collage_core.counted import counted
from collage_core.pipeline.proof import single_label
from collage_core.placement import VIEW
from collage_core.report.constraints import prices_text
from collage_core.report.rounding import limit_text
from collage_core.report.tables import Table, headline

__all__ = [
    "contenders_table",
    "ms_text",
    "optimization_text",
    "proven_text",
    "speed_text",
    "standing_lines",
]

_MAX_REASON = 100

_TELLING = 2.0
"""A bound further below than by this factor says nothing."""


def optimization_text(report: Mapping[str, Any]) -> str:
    """The contenders, then at most ten lines, each only where there is something to say: who runs what; how
    fast, and how sure that is; what is not proven; what was checked; where the bundle is and what to do next.

    Of the bundle nothing is said where the report has no `output`: its file, or None where none is kept.
    """
    parts = [headline(report)]
    if contenders := report.get("contenders"):
        parts.append(str(contenders_table(contenders, report["singles"])))
    parts.append("\n".join(map(printable_line, _lines(report))))
    return "\n\n".join(parts)


def contenders_table(
    contenders: Mapping[str, Mapping[str, Any]], singles: Sequence[Mapping[str, Any]] = ()
) -> Table:
    """Who was measured, the fastest first; then which of the backends alone were not, and why."""

    def pace(item: tuple[str, Mapping[str, Any]]) -> float:
        return math.inf if item[1]["median_ms"] is None else item[1]["ratio"] or item[1]["median_ms"]

    rows = [
        (
            name,
            ms_text(c["median_ms"]),
            ms_text(c["spread_ms"]),
            "" if name == "collage" else _with_interval(c["ratio"], c["half_interval"]),
            "" if name == "collage" else _with_interval(c["ratio_as_it_came"], c["half_interval_as_it_came"]),
            str(c["sittings"]),
            str(c["retaken"]),
            c["reason"] or "",
        )
        for name, c in sorted(contenders.items(), key=pace)
    ]
    for s in singles:
        if (label := _label(s)) not in contenders:
            failed = s.get("failed")  # of older reports nobody knows
            why = f"failed: {_shortened(failed)}" if failed else f"not run: {_predicted(s)}"
            rows.append((label, *"-" * 6, why))
    header = ("contender", "median ms", "IQR ms", "of collage's", "as it came", "sittings", "retaken", "")
    return Table(header, rows, right=range(1, 7))


def _predicted(single: Mapping[str, Any]) -> str:
    """Or why it is not. What is not measured counts with its bound, far below what it takes."""
    if not single["predicted_ms"]:
        return str(single["reason"])
    if unmeasured := single.get("unmeasured_kernels"):
        return f"{unmeasured} of its kernels not measured"
    return f"predicted {single['predicted_ms']:.4g} ms"


def speed_text(report: Mapping[str, Any]) -> str:
    """How fast the placement is, how much faster than which library on its own, and how sure that is."""
    contenders = report.get("contenders") or {}
    ours = contenders.get("collage")
    if ours is None or ours["median_ms"] is None:
        predicted_ms = report["predicted_ms"]
        taken = "" if predicted_ms is None else f"predicted {ms_text(predicted_ms)} ms; "
        return f"{taken}not run end to end"
    taken = f"{ms_text(ours['median_ms'])} ms"
    if report.get("serving"):
        taken += f" a request, {1000 / ours['median_ms']:.4g} a second"
    if (spread_ms := ours["spread_ms"] or 0.0) > ours["median_ms"]:
        taken += f" (its runs differ by {ms_text(spread_ms)} ms: something else was running)"
    others = {
        label: contenders[label]
        for label in map(_label, report["singles"])
        # What is equal to ours goes by both names.
        if label in contenders and label != report["chosen"] and contenders[label] != ours
    }
    ratios = {label: c["ratio"] for label, c in others.items() if c["ratio"]}
    if not ratios:
        return f"{taken}; no other single library was run beside it"
    best = min(ratios, key=ratios.__getitem__)
    half, sittings = others[best]["half_interval"], others[best]["sittings"]
    interval = interval_text(ratios[best], half)
    sure = f"{interval} at 95 %" if interval else "how sure that is cannot be told"
    rank = "the fastest single library" if report["chosen"] == "mix" else "the next single library"
    told = f"{ratios[best]:.3f} times as fast as {best}, {rank} ({sure}, {counted(sittings, 'sitting')})"
    return f"{taken}, {told}"


def standing_lines(
    chosen: str, contenders: Mapping[str, Mapping[str, Any]], beaten_by: Sequence[str]
) -> list[str]:
    """How the chosen placement stands beside the others: what is shown, and what could not be."""
    others = {
        name: c
        for name, c in contenders.items()
        if name not in ("collage", chosen) and c["median_ms"] is not None
    }
    if not others:
        return []
    lines = []
    if beaten_by:
        lines = [f"{', '.join(beaten_by)}: faster when this was confirmed, not known to be slower after all"]
    open_ = {name: c for name, c in others.items() if not c["is_slower"] and name not in beaten_by}
    if not open_ and not beaten_by:
        return ["faster than everything else that was measured, beyond what is uncertain"]
    few = {name: c for name, c in open_.items() if not c["enough_sittings"]}
    most = max(c["sittings"] for c in contenders.values())
    behind = [n for n, c in few.items() if c["sittings"] < most and (c["ratio"] or 0.0) > 1.0]
    faster = {name: c for name, c in open_.items() if c["is_faster"]}
    moved = [n for n, c in faster.items() if (c["ratio_as_it_came"] or 0.0) > 1.0]
    for what, names in (
        ("faster while the processors were as usual, slower as it came", moved),
        ("faster, by less than a simpler placement is worth", [n for n in faster if n not in moved]),
        (
            "as fast, as far as can be told",
            [n for n, c in open_.items() if not c["is_faster"] and c["enough_sittings"]],
        ),
        ("left out when it was behind", behind),
        ("too few sittings to tell", [n for n in few if n not in behind]),
    ):
        if names:
            lines.append(f"{what}: {', '.join(names)}")
    return lines


def proven_text(search: Mapping[str, Any]) -> str:
    """Whether the mix is the best of the measured candidates, or by how much it may miss that."""
    if search["optimal"]:
        return "optimal for the measured costs"
    bound_ms = search.get("lower_bound_ms")
    if not bound_ms or search["total_ms"] > _TELLING * bound_ms:
        return "not proven optimal"
    return f"not proven optimal, at most {search['total_ms'] / bound_ms - 1:.1%} above the best"


def ms_text(value: float | None) -> str:
    """Milliseconds, without their unit."""
    return "-" if value is None else f"{value:.4f}"


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield _who(report)
    yield speed_text(report)
    standing = standing_lines(report["chosen"], report.get("contenders") or {}, report.get("beaten_by", ()))
    if standing:
        yield "; ".join(standing)
    yield _search(report)
    if prices := prices_text(report.get("prices") or {}):
        yield prices
    if rejected := report.get("rejected"):
        more = f"; nor {len(rejected) - 1} more" if rejected[1:] else ""
        yield f"not chosen, {_shortened(rejected[0])}{more}"
    if errors := report.get("errors"):
        yield "; ".join(f"error: {error}" for error in errors)
    yield _checked(report)
    if limit := report.get("error_limit"):
        yield limit_text(limit, report["max_rel_error"])
    if "output" not in report:
        return
    if report["output"] is None:
        yield "not saved: -o FILE.collage keeps it, and what was measured is not measured again"
        return
    bundle = shlex.quote(report["output"])
    yield f"saved as {bundle}; to run it: collage run {bundle} --input NAME=FILE.npy"
    yield f"why it is so: collage explain {bundle}; whether it still is, later: collage check {bundle}"


def _who(report: Mapping[str, Any]) -> str:
    """Who runs what. Views are nobody's."""
    rows = [(name, s) for name, s in report["shares"].items() if name != VIEW]
    rows.sort(key=lambda row: -row[1]["ms"])
    timed = any(s["share"] for _, s in rows)
    what = "the mix" if report["chosen"] == "mix" else f"{report['chosen']} is what you get"
    shares = [
        f"{name} {s['share']:.1%} ({_parts(s)})" if timed else f"{name} ({_parts(s)})" for name, s in rows
    ]
    return f"{what}: {', '.join(shares)}{' of the predicted time' if timed else ''}"


def _parts(share: Mapping[str, float]) -> str:
    count, what = (share["nodes"], "node") if share["nodes"] else (share["conversions"], "conversion")
    return counted(round(count), what)


def _search(report: Mapping[str, Any]) -> str:
    """How far the search has proven its mix, and why a further one ended."""
    search = report["search"]
    line = f"{proven_text(search)} (method {search['method']})"
    if second_level := report.get("second_level"):
        line += f"; second level: stopped, {second_level.get('stopped_by', 'it does not say why')}"
    return line


def _checked(report: Mapping[str, Any]) -> str:
    """What the answers were compared with. Differences are of the output's scale."""

    def within(error: float | None) -> str:
        return f"within {error:.1e}" if error else "exactly"

    error = report["max_rel_error"]
    checks = ["not run end to end" if error is None else f"against the reference, {within(error)}"]
    if report.get("amplifies_rounding"):
        checks[0] += ", no more than twice what rounding alone makes of this model"
    if report.get("random_outputs") and error is not None:
        checks[0] += "; what hangs on random numbers, by shape, element type and range"
    original = report.get("original")  # of reports saved before there were any
    if original and not original["unchecked"]:
        checks.append(f"the reference against the model as it was given, {within(original['max_rel_error'])}")
    if opinion := report.get("second_opinion"):
        checks.append(f"the reference against {opinion['peer']}, {within(opinion['error'])}")
    return f"answers checked: {'; '.join(checks)}"


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 1] + "…"


def _label(single: Mapping[str, Any]) -> str:
    return single_label(single["backend"], single["alone"], single.get("way", ""))


def _with_interval(ratio: float | None, half_interval: float | None) -> str:
    """What a contender takes relative to Collage, and by how much that may be off."""
    return "-" if ratio is None else ratio_text(ratio, half_interval)
