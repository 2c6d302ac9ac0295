"""From command-line arguments to an optimisation."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from collage_core.cli.arguments import (
    calibration_of,
    concurrency_of,
    constraints_of,
    costs_of,
    metric_of,
    names_of,
    seconds_of,
    target_of,
)
from collage_core.cli.shapes import profiles_of, shapes_of
from collage_core.measuring.progress import Progress
from collage_core.pipeline.effort import effort_named
from collage_core.pipeline.optimize import Optimization, optimize
from collage_core.pipeline.profiles import ProfileFound, optimize_profiles
from collage_core.pipeline.searches import search_named
from collage_core.plugins import default_registry
from collage_core.steering import read_placement
from collage_core.target import Target

__all__ = ["optimize_from", "optimize_profiles_from"]


def optimize_from(args: argparse.Namespace, progress: Progress, rounds: int | None) -> Optimization:
    """Optimise `args.model` as the options of `add_placing` and `add_objective` say, which ask for one
    shape.
    """
    shapes = shapes_of(args, "this command")
    return optimize(args.model, shapes=shapes, progress=progress, rounds=rounds, **_options(args))


def optimize_profiles_from(
    args: argparse.Namespace,
    progress: Progress,
    rounds: int | None,
    on_best: Callable[[tuple[ProfileFound, ...]], object],
) -> tuple[ProfileFound, ...]:
    """The same for all shapes that they ask for, as `args.placement` says, a file, where there is one, and
    `args.pad`. on_best: see `optimize_profiles`.
    """
    return optimize_profiles(
        args.model,
        profiles_of(args),
        pad=args.pad,
        progress=progress,
        on_best=on_best,
        rounds=rounds,
        **_options(args),
    )


def _options(args: argparse.Namespace) -> Mapping[str, Any]:
    registry = default_registry()
    placement = None if args.placement is None else read_placement(args.placement)
    return {
        "backends": names_of(args.backends),
        "target": target_of(args, None if placement is None else placement.target(Target.default())),
        "costs": costs_of(args),
        "skip_passes": args.skip_pass,
        "constraints": constraints_of(args, registry),
        "placement": placement,
        "searcher": search_named(args.level, registry),
        "budget_s": seconds_of("--budget", args.budget),
        "seed": args.seed,
        "effort": effort_named(args.effort),
        "verify": args.verify,
        "max_error": args.max_error,
        "metric": metric_of(args),
        "calibration": calibration_of(args),
        "concurrency": concurrency_of(args),
    }
