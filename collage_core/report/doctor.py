"""What `collage doctor` has found, as JSON values and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from collage_core.doctor import Finding, Level

__all__ = ["doctor_json", "doctor_text", "verdict"]

_LINES_OF_A_CHECK = 4


def doctor_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """fit: whether there is no problem. findings: in their order."""
    told = [{"check": f.check, "level": f.level.value, "what": f.what, "advice": f.advice} for f in findings]
    return {"fit": all(f["level"] != Level.PROBLEM.value for f in told), "findings": told}


def doctor_text(report: Mapping[str, Any]) -> str:
    """A line for each finding: what is the case, then what to do about it; of a check that has found many of
    one level, the first few. In the end the verdict, unless a command fails with it.
    """
    lines = []
    for (level, check), same in groupby(report["findings"], key=lambda f: (f["level"], f["check"])):
        found = list(same)
        texts = [" ".join(f"{f['what']} {f['advice']}".split()) for f in found[:_LINES_OF_A_CHECK]]
        if more := len(found) - len(texts):
            texts[-1] += f" And {more} more, which --json lists."
        lines += [f"{level:7}  {check}: {text}" for text in texts]
    return "\n".join([*lines, *([f"\n{verdict(report)}"] if report["fit"] else [])])


def verdict(report: Mapping[str, Any]) -> str:
    """In a line, whether this machine is fit to measure on, and how many findings are not ok."""
    counts = Counter(f["level"] for f in report["findings"])
    told = [
        f"{n} {word if n == 1 or word == Level.UNKNOWN.value else word + 's'}"
        for word in (Level.PROBLEM.value, Level.WARNING.value, Level.UNKNOWN.value)
        if (n := counts[word])
    ]
    fit = "fit" if report["fit"] else "not fit"
    return f"this machine is {fit} to measure on" + (f": {', '.join(told)}" if told else "")
