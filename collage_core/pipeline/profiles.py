"""A model for several shapes of its inputs: an optimization of each, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from collage_core.errors import CollageError, ModelError
from collage_core.ir.row_axes import RowAxes
from collage_core.ir.static import require_static
from collage_core.measuring.progress import Progress, Silent, Timed
from collage_core.pipeline.optimization import Optimization
from collage_core.pipeline.optimize import optimize
from collage_core.pipeline.padding import rows_of
from collage_core.pipeline.reading import read_model
from collage_core.plugins import Registry, default_registry
from collage_core.runtime.profiles import (
    Interface,
    Shapes,
    interface_of,
    require_apart,
    require_same_interface,
    shapes_of,
    shapes_text,
)

__all__ = ["ProfileFound", "optimize_profiles"]

_OF_ONE_SHAPE = ("inputs", "calibration")
"""Options of `optimize` that are arrays of the inputs' shapes."""


@dataclass(frozen=True, slots=True)
class ProfileFound:
    """What was found for one profile. rows: of requests that may be padded to it, None where none may."""

    optimization: Optimization
    rows: RowAxes | None = None


def optimize_profiles(
    model: str | Path | onnx.ModelProto,
    profiles: Sequence[Shapes],
    *,
    pad: str | None = None,
    budget_s: float | None = None,
    progress: Progress | None = None,
    on_best: Callable[[tuple[ProfileFound, ...]], object] = lambda found: None,
    **options: Any,
) -> tuple[ProfileFound, ...]:
    """As `optimize`, with its other options, for each of several shapes, in that order. What one of them
    measures, the next ones know.

    profiles: shapes by the names of inputs or of symbolic dimensions. pad: the dimension (of the model, by
    its name, or as INPUT:AXIS) of independent rows, along which requests may be padded; ModelError, naming a
    node, where they cannot be proven independent. budget_s: seconds for all of them together: each has an
    equal part; where None, each has the effort's own.

    on_best: called whenever something better was run for one of them, and when one of them is done and
    another begins, with what there is by then: of the profiles that have an answer, in order.
    """
    require_apart(profiles)
    given = [name for name in _OF_ONE_SHAPE if options.get(name) is not None]
    if given and len(profiles) > 1:
        raise CollageError(f"{given[0]} is of one shape, and there are {len(profiles)} profiles")
    if options.get("concurrency") is not None and len(profiles) > 1:
        raise CollageError(f"throughput is told of one shape, and there are {len(profiles)} profiles")
    registry = options.get("registry") or default_registry()
    if len(profiles) > 1:
        _require_readable(model, profiles, options.get("skip_passes", ()), registry)
    rows = [None if pad is None else rows_of(model, shapes, pad, registry) for shapes in profiles]
    if pad is not None and not any(rows):
        raise CollageError(f"no profile has more than one row along {pad}, to which others could be padded")
    if budget_s is not None and not budget_s >= 0.0:
        raise CollageError(f"budget_s is a number of seconds from 0 on, not {budget_s!r}")
    told: Progress = progress or Silent()
    found = list[ProfileFound]()
    # Not of what others have left: what is found is kept under its time, the same in the next call.
    share_s = None if budget_s is None else budget_s / len(profiles)
    if len(profiles) > 1:
        told.limit(None if budget_s == math.inf else budget_s)
        told = _Within(told)
    for number, shapes in enumerate(profiles):
        if len(profiles) > 1:
            told.note(f"profile {number + 1} of {len(profiles)}: {shapes_text(shapes)}")

        def better(best: Optimization, number: int = number) -> None:
            on_best((*found, ProfileFound(best, rows[number])))

        done = optimize(model, shapes=shapes, budget_s=share_s, progress=told, on_best=better, **options)
        found.append(ProfileFound(done, rows[number]))
        if number + 1 < len(profiles):
            on_best(tuple(found))
    return tuple(found)


def _require_readable(
    model: str | Path | onnx.ModelProto,
    profiles: Sequence[Shapes],
    skip_passes: Collection[str],
    registry: Registry,
) -> None:
    """A shape that the model cannot have is told now, not when the profiles before it have taken minutes."""

    def read(shapes: Shapes) -> tuple[Shapes, Interface]:
        """What is compared, and no more: a graph has its weights."""
        graph = read_model(model, shapes, skip_passes, registry, Silent()).graph
        require_static(graph)
        return shapes_of(graph), interface_of(graph)

    found = []
    for number, shapes in enumerate(profiles, 1):
        try:
            found.append(read(shapes))
        except ModelError as error:
            raise ModelError(f"profile {number} of {len(profiles)}: {error}") from error
    require_apart([shapes for shapes, _ in found])
    require_same_interface([interface for _, interface in found])


class _Within(Timed):
    """Tells no limit: that of one profile is not that of all."""

    def limit(self, seconds: float | None) -> None:
        pass
