"""`collage tune`: find faster kernels for a model by trying."""

from __future__ import annotations

import argparse

from collage_core.cli.arguments import (
    add_json,
    add_target,
    costs_of,
    names_of,
    seconds_of,
    target_of,
)
from collage_core.cli.output import show
from collage_core.cli.progress import ProgressBars
from collage_core.cli.shapes import shapes_of
from collage_core.errors import CollageError
from collage_core.pipeline.tuning import tune
from collage_core.report.summary import tuning_json
from collage_core.report.text import tuning_text

NAME = "tune"
SUMMARY = (
    "Try many ways to run the groups of a model that could be faster than any backend runs them now; "
    "what is found is kept, and `optimize` chooses it where it wins."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument(
        "--backend", metavar="A,B", help="backends that tune (default: all available ones that can)"
    )
    parser.add_argument(
        "--against", metavar="A,B", help="backends to be faster than (default: all that are available)"
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=64,
        metavar="N",
        help="ways to try per kernel, those of earlier runs included (default: 64)",
    )
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help="how long to tune, as in 90s, 10m or 1h (default: until all is tried)",
    )
    add_target(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    if args.trials < 1:
        raise CollageError("--trials must be at least 1")
    with ProgressBars() as progress:
        tuning = tune(
            args.model,
            backends=names_of(args.backend),
            against=names_of(args.against),
            trials=args.trials,
            budget_s=seconds_of("--budget", args.budget),
            target=target_of(args),
            shapes=shapes_of(args, "tuning"),
            costs=costs_of(args),
            skip_passes=args.skip_pass,
            progress=progress,
        )
    report = tuning_json(tuning, args.model)
    show(report, args.json, tuning_text)
