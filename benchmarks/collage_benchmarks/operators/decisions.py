"""What was decided where the reference and another runtime differ, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["decisions_text", "load_decisions"]

_Decision = Mapping[str, str]


def load_decisions(path: Path) -> list[_Decision]:
    """docs/operators-decisions.json."""
    decisions: list[_Decision] = json.loads(path.read_text(encoding="utf-8"))
    return decisions


def decisions_text(decisions: Sequence[_Decision]) -> str:
    """A table in Markdown: operator and opsets, case, who departs, ONNX's sentence and where it stands."""
    lines = ["| operator | opsets | case | decision | ONNX's sentence | where |", "|---|---|---|---|---|---|"]
    for d in sorted(decisions, key=lambda d: (d["operator"], d["opsets"], d["case"])):
        cells = (d["operator"], d["opsets"], d["case"], d["decision"], d["sentence"], d["source"])
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
