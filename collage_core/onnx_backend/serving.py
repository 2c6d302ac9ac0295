"""The worker's side: executables by number, which run when they are asked to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from collage_core.errors import StepError
from collage_core.formats import Array
from collage_core.ir import load_stored
from collage_core.placement import Placement
from collage_core.runtime import Executable, build
from collage_core.worker import child_state

__all__ = ["STEP_FILE", "open_executable", "run_executable"]

STEP_FILE = "step"
"""File in the graph's folder with the number of the step that is being built, or has failed when it ran:
whoever finds the worker dead reads there what it was at.
"""
_EXECUTABLES = "executables"


def open_executable(number: int, folder: Path, placement: Placement, dropped: Collection[int]) -> None:
    """Build a placement of the graph stored in `folder`, and keep it by its number. dropped: what may go."""
    for other in (*dropped, number):
        _executables().pop(other, None)
    file = folder / STEP_FILE
    _write(file, None)
    graph = load_stored(folder)
    _write(file, 0 if placement.groups else None)
    executable = build(graph, placement, progress=lambda done, of: _write(file, done if done < of else None))
    _executables()[number] = executable


def run_executable(number: int, folder: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Fresh outputs by name."""
    try:
        return _executables()[number](inputs)
    except StepError as error:
        _write(folder / STEP_FILE, error.step)
        raise


def _write(file: Path, step: int | None) -> None:
    file.write_text("" if step is None else str(step))


def _executables() -> dict[int, Executable]:
    found: dict[int, Executable] = child_state.setdefault(_EXECUTABLES, {})
    return found
