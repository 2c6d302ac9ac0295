"""The same results for reading: plain text made from the JSON values of `summary`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage_core.counted import counted
from collage_core.report.beside import beside_parts
from collage_core.report.conclusion import (
    contenders_table,
    ms_text,
    optimization_text,
    proven_text,
    speed_text,
    standing_lines,
)
from collage_core.report.constraints import prices_text
from collage_core.report.front import front_table
from collage_core.report.movement import dataflow_parts, quantity
from collage_core.report.rivals import rivals_table
from collage_core.report.rounding import limit_text
from collage_core.report.step_costs import ms_header, predicted_ms
from collage_core.report.tables import Table, at_a_time, headline

__all__ = ["backends_text", "bench_text", "explain_parts", "explain_text", "optimization_text", "tuning_text"]

_MAX_OPS = 44


def backends_text(report: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            b["name"],
            b["kind"],
            b["version"] or "-",
            b["library_version"] or b.get("description") or "-",
            ",".join(b["devices"]),
            "yes" if b["available"] else f"no: {b['reason']}",
        )
        for b in report
    ]
    return str(Table(("backend", "kind", "version", "library", "devices", "available"), rows))


def _optimization(report: Mapping[str, Any]) -> list[str | Table]:
    """How an optimisation went: who is how fast, who runs how much of it, and how far to trust it."""
    search = report["search"]
    parts: list[str | Table] = [headline(report)]
    if contenders := report.get("contenders"):  # of bundles saved before there were any nothing is known
        parts.append(contenders_table(contenders, report["singles"]))
    parts.append(_shares(report))
    parts.append(_verdict(report))
    found = f"{search['search_s']:.3f} s searching ({search['method']}, {proven_text(search)})"
    parts.append(
        f"search: {search['candidates']} candidates, {search['measured']} measured, "
        f"{search['cached']} known, "
        f"{search['measure_s']:.1f} s measuring, {found}, {search['total_s']:.1f} s in all"
    )
    if counts := search.get("counts"):
        parts.append(
            "candidates: " + ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in counts.items())
        )
    if seconds := search.get("seconds"):
        parts.append(_seconds(seconds))
    if turns := search.get("in_place"):
        parts.append(_in_place(turns))
    if second_level := report.get("second_level"):
        parts.append(_second_level(second_level))
    if random := report.get("random"):
        parts.append(_random(random))
    return parts + _on_reference(report)


def _seconds(seconds: Mapping[str, float]) -> Table:
    """Where the time went, by phase, in order."""
    total = sum(seconds.values())
    rows = [(phase, f"{s:.1f}", f"{s / total:.1%}" if total else "-") for phase, s in seconds.items()]
    return Table(("phase", "seconds", "share"), [*rows, ("all", f"{total:.1f}", "")], right=[1, 2])


def _random(drawing: Sequence[Mapping[str, Any]]) -> str:
    seeds = ", ".join(f"{d['node']} ({d['op']}) {d['seed']}" for d in drawing)
    return f"random: what is drawn is compared by range, not by number; seeds: {seeds}"


def tuning_text(report: Mapping[str, Any]) -> str:
    """What `collage tune` prints: what was tuned, what came of it, and what was not worth it."""
    peaks = report["peaks"]
    parts = [
        f"{report['model']} on {report['device']}, {counted(report['threads'], 'thread')}: "
        f"{peaks['gflops']:.0f} GFLOP/s, {peaks['memory_gb_per_s']:.0f} GB/s from memory"
    ]
    if report["tuned"]:
        rows = [
            (
                t["node"],
                _cut(t["ops"]),
                t["backend"],
                str(t["occurrences"]),
                f"{t['trials']} (+{t['new_trials']})",
                *(ms_text(t[k]) for k in ("least_ms", "known_ms", "cost_ms")),
                t["reason"] or ("faster" if t["faster"] else ""),
            )
            for t in report["tuned"]
        ]
        header = ("node", "operators", "backend", "times", "trials", "least ms", "known ms", "now ms", "")
        parts.append(str(Table(header, rows, right=[3, 4, 5, 6, 7])))
    else:
        parts.append("nothing was tuned")
    for key, what in (
        ("left", "left by the budget; run the command again to go on"),
        ("skipped", "not worth tuning: what is known is close to what this machine can do"),
    ):
        if report[key]:
            parts.append(f"{counted(len(report[key]), 'group')} {what}")
    parts.append(f"{report['seconds']:.1f} s in all")
    return "\n\n".join(parts)


def explain_text(report: Mapping[str, Any]) -> str:
    """`explain_parts`, as text."""
    return "\n\n".join(map(str, explain_parts(report)))


def explain_parts(report: Mapping[str, Any]) -> list[str | Table]:
    """Everything that is known about a placement: groups in order, conversions, what was declined and what
    failed.

    Of a placement made by hand no more than its groups and conversions is known.
    """
    parts = _optimization(report) if "search" in report else []
    if report.get("is_edited"):
        parts.append(
            "this placement is not the one that the bundle's report is about: no more is known of it"
        )
    parts.append(_groups(report))
    if rivals := rivals_table(report["groups"]):
        parts.append(rivals)
    if report["conversions"]:
        rows = [
            (
                c["value"],
                c["from"],
                c["to"],
                c["backend"],
                ms_text(predicted_ms(c)),
                ms_text(c.get("in_place_ms")),
            )
            for c in report["conversions"]
        ]
        header = ("value", "from", "to", "backend", ms_header(report["conversions"]), "in place")
        parts.append(Table(header, rows, right=[4, 5], title="conversions, ms"))
    if transfers := report.get("transfers"):
        moved = sum(t["bytes"] for t in transfers)
        took_ms = sum(predicted_ms(t) or 0.0 for t in transfers)
        told = f"{len(transfers)} of these are transfers: {quantity(moved, 'B')}, {ms_text(took_ms)} ms"
        parts.append(told)
    if "dataflow" in report:
        parts += dataflow_parts(report)
    if "beside" in report:
        parts += beside_parts(report["beside"])
    if front := front_table(report.get("error_limit") or {}):
        parts.append(front)
    if "prediction" in report:
        parts += _prediction(report["prediction"])
    if infeasible := report.get("infeasible"):
        failed = [(i["backend"], _cut(i["ops"]), str(i["count"]), i["reason"]) for i in infeasible]
        columns = ("backend", "operators", "count", "reason")
        parts.append(Table(columns, failed, right=[2], title="infeasible candidates"))
    for name, reasons in report.get("declined", {}).items():
        if reasons:
            parts.append(f"declined by {name}, most frequent first\n" + "\n".join(f"  {r}" for r in reasons))
    return parts


def bench_text(report: Mapping[str, Any]) -> str:
    text = str(contenders_table(report["contenders"]))
    if concurrency := report.get("concurrency"):
        times_ms = {name: c["median_ms"] for name, c in report["contenders"].items() if c["median_ms"]}
        answered = ", ".join(f"{name} {1000 / ms:.4g}" for name, ms in times_ms.items())
        text += f"\n\n{at_a_time(concurrency)}; answered in a second: {answered}"
    if report["ratio_to_best_peer"] is not None:
        text += f"\n\nbest peer / collage: {report['ratio_to_best_peer']:.3f}"
    for peer, error in report["max_rel_error"].items():
        text += f"\nlargest difference from {peer}: {error:.1e} of the output's scale"
    return text


def _verdict(report: Mapping[str, Any]) -> str:
    lines = []
    contenders = report.get("contenders", {})
    measured, predicted = contenders.get("collage", {}).get("median_ms"), report["predicted_ms"]
    if predicted is not None:
        line = f"predicted {predicted:.3f} ms"
        if told := report.get("serving"):
            line += " of a session for a request"
            measured = measured and measured * told["sessions"]
        if measured:
            line += f", measured {measured:.3f} ms ({(predicted - measured) / measured:+.1%} off)"
        lines.append(line)
    if report["max_rel_error"] is not None:
        lines.append(
            f"largest difference from the reference: {report['max_rel_error']:.1e} of the output's scale"
        )
    if limit := report.get("error_limit"):
        lines.append(limit_text(limit, report["max_rel_error"]))
    lines += _against_original(report)
    lines += [text for text in [prices_text(report.get("prices") or {})] if text]
    lines += [f"not chosen, {reason}" for reason in report.get("rejected", ())]
    if report.get("rejected"):
        lines.append("(`collage costs prune --failed` has the next run try it again)")
    if report["chosen"] != "mix":
        lines.append(f"{report['chosen']} is what you get")
    if contenders:
        lines.append(speed_text(report))
    return "\n".join(lines + standing_lines(report["chosen"], contenders, report.get("beaten_by", ())))


def _against_original(report: Mapping[str, Any]) -> list[str]:
    """How the placed graph compares with the model as it was given."""
    lines = [f"error: {error}" for error in report.get("errors", ())]
    original = report.get("original")  # of reports saved before there were any
    if original and not original["unchecked"]:
        error = original["max_rel_error"]
        lines.append(f"as the model was given, the reference answers the same: {_differing(error)}")
    if opinion := report.get("second_opinion"):
        lines.append(f"{opinion['peer']} answers what the reference does: {_differing(opinion['error'])}")
    return lines


def _differing(error: float | None) -> str:
    return f"within {error:.1e} of the output's scale" if error else "exactly"


def _in_place(turns: Sequence[Mapping[str, Any]]) -> str:
    """What mixes were predicted to take and took, while their kernels' times in place were learnt."""
    took = [
        f"{ms_text(t['predicted_ms'])} predicted, {ms_text(t['took_ms'])} taken ({t['relative']:.3f} of that)"
        for t in turns
    ]
    return "run to learn what kernels take in place, ms (and of what ran beside it): " + "; ".join(took)


def _second_level(history: Mapping[str, Any]) -> str:
    """What the graph level has tried; of another search no more than how it ended."""
    ended = f"second level: stopped, {history.get('stopped_by', 'it does not say why')}"
    tries = history.get("evaluations")
    if not tries:
        return ended
    seconds = sum(t["seconds"] for t in tries)
    failed = sum(t["median_ms"] is None for t in tries)
    best_ms, before_ms = history["best_ms"], history["op_level_ms"]
    gain = f" ({before_ms / best_ms - 1:+.1%})" if best_ms and before_ms else ""
    return (
        f"{ended}; {len(tries)} placements tried in {seconds:.0f} s, {failed} of them infeasible; "
        f"the best took {ms_text(best_ms)} ms, the op level's {ms_text(before_ms)} ms{gain}"
    )


def _shares(report: Mapping[str, Any]) -> Table:
    parts = [*report["groups"], *report["conversions"]]
    unknown = {p["backend"] for p in parts if p["cost_ms"] is None}
    rows = [
        (
            name,
            f"{s['groups']:.0f}",
            f"{s['nodes']:.0f}",
            f"{s['conversions']:.0f}",
            *(("-", "-") if name in unknown else (ms_text(s["ms"]), f"{s['share']:.1%}")),
        )
        for name, s in sorted(report["shares"].items(), key=lambda item: -item[1]["ms"])
    ]
    return Table(("backend", "groups", "nodes", "conversions", "ms", "share"), rows, right=range(1, 6))


def _on_reference(report: Mapping[str, Any]) -> list[str | Table]:
    if not report["fallback"]:
        return []
    lines = ["on the reference, for want of anything better:"]
    for f in report["fallback"]:
        why = (
            "; ".join(f"{name}: {reason}" for name, reason in f["declined"].items())
            or "no backend has a pattern for it"
        )
        lines.append(f"  {f['node']} ({f['op']}), {ms_text(predicted_ms(f))} ms: {why}")
    return ["\n".join(lines)]


def _groups(report: Mapping[str, Any]) -> Table:
    further = ["error"] if report.get("error_limit") else []
    rows = [
        (
            str(i),
            g["backend"],
            _cut("+".join(g["ops"])),
            g["nodes"][-1],
            _cut(" ".join(_short(f) for f in g["formats"]["inputs"]))
            + " -> "
            + _cut(" ".join(_short(f) for f in g["formats"]["outputs"])),
            ms_text(predicted_ms(g)),
            ms_text(g["spread_ms"]),
            ms_text(g.get("in_place_ms")),
            *(_error_text(g[key]) for key in further),
        )
        for i, g in enumerate(report["groups"])
    ]
    times = (ms_header(report["groups"]), "IQR", "in place")
    header = ("#", "backend", "operators", "last node", "layouts", *times, *further)
    return Table(header, rows, right=[0, *range(5, len(header))], title="groups in order, ms")


def _error_text(error: float | None) -> str:
    """What the outputs would be off by if nothing else were rounded."""
    return "-" if error is None else f"{error:.1e}"


def _constants(by_backend_ms: Mapping[str, float] | float) -> str:
    if not isinstance(by_backend_ms, Mapping):  # as bundles told before ADR 30
        return f"a backend {1e3 * by_backend_ms:.1f}"
    return ", ".join(f"{name} {1e3 * ms:.1f}" for name, ms in sorted(by_backend_ms.items())) or "no backend"


def _prediction(prediction: Mapping[str, Any]) -> list[str | Table]:
    """What the prediction is made of, and where it misses."""
    transitions = prediction["transitions"]
    terms = ", ".join(f"{what} {ms_text(ms)}" for what, ms in prediction["terms_ms"].items())
    lines = [f"predicted: {terms} ms"] if terms else []  # nothing of a library that takes it all
    if transitions["group_ms"] or transitions["crossing_ms"]:
        lines += [
            f"calibrated: us per group of {_constants(transitions['group_ms'])}",
            f"us per value that leaves {_constants(transitions['crossing_ms'])} for another backend",
        ]
    if prediction["in_place_ms"] is None:
        return ["\n".join(lines)] if lines else []
    lines.append(f"in place: {ms_text(prediction['in_place_ms'])} ms")
    if not prediction["misses"]:
        lines.append("no group misses its prediction by more than a tenth and 1 % of the whole")
        return ["\n".join(lines)]
    rows = [
        (
            "-" if m["group"] is None else str(m["group"]),
            m["backend"],
            _cut(m["what"]),
            ms_text(m["predicted_ms"]),
            ms_text(m["in_place_ms"]),
            f"{(m['predicted_ms'] - m['in_place_ms']) / m['in_place_ms']:+.0%}",
        )
        for m in prediction["misses"]
    ]
    header = ("#", "backend", "what", "predicted ms", "in place", "off")
    return [
        "\n".join(lines),
        Table(
            header,
            rows,
            right=[0, 3, 4, 5],
            title="off by more than a tenth and by more than 1 % of the whole",
        ),
    ]


def _short(format: str) -> str:
    return format.removeprefix("float32:")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_OPS else text[: _MAX_OPS - 1] + "…"
