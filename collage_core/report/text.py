"""The same results for reading: plain text made from the JSON values of `summary`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["backends_text", "bench_text", "explain_text", "optimization_text", "table", "tuning_text"]

_MAX_OPS = 44


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Aligned columns, those in `right` to the right; a header line without a rule."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    to_right = set(right)
    return "\n".join(
        "  ".join(
            c.rjust(w) if i in to_right else c.ljust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def backends_text(report: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            b["name"],
            b["kind"],
            b["version"] or "-",
            b["library_version"] or "-",
            ",".join(b["devices"]),
            "yes" if b["available"] else f"no: {b['reason']}",
        )
        for b in report
    ]
    return table(("backend", "kind", "version", "library", "devices", "available"), rows)


def optimization_text(report: Mapping[str, Any]) -> str:
    """What `collage optimize` prints: who is how fast, who runs how much of it, and how far to trust it."""
    search = report["search"]
    parts = [f"{report['model']} on {report['device']}, {report['threads']} threads"]
    if contenders := report.get("contenders"):  # of bundles saved before there were any nothing is known
        parts.append(_contenders(contenders, report["singles"]))
    parts.append(_shares(report))
    parts.append(_verdict(report))
    proven = _proven(search)
    found = f"{search['search_s']:.3f} s searching ({search['method']}, {proven})"
    parts.append(
        f"search: {search['candidates']} candidates, {search['measured']} measured, "
        f"{search['cached']} known, "
        f"{search['measure_s']:.1f} s measuring, {found}, {search['total_s']:.1f} s in all"
    )
    if turns := search.get("in_place"):
        parts.append(_in_place(turns))
    if second_level := report.get("second_level"):
        parts.append(_second_level(second_level))
    if random := report.get("random"):
        parts.append(_random(random))
    parts += _on_reference(report)
    return "\n\n".join(parts)


def _random(drawing: Sequence[Mapping[str, Any]]) -> str:
    seeds = ", ".join(f"{d['node']} ({d['op']}) {d['seed']}" for d in drawing)
    return f"random: what is drawn is compared by range, not by number; seeds: {seeds}"


def tuning_text(report: Mapping[str, Any]) -> str:
    """What `collage tune` prints: what was tuned, what came of it, and what was not worth it."""
    peaks = report["peaks"]
    parts = [
        f"{report['model']} on {report['device']}, {report['threads']} threads: "
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
                *(_ms(t[k]) for k in ("least_ms", "known_ms", "cost_ms")),
                t["reason"] or ("faster" if t["faster"] else ""),
            )
            for t in report["tuned"]
        ]
        header = ("node", "operators", "backend", "times", "trials", "least ms", "known ms", "now ms", "")
        parts.append(table(header, rows, right=[3, 4, 5, 6, 7]))
    else:
        parts.append("nothing was tuned")
    for key, what in (
        ("left", "left by the budget; run the command again to go on"),
        ("skipped", "not worth tuning: what is known is close to what this machine can do"),
    ):
        if report[key]:
            parts.append(f"{len(report[key])} groups {what}")
    parts.append(f"{report['seconds']:.1f} s in all")
    return "\n\n".join(parts)


def explain_text(report: Mapping[str, Any]) -> str:
    """Everything that is known about a placement: groups in order, conversions, what was declined and what
    failed.

    Of a placement made by hand no more than its groups and conversions is known.
    """
    parts = [optimization_text(report), _groups(report)] if "search" in report else [_groups(report)]
    if report["conversions"]:
        rows = [
            (c["value"], c["from"], c["to"], c["backend"], _ms(c["cost_ms"]), _ms(c.get("in_place_ms")))
            for c in report["conversions"]
        ]
        header = ("value", "from", "to", "backend", "ms", "in place")
        parts.append("conversions\n" + table(header, rows, right=[4, 5]))
    if "prediction" in report:
        parts += _prediction(report["prediction"])
    if infeasible := report.get("infeasible"):
        failed = [(i["backend"], _cut(i["ops"]), str(i["count"]), i["reason"]) for i in infeasible]
        parts.append(
            "infeasible candidates\n" + table(("backend", "operators", "count", "reason"), failed, right=[2])
        )
    for name, reasons in report.get("declined", {}).items():
        if reasons:
            parts.append(f"declined by {name}, most frequent first\n" + "\n".join(f"  {r}" for r in reasons))
    return "\n\n".join(parts)


def bench_text(report: Mapping[str, Any]) -> str:
    text = _contenders(report["contenders"])
    if report["ratio_to_best_peer"] is not None:
        text += f"\n\nbest peer / collage: {report['ratio_to_best_peer']:.3f}"
    for peer, error in report["max_rel_error"].items():
        text += f"\nlargest difference from {peer}: {error:.1e} of the output's scale"
    return text


def _proven(search: Mapping[str, Any]) -> str:
    """Whether the mix is the best of the measured candidates, or by how much it may miss that."""
    if search["optimal"]:
        return "optimal for the measured costs"
    bound_ms = search.get("lower_bound_ms")
    if not bound_ms:
        return "not proven optimal"
    return f"not proven optimal, at most {search['total_ms'] / bound_ms - 1:.1%} above the best"


def _contenders(
    contenders: Mapping[str, Mapping[str, Any]], singles: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Who was measured, the fastest first; then which of the backends alone were not, and why."""

    def pace(item: tuple[str, Mapping[str, Any]]) -> float:
        return math.inf if item[1]["median_ms"] is None else item[1]["ratio"] or item[1]["median_ms"]

    rows = [
        (
            name,
            _ms(c["median_ms"]),
            _ms(c["spread_ms"]),
            "" if name == "collage" else _with_interval(c["ratio"], c["half_interval"]),
            "" if name == "collage" else _with_interval(c["ratio_as_it_came"], c["half_interval_as_it_came"]),
            str(c["sittings"]),
            str(c["retaken"]),
            c["reason"] or "",
        )
        for name, c in sorted(contenders.items(), key=pace)
    ]
    for s in singles:
        label = s["backend"] if s["alone"] else f"{s['backend']}+reference"
        if label not in contenders:
            why = f"predicted {s['predicted_ms']:.4g} ms" if s["predicted_ms"] else s["reason"]
            rows.append((label, *"-" * 6, f"not run: {why}"))
    header = ("contender", "median ms", "IQR ms", "of collage's", "as it came", "sittings", "retaken", "")
    return table(header, rows, right=range(1, 7))


def _with_interval(ratio: float | None, half_interval: float | None) -> str:
    """What a contender takes relative to Collage, and by how much that may be off."""
    if ratio is None:
        return "-"
    return f"{ratio:.3f}" + ("" if half_interval is None else f" +-{half_interval:.3f}")


def _verdict(report: Mapping[str, Any]) -> str:
    lines = []
    contenders = report.get("contenders", {})
    measured, predicted = contenders.get("collage", {}).get("median_ms"), report["predicted_ms"]
    if predicted is not None:
        line = f"predicted {predicted:.3f} ms"
        if measured:
            line += f", measured {measured:.3f} ms ({(predicted - measured) / measured:+.1%} off)"
        lines.append(line)
    if report["max_rel_error"] is not None:
        lines.append(
            f"largest difference from the reference: {report['max_rel_error']:.1e} of the output's scale"
        )
    lines += _against_original(report)
    lines += [f"not chosen, {reason}" for reason in report.get("rejected", ())]
    if report.get("rejected"):
        lines.append("(`collage costs prune --failed` has the next run try it again)")
    if report["chosen"] != "mix":
        lines.append(f"{report['chosen']} is what you get")
    return "\n".join(lines + _standing(report["chosen"], contenders, report.get("beaten_by", ())))


def _standing(
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
    faster = {name: c for name, c in open_.items() if c["is_faster"]}
    moved = [n for n, c in faster.items() if (c["ratio_as_it_came"] or 0.0) > 1.0]
    for what, names in (
        ("faster while the processors were as usual, slower as it came", moved),
        ("faster, by less than a simpler placement is worth", [n for n in faster if n not in moved]),
        (
            "as fast, as far as can be told",
            [n for n, c in open_.items() if not c["is_faster"] and c["enough_sittings"]],
        ),
        ("too few sittings to tell", [n for n, c in open_.items() if not c["enough_sittings"]]),
    ):
        if names:
            lines.append(f"{what}: {', '.join(names)}")
    return lines


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
        f"{_ms(t['predicted_ms'])} predicted, {_ms(t['took_ms'])} taken ({t['relative']:.3f} of that)"
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
        f"the best took {_ms(best_ms)} ms, the op level's {_ms(before_ms)} ms{gain}"
    )


def _shares(report: Mapping[str, Any]) -> str:
    rows = [
        (
            name,
            f"{s['groups']:.0f}",
            f"{s['nodes']:.0f}",
            f"{s['conversions']:.0f}",
            _ms(s["ms"]),
            f"{s['share']:.1%}",
        )
        for name, s in sorted(report["shares"].items(), key=lambda item: -item[1]["ms"])
    ]
    return table(("backend", "groups", "nodes", "conversions", "ms", "share"), rows, right=range(1, 6))


def _on_reference(report: Mapping[str, Any]) -> list[str]:
    if not report["fallback"]:
        return []
    lines = ["on the reference, for want of anything better:"]
    for f in report["fallback"]:
        why = (
            "; ".join(f"{name}: {reason}" for name, reason in f["declined"].items())
            or "no backend has a pattern for it"
        )
        lines.append(f"  {f['node']} ({f['op']}), {_ms(f['cost_ms'])} ms: {why}")
    return ["\n".join(lines)]


def _groups(report: Mapping[str, Any]) -> str:
    rows = [
        (
            str(i),
            g["backend"],
            _cut("+".join(g["ops"])),
            g["nodes"][-1],
            " ".join(_short(f) for f in g["formats"]["inputs"])
            + " -> "
            + " ".join(_short(f) for f in g["formats"]["outputs"]),
            _ms(g["cost_ms"]),
            _ms(g["spread_ms"]),
            _ms(g.get("in_place_ms")),
        )
        for i, g in enumerate(report["groups"])
    ]
    header = ("#", "backend", "operators", "last node", "layouts", "ms", "IQR", "in place")
    return "groups, in order\n" + table(header, rows, right=[0, 5, 6, 7])


def _prediction(prediction: Mapping[str, Any]) -> list[str]:
    """What the prediction is made of, and where it misses."""
    transitions = prediction["transitions"]
    constants = ", ".join(f"{name} {1e3 * ms:.1f}" for name, ms in sorted(transitions["group_ms"].items()))
    lines = [
        "predicted: " + ", ".join(f"{what} {_ms(ms)}" for what, ms in prediction["terms_ms"].items()) + " ms",
        f"calibrated: us per group of {constants or 'no backend'}; "
        f"{1e3 * transitions['crossing_ms']:.1f} us per value that crosses",
    ]
    if prediction["in_place_ms"] is None:
        return ["\n".join(lines)]
    lines.append(f"in place: {_ms(prediction['in_place_ms'])} ms")
    if not prediction["misses"]:
        lines.append("no group misses its prediction by more than a tenth and 1 % of the whole")
        return ["\n".join(lines)]
    rows = [
        (
            "-" if m["group"] is None else str(m["group"]),
            m["backend"],
            _cut(m["what"]),
            _ms(m["predicted_ms"]),
            _ms(m["in_place_ms"]),
            f"{(m['predicted_ms'] - m['in_place_ms']) / m['in_place_ms']:+.0%}",
        )
        for m in prediction["misses"]
    ]
    header = ("#", "backend", "what", "predicted ms", "in place", "off")
    return [
        "\n".join(lines),
        "off by more than a tenth and by more than 1 % of the whole\n"
        + table(header, rows, right=[0, 3, 4, 5]),
    ]


def _short(format: str) -> str:
    return format.removeprefix("float32:")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_OPS else text[: _MAX_OPS - 1] + "…"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
