"""`collage run`: run a bundle on arrays from files."""

from __future__ import annotations

import argparse
from typing import Any

from collage_run import command

from collage_core.cli.arguments import add_json
from collage_core.cli.output import show
from collage_core.report.tables import Table
from collage_core.runtime import load, read_profiles
from collage_core.runtime.profiles import Shapes

NAME = "run"
SUMMARY = "Run a bundle on inputs from .npy files and save or summarise its outputs."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="a file that `collage optimize -o` or `collage export` wrote")
    command.add_arguments(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    report = command.run(
        args, lambda: load(args.bundle, **command.load_arguments(args), shapes=_shapes(args))
    )
    show(report, args.json, _text)


def _shapes(args: argparse.Namespace) -> Shapes | None:
    """Of the inputs that are given, which say which profile is meant; None for a bundle that has one."""
    if args.expect:
        return None  # an exported one has one, and is not read before it is known to be that
    profiles = read_profiles(args.bundle)
    if len(profiles) == 1:
        return None
    given = command.pairs_of("--input", args.input, files=True)
    return {name: command.shape_in(name, file) for name, file in given.items()}


def _text(report: dict[str, Any]) -> str:
    rows = [
        (
            name,
            f"{o['dtype']}{o['shape']}",
            *(f"{o[k]:.6g}" if k in o else "-" for k in ("min", "mean", "max")),
            o["file"] or "",
        )
        for name, o in report["outputs"].items()
    ]
    text = str(Table(("output", "type", "min", "mean", "max", "saved as"), rows, right=[2, 3, 4]))
    return f"{text}\n\nmedian of {report['runs']} runs after the first: {report['latency_ms']:.4f} ms"
