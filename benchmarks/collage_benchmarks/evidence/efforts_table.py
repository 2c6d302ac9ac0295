"""The tables of what each effort takes and brings, from records and nothing but records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from collage_benchmarks.evidence.efforts import AGAIN, STANDARD
from collage_benchmarks.evidence.runs import Run
from collage_benchmarks.evidence.tables import grouped, markdown, network_name
from collage_core.pipeline.effort import NORMAL, QUICK

__all__ = ["bounds_table", "efforts_table"]

_COMMAND = "python -m collage_benchmarks.evidence efforts"
_OF_EACH = ("network", "started (UTC)", "commit")
_AFTER_S = ("15", "30", "60")
_HEADER = (
    "usable after, s",
    "quick, s",
    "its answer's time over thorough's",
    "normal, s",
    "its answer's time over thorough's",
    "thorough, s",
    "normal again, s (measured)",
    "measured of offered, normal",
    "others' CPU",
)
_BOUNDS_HEADER = (
    "offered",
    "until proven: measured",
    "seconds",
    "its answer over full measuring's",
    "within 1 %: measured",
    "seconds",
    "its answer over full measuring's",
    f"answers over that after {', '.join(_AFTER_S)} s",
    "measured until proven, with bounds of 80, 90, 100 % of each kernel's cost",
)


def efforts_table(records: Sequence[Mapping[str, Any]]) -> str:
    """For each kind of processor every record in a line, those of changed files and disturbed ones too."""
    return _table(map(Run, records), _HEADER, _line)


def bounds_table(records: Sequence[Mapping[str, Any]]) -> str:
    """For each kind of processor what bounded measuring had to measure, replayed on each record's costs."""
    return _table((r for r in map(Run, records) if r.record.get("replayed")), _BOUNDS_HEADER, _bounds_line)


def _table(runs: Iterable[Run], header: Sequence[str], line: Callable[[Run], list[str]]) -> str:
    parts = []
    for title, of_one in grouped(runs, lambda r: r.title):
        lines = [
            [
                network_name(r.network),
                r.record["started"],
                r.commit[:7] + ("" if r.is_clean else ", changed"),
                *line(r),
            ]
            for r in sorted(of_one, key=lambda r: (r.network, r.record["started"]))
        ]
        parts.append(f"**{title}**\n\n{markdown([*_OF_EACH, *header], lines)}")
    return "\n\n".join(parts) or f"No run is recorded yet; `{_COMMAND}` makes one."


def _bounds_line(run: Run) -> list[str]:
    replayed = run.record["replayed"]
    cells = [str(replayed["proven"]["offered"])]
    for what in ("proven", "within"):
        found = replayed[what]
        cells += [
            _measured(found),
            f"{found['seconds']:.0f} of {replayed['seconds']:.0f}",
            f"{found['ms'] / replayed['full_ms']:.4f}",
        ]
    after_s = replayed.get("after_s", {})
    after = [after_s[s] / replayed["full_ms"] for s in _AFTER_S if s in after_s]
    informed = [f"{r['measured'] / r['offered']:.0%}" for r in replayed.get("informed", {}).values()]
    return [*cells, ", ".join(f"{over:.3f}" for over in after) or "-", ", ".join(informed) or "-"]


def _measured(counts: Mapping[str, Any]) -> str:
    return f"{counts['measured']} ({counts['measured'] / counts['offered']:.0%})"


def _line(run: Run) -> list[str]:
    record = run.record
    share = f"{run.others_share:.1%}" + ("" if run.is_quiet else ", disturbed")
    if run.is_failed and record["compared"] is None:
        failed = record["failed"]
        reason = f"{failed['step']} failed ({failed['exit_code']}): {''.join(failed['last_lines'][-1:])}"
        return [reason.replace("|", "\\|"), *["-"] * (len(_HEADER) - 2), share]
    efforts, seconds = record["efforts"], record["seconds"]
    usable = [efforts[e]["usable_s"] for e in (QUICK.name, NORMAL.name)]
    again, normal = efforts[AGAIN]["search"], efforts[NORMAL.name]["search"]["counts"]
    return [
        ", ".join(f"{s:.0f}" for s in usable),
        f"{seconds[QUICK.name]:.0f}",
        _ratio(record["compared"][QUICK.name]),
        f"{seconds[NORMAL.name]:.0f}",
        _ratio(record["compared"][NORMAL.name]),
        f"{seconds[STANDARD]:.0f}",
        f"{again['total_s']:.1f} ({again['measured']})",
        f"{normal['measured']} of {normal['offered']} ({normal['measured'] / normal['offered']:.0%})",
        share,
    ]


def _ratio(contender: Mapping[str, Any]) -> str:
    if contender["ratio"] is None:
        return "-"
    half = contender["half_interval"]
    if half == 0.0:  # beside itself
        return "the same"
    return f"{contender['ratio']:.3f}" + (f" +- {half:.3f}" if half is not None else "")
