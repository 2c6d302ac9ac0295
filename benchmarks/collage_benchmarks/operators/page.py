"""docs/operators.md from trials and decisions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from collage_benchmarks.operators.evidence import Trial

__all__ = ["DECISIONS_HEADING", "page"]

DECISIONS_HEADING = "## Where the reference and ONNX Runtime differ"

_HEAD = """# Operators

Which backend runs which operator, by the version of its definition (the opset that it came with). Written by
`python -m nox -s operators`, from ONNX's node cases of one operator and from generated models of one
operator, always the same ones. Each ran on one backend, with the reference for what that declines, placed
without measuring. The [Python API](python-api.md#as-an-onnx-backend) says how.

`yes`: every case ran there and was right. `5/8`: so many did, and the others were declined for the reasons in
brackets, the shortest first. `no`: all were declined. `wrong`: at least one answer was not ONNX's. `view`:
nothing is computed, so that no backend is asked. `-`: core declines the model, for the reason in brackets.
"""
_MOST_CHARACTERS = 120
"""In a line of Markdown."""
_MOST_REASONS = 2
_QUOTED = re.compile(r"'[^']*'|(?<=\])\[[\d,]*\]")
_SHAPE = re.compile(r"(?<=[a-z0-9])\[[\d,x ]*\]")


def page(
    trials: Iterable[Trial], backends: Sequence[str], versions: Mapping[str, str], decisions: str
) -> str:
    """The whole page, in Markdown. backends: the table's columns. versions: of what was asked, by name."""
    cells: dict[tuple[str, int], dict[str, list[Trial]]] = {}
    for t in trials:
        cells.setdefault((t.operator, t.since), {}).setdefault(t.backend, []).append(t)
    notes: dict[str, int] = {}
    rows = [
        f"| {operator} | {since} | "
        + " | ".join(_cell(by_backend.get(b, ()), notes) for b in backends)
        + f" | {max(map(len, by_backend.values()))} |"
        for (operator, since), by_backend in sorted(cells.items())
    ]
    asked = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join(
        [
            _HEAD,
            *_wrapped(f"Versions: {asked}."),
            "",
            f"| operator | since | {' | '.join(backends)} | cases |",
            f"|---|---|{'---|' * len(backends)}---|",
            *rows,
            "",
            "Reasons:",
            "",
            *(line for text, number in notes.items() for line in _wrapped(f"{number}. {text}", "   ")),
            "",
            DECISIONS_HEADING,
            "",
            decisions,
            "",
        ]
    )


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of a paragraph, of which all but the first are indented. No word of a message is broken."""
    return textwrap.wrap(
        text, _MOST_CHARACTERS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _cell(trials: Sequence[Trial], notes: dict[str, int]) -> str:
    by_verdict: dict[str, list[Trial]] = {}
    for t in trials:
        by_verdict.setdefault(t.verdict, []).append(t)
    if wrong := by_verdict.get("wrong"):
        named = ", ".join(t.case for t in wrong[:_MOST_REASONS])
        return f"wrong {_note(f'wrong in {len(wrong)} of {len(trials)} cases: {named}', notes)}"
    right, declined = (len(by_verdict.get(v, ())) for v in ("right", "declined"))
    reasons = _notes(by_verdict.get("declined", ()), notes)
    if right:
        return "yes" if not declined else f"{right}/{right + declined} {reasons}"
    if declined:
        return f"no {reasons}"
    if "view" in by_verdict:
        return "view"
    return f"- {_notes(by_verdict.get('refused', ()), notes)}".rstrip()


def _shortest(trials: Sequence[Trial]) -> list[str]:
    return sorted({_general(t) for t in trials}, key=lambda text: (len(text), text))[:_MOST_REASONS]


def _general(trial: Trial) -> str:
    """A reason without the names and shapes of its case, so that alike cases share one."""
    text = _SHAPE.sub("", _QUOTED.sub("…", trial.reason))
    return " ".join(re.sub(rf"\b{re.escape(trial.operator)}\b", "it", text).split())


def _notes(trials: Sequence[Trial], notes: dict[str, int]) -> str:
    """With commas: two in brackets beside each other are a link in Markdown."""
    return ", ".join(_note(text, notes) for text in _shortest(trials))


def _note(text: str, notes: dict[str, int]) -> str:
    return f"[{notes.setdefault(text, len(notes) + 1)}]"
