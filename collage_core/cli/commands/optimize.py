"""`collage optimize`: find the fastest placement and keep it."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from collage_core.cli.arguments import (
    add_json,
    add_objective,
    add_placing,
    add_rounds,
    concurrency_of,
    rounds_of,
)
from collage_core.cli.output import require_replaceable, require_writable, show
from collage_core.cli.placing import optimize_from
from collage_core.cli.progress import ProgressBars
from collage_core.errors import CollageError
from collage_core.pipeline.optimize import COLLAGE, Optimization
from collage_core.report.summary import optimization_json
from collage_core.report.text import optimization_text
from collage_core.runtime.bundle import Bundle, holds, save
from collage_core.steering import SETTINGS

NAME = "optimize"
SUMMARY = (
    "Measure what is not known yet, find the fastest placement of a model, prove it end to end, "
    "and save it as a bundle."
)
_OF_ONE_CALL = ("is_cut_short", "original", "search")
"""Parts of a report that say what a call had to do for its answer."""
_ARCHIVE = b"PK\x03\x04"
"""How a bundle begins, as other ZIP archives."""


def add_arguments(parser: argparse.ArgumentParser, settings: Collection[str] = SETTINGS) -> None:
    """settings: see `add_placing`."""
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("-o", "--output", metavar="FILE", help="bundle to write (default: none)")
    add_objective(parser, "as many of N requests that are asked at a time (default: as there are threads)")
    add_rounds(parser, "each end-to-end comparison")
    add_placing(parser, settings)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    if args.output is not None:
        _require_writable(args.output, args.model)
    if args.concurrency is not None and concurrency_of(args) is None:
        raise CollageError("--concurrency goes with --objective throughput")
    rounds = rounds_of(args)
    best: Optimization | None = None

    def keep(found: Optimization) -> dict[str, Any]:
        nonlocal best
        report = optimization_json(found, args.model)
        bundle = Bundle(found.graph, found.placement, report, singles=found.rivals, serving=found.serving)
        # What was found before, and is there, stays as it is: with when and how long it was measured.
        if args.output and not (found.is_recalled and holds(args.output, bundle, whatever=_OF_ONE_CALL)):
            save(bundle, args.output)
        best = found
        return report

    with ProgressBars() as progress:
        try:
            optimization = optimize_from(args, progress, rounds, keep)
            progress.phase("writing the bundle")
            report = keep(optimization)
        except (KeyboardInterrupt, SystemExit):
            progress.note(_left(best, args.output))
            raise
    show(report, args.json, lambda report: optimization_text({**report, "output": args.output}))


def _left(best: Optimization | None, output: str | None) -> str:
    """What there is of an optimization that was interrupted."""
    if best is None:
        return "nothing had been run to the end yet; what was measured is kept, and the next call goes on"
    where = f"{output} holds" if output else "without --output it is not saved:"
    took_ms = best.comparison.median_ms(COLLAGE) if best.comparison else None
    took = "" if took_ms is None else f", {took_ms:.3f} ms"
    return f"{where} the best so far, {best.chosen}{took}: {best.stage}; the next call goes on"


def _require_writable(output: str, model: str) -> None:
    """As `require_writable`; neither the model is replaced, nor anything that is no bundle."""
    path = require_writable(output, {"model": model})
    require_replaceable(path, output, _ARCHIVE, "bundle")  # whole or not
