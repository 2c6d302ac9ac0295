"""`collage optimize`: find the fastest placement and keep it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from collage_run.archives import ARCHIVE

from collage_core.cli.arguments import (
    add_json,
    add_objective,
    add_placing,
    add_rounds,
    concurrency_of,
    rounds_of,
)
from collage_core.cli.output import show
from collage_core.cli.placing import optimize_profiles_from
from collage_core.cli.progress import ProgressBars
from collage_core.errors import CollageError
from collage_core.pipeline.optimize import COLLAGE
from collage_core.pipeline.profiles import ProfileFound
from collage_core.report.keeping import keep
from collage_core.report.profiles import of_profiles, profiles_text
from collage_core.report.text import optimization_text
from collage_core.runtime.profiles import shapes_of, shapes_text
from collage_core.steering import SETTINGS
from collage_core.writable import require_replaceable

NAME = "optimize"
SUMMARY = (
    "Measure what is not known yet, find the fastest placement of a model, prove it end to end, "
    "and save it as a bundle."
)


def add_arguments(parser: argparse.ArgumentParser, settings: Collection[str] = SETTINGS) -> None:
    """settings: see `add_placing`."""
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("-o", "--output", metavar="FILE", help="bundle to write (default: none)")
    add_objective(parser, "as many of N requests that are asked at a time (default: as there are threads)")
    add_rounds(parser, "each end-to-end comparison")
    add_placing(parser, settings)
    parser.add_argument(
        "--pad",
        metavar="DIMENSION",
        help="serve requests of fewer rows along this dimension, whose last one is repeated, where rows are "
        "proven independent: one that the model names, or INPUT:AXIS,... (default: of none)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    if args.output is not None:
        read = {"model": args.model} | ({"cost database": args.costs} if args.costs else {})
        require_replaceable(args.output, read, ARCHIVE, "bundle")  # whole or not
    if args.concurrency is not None and concurrency_of(args) is None:
        raise CollageError("--concurrency goes with --objective throughput")
    rounds = rounds_of(args)
    best: Sequence[ProfileFound] = ()

    def keep_best(found: Sequence[ProfileFound]) -> None:
        nonlocal best
        keep(found, args.model, args.output, is_all=False)
        best = found

    with ProgressBars() as progress:
        try:
            found = optimize_profiles_from(args, progress, rounds, keep_best)
            progress.phase("writing the bundle")
            reports = keep(found, args.model, args.output)
            best = found
        except (KeyboardInterrupt, SystemExit):
            progress.note(_left(best, args.output))
            raise
    shapes = [shapes_text(shapes_of(one.optimization.graph)) for one in found]
    show(of_profiles(reports, shapes), args.json, lambda told: _text(told, args.output))


def _text(told: Mapping[str, Any], output: str | None) -> str:
    return profiles_text(told, lambda report: optimization_text({**report, "output": output}))


def _left(found: Sequence[ProfileFound], output: str | None) -> str:
    """What there is of an optimization that was interrupted."""
    if not found:
        return "nothing had been run to the end yet; what was measured is kept, and the next call goes on"
    *done, (best, _) = [(one.optimization, one.rows) for one in found]
    where = f"{output} holds" if output else "without --output it is not saved:"
    took_ms = best.comparison.median_ms(COLLAGE) if best.comparison else None
    took = "" if took_ms is None else f", {took_ms:.3f} ms"
    after = f"what was found for {len(done)} shapes before, and of the next " if done else ""
    return f"{where} {after}the best so far, {best.chosen}{took}: {best.stage}; the next call goes on"
