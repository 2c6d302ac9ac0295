"""`collage place`: a placement that a file describes."""

from __future__ import annotations

import argparse

from collage_core.cli.commands import optimize
from collage_core.steering import SETTINGS

NAME = "place"
SUMMARY = (
    "Place a model as a file says, which `explain --placement` writes: a file that leaves nothing open is "
    "built and run as it is; of any other the rest is filled in as `optimize` does."
)


_THE_FILES_OWN = {"backends", "devices", "exclude", "keep-together", "pin", "precision", "threads"}
"""Settings that say who runs what, as the placement does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    optimize.add_arguments(parser, {*SETTINGS} - _THE_FILES_OWN)
    parser.add_argument(
        "--placement", metavar="FILE.yaml", required=True, help="who runs what, and what is left open"
    )


def run(args: argparse.Namespace) -> None:
    optimize.run(args)
