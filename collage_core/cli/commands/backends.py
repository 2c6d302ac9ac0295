"""`collage backends`: what was discovered."""

from __future__ import annotations

import argparse

from collage_core.cli.arguments import add_json
from collage_core.cli.output import show
from collage_core.plugins import default_registry
from collage_core.report.backends import backends_json
from collage_core.report.text import backends_text

NAME = "backends"
SUMMARY = "List the installed backends and peers, their versions, and why one is not available."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    report = backends_json(default_registry())
    show(report, args.json, backends_text)
