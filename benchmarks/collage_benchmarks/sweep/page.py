"""The page of all sweeps: how much slower or faster than in use each choice of settings is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import hypot
from statistics import geometric_mean
from typing import Any

from collage_benchmarks.evidence.machine import title_of
from collage_benchmarks.evidence.pages import wrapped
from collage_benchmarks.sweep.grid import IN_USE, WITHIN, Use

__all__ = ["conclusion", "page"]

_HEAD = """# Settings in use, beside others

Written by `python -m collage_benchmarks.sweep` from the records beside this page. A figure is the time with
other settings over that with those in use, between turns that found the processors as usual. Beside it
stands half its 95 % confidence interval, from how the sittings differ. A sitting has processes of its own.
All choices have three sittings; those that may be faster by more than 2 % go on to eight.
All answers are right, or the figure is `wrong`. The last column is the geometric mean; its
interval follows from theirs.
A choice that is in use anyway is in the grid as well: its figure tells how much is chance.
Of twenty figures one lies beyond its interval by chance.
"""

Sweep = Mapping[str, Any]


def page(sweeps: Sequence[Sweep]) -> str:
    """In Markdown: for each processor and each use of a library, a table and what follows from it."""
    parts = [_HEAD]
    for title, of_processor in _grouped(sweeps, lambda s: title_of(s["processor"])):
        parts.append(f"## {title}\n")
        for use, of_use in _grouped(of_processor, lambda s: str(Use(**s["use"]))):
            of_use = sorted(of_use, key=lambda s: str(s["network"]))
            parts += [f"### {use}\n", _table(of_use), f"\n{conclusion(of_use)} {_made(of_use)}\n"]
    return wrapped("\n".join(parts))


def conclusion(sweeps: Sequence[Sweep]) -> str:
    """Of one use: how far the settings in use are from the best found, and whether that is certain."""
    best = [(c["ratio"], c["half_interval"], c["label"], s["network"]) for s in sweeps for c in _ran(s)]
    faster = [b for b in best if b[1] is not None and b[0] + b[1] < 1.0]
    ratio, _, label, network = min(faster or best, key=lambda b: b[0])
    slower = f"{1.0 / ratio - 1.0:.1%} slower than with {label!r} on {network}"
    if not faster:
        text = "No other choice is faster beyond what is uncertain."
        return text if ratio >= 1.0 else f"{text} The most that is seen: {slower}."
    verdict = "within" if 1.0 / ratio - 1.0 <= WITHIN else "not within"
    text = f"The settings in use are {verdict} {WITHIN:.0%} of the best found: {slower}."
    means = {label: _mean(sweeps, label) for label in _labels(sweeps)}
    known = [(*m, label) for label, m in means.items() if m is not None]
    sure = [(mean, half, label) for mean, half, label in known if half is not None and mean + half < 1.0]
    if not sure:
        return f"{text} No one choice is faster on the whole, beyond what is uncertain."
    mean, half, on_the_whole = min(sure)
    return f"{text} The best one choice on the whole is {on_the_whole!r}: {_told(mean, half)}."


def _ran(sweep: Sweep) -> list[Mapping[str, Any]]:
    """Choices with right answers; those in use are among them."""
    return [c for c in sweep["choices"] if c["ratio"] is not None]


def _table(sweeps: Sequence[Sweep]) -> str:
    header = ["", *(f"{s['network']} ({_in_use_ms(s):.3g} ms)" for s in sweeps), "all"]
    lines = [header, ["---"] * len(header)]
    for label in _labels(sweeps):
        mean = _mean(sweeps, label)
        cells = [_cell(_choice(s, label)) for s in sweeps]
        lines.append([label, *cells, "-" if mean is None else _told(*mean)])
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |", 1) for line in lines)


def _cell(choice: Mapping[str, Any] | None) -> str:
    if choice is None:
        return "-"
    if choice["ratio"] is None:
        return str(choice["status"])
    return _told(choice["ratio"], choice["half_interval"])


def _told(ratio: float, half_interval: float | None) -> str:
    return f"{ratio:.3f}" + (f" +- {half_interval:.3f}" if half_interval else "")


def _made(sweeps: Sequence[Sweep]) -> str:
    commits = ", ".join(
        dict.fromkeys(s["commit"]["id"][:7] + (" with changes" if s["dirty"] else "") for s in sweeps)
    )
    names = {s["use"]["library"] for s in sweeps}
    versions = dict.fromkeys(
        f"{b['name']} {b['library_version']}"
        for s in sweeps
        for b in s["software"]["backends"]
        if b["available"] and (b["name"] in names or (b["kind"] == "operator" and "operator" in str(names)))
    )
    threads = ", ".join(dict.fromkeys(str(s["threads"]) for s in sweeps))
    return f"({', '.join(versions)}; {threads} threads; at {commits}.)"


def _in_use_ms(sweep: Sweep) -> float:
    return float(next(c["median_ms"] for c in sweep["choices"] if c["label"] == IN_USE))


def _mean(sweeps: Sequence[Sweep], label: str) -> tuple[float, float | None] | None:
    """Of its ratios, the geometric one, with half its interval, where all have one: networks err for
    themselves. None unless it ran on all of them.
    """
    found = [c for s in sweeps if (c := _choice(s, label)) is not None and c["ratio"] is not None]
    if len(found) < len(sweeps):
        return None
    mean = geometric_mean([c["ratio"] for c in found])
    if any(c["half_interval"] is None for c in found):
        return mean, None
    return mean, mean * hypot(*(c["half_interval"] / c["ratio"] for c in found)) / len(found)


def _choice(sweep: Sweep, label: str) -> Mapping[str, Any] | None:
    return next((c for c in sweep["choices"] if c["label"] == label), None)


def _labels(sweeps: Sequence[Sweep]) -> list[str]:
    return list(dict.fromkeys(c["label"] for s in sweeps for c in s["choices"]))


def _grouped(sweeps: Iterable[Sweep], key: Any) -> list[tuple[str, list[Sweep]]]:
    found: dict[str, list[Sweep]] = {}
    for s in sweeps:
        found.setdefault(key(s), []).append(s)
    return sorted(found.items())
