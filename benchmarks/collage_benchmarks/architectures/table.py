"""What was tried, a line for each architecture, from records and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage_benchmarks.evidence.tables import markdown
from collage_core.placement import VIEW

__all__ = ["MOST_OFF", "architectures_table"]

MOST_OFF = 1e-4
"""What is off by more than that is wrong."""

_HEADER = ("architecture", "sizes", "nodes", "placed", "off by", "on the reference", "who runs it", "commit")
_REAL_SHARE = 0.01


def architectures_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Of several sizes, the worst."""
    lines = [_line(r) for r in sorted(records, key=lambda r: str(r["title"]).lower())]
    return markdown(_HEADER, lines)


def _line(record: Mapping[str, Any]) -> list[str]:
    sizes: Mapping[str, Mapping[str, Any]] = record["sizes"]
    begin = [record["title"], ", ".join(sizes) or "-", str(record["nodes"] or "-")]
    commit = record["commit"]["id"][:7] + (", changed" if record["dirty"] else "")
    failed = [(size, told["failed"]) for size, told in sizes.items() if told["failed"]]
    if not sizes and record["failed"]:
        failed = [(record["failed"]["step"], "".join(record["failed"]["last_lines"][-1:]))]
    if failed:
        where, reason = failed[0]
        return [*begin, f"{where}: {reason}".replace("|", "\\|"), "-", "-", "-", commit]
    off = max(error for told in sizes.values() for error in told["off"].values())
    shares = [told["shares"] for told in sizes.values()]
    reference = max(s.get("reference", {}).get("share", 0.0) for s in shares)
    who = {name for s in shares for name in _running(s)}
    placed = ", ".join(str(told["nodes"]) for told in sizes.values())
    return [*begin, placed, f"{off:.0e}", f"{reference:.1%}", ", ".join(sorted(who)), commit]


def _running(shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Whose time is worth naming; whoever has nodes, where what runs as a whole was not timed by itself."""
    if any(of["share"] for of in shares.values()):
        return [name for name, of in shares.items() if of["share"] >= _REAL_SHARE]
    return [name for name, of in shares.items() if of["nodes"] and name != VIEW]
