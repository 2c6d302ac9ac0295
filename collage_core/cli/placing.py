"""From command-line arguments to an optimisation."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from collage_core.cli.arguments import (
    calibration_of,
    concurrency_of,
    constraints_of,
    costs_of,
    metric_of,
    names_of,
    seconds_of,
    shapes_of,
    target_of,
)
from collage_core.measuring.progress import Progress
from collage_core.pipeline.effort import effort_named
from collage_core.pipeline.optimize import Optimization, optimize
from collage_core.pipeline.searches import search_named
from collage_core.plugins import default_registry
from collage_core.steering import read_placement
from collage_core.target import Target

__all__ = ["optimize_from"]


def optimize_from(
    args: argparse.Namespace,
    progress: Progress,
    rounds: int | None,
    on_best: Callable[[Optimization], object] = lambda best: None,
) -> Optimization:
    """Optimise `args.model` as the options of `add_placing` and `add_objective` say, and `args.placement`, a
    file, where there is one. on_best: see `optimize`.
    """
    registry = default_registry()
    placement = None if args.placement is None else read_placement(args.placement)
    return optimize(
        args.model,
        backends=names_of(args.backends),
        target=target_of(args, None if placement is None else placement.target(Target.default())),
        shapes=shapes_of(args),
        costs=costs_of(args),
        skip_passes=args.skip_pass,
        constraints=constraints_of(args, registry),
        placement=placement,
        searcher=search_named(args.level, registry),
        budget_s=seconds_of("--budget", args.budget),
        seed=args.seed,
        effort=effort_named(args.effort),
        on_best=on_best,
        rounds=rounds,
        progress=progress,
        verify=args.verify,
        max_error=args.max_error,
        metric=metric_of(args),
        calibration=calibration_of(args),
        concurrency=concurrency_of(args),
    )
