"""`collage doctor`: whether this machine is fit to measure on."""

from __future__ import annotations

import argparse
import sys

from collage_core.cli.arguments import add_json
from collage_core.cli.output import show
from collage_core.doctor import examine
from collage_core.errors import CollageError
from collage_core.plugins import default_registry
from collage_core.report.doctor import doctor_json, doctor_text, verdict

NAME = "doctor"
SUMMARY = (
    "Tell whether this machine is fit to measure on, which libraries are missing, and what to do about it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    report = doctor_json(examine(default_registry()))
    show(report, args.json, doctor_text)
    if not report["fit"]:
        sys.stdout.flush()
        raise CollageError(verdict(report))
