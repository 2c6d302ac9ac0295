"""Writes docs/operators.md: `python -m nox -s operators`. Takes some twenty minutes on two cores.

Usage: python benchmarks/operators_table.py [--cases N] [--processes N] [--decisions]
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from collage_benchmarks.node_suite import run_cases
from collage_benchmarks.operators import (
    DECISIONS_HEADING,
    Trial,
    decisions_text,
    generated_trials,
    node_trials,
    page,
)
from collage_benchmarks.operators.decisions import load_decisions

from collage_core.backend import BackendKind
from collage_core.plugins import default_registry

_DOCS = Path(__file__).parents[1] / "docs"
_PAGE = _DOCS / "operators.md"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=4, help="generated models of each definition")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--decisions", action="store_true", help="try nothing: write that section anew")
    arguments = parser.parse_args()
    decisions = decisions_text(load_decisions(_DOCS / "operators-decisions.json"))
    if arguments.decisions:
        kept, heading, _ = _PAGE.read_text(encoding="utf-8").partition(DECISIONS_HEADING)
        _PAGE.write_text(f"{kept}{heading}\n\n{decisions}\n", encoding="utf-8")
        return
    infos = [b.info() for b in default_registry().available()]
    versions = {i.name: i.library_version or "" for i in infos}
    backends = sorted(i.name for i in infos if i.kind is not BackendKind.REFERENCE)
    with ProcessPoolExecutor(arguments.processes) as processes:
        found = list(processes.map(partial(_trials, count=arguments.cases), backends))
    text = page([t for trials in found for t in trials], backends, versions, decisions)
    _PAGE.write_text(text, encoding="utf-8")


def _trials(backend: str, count: int) -> list[Trial]:
    """Everything that is tried on one backend."""
    return [*node_trials(backend, run_cases(backends=[backend])), *generated_trials(backend, count)]


if __name__ == "__main__":
    main()
