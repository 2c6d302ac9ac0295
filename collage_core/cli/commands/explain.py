"""`collage explain`: why a bundle is placed as it is."""

from __future__ import annotations

import argparse

from collage_core.cli.arguments import add_json
from collage_core.cli.output import show
from collage_core.errors import BundleError
from collage_core.report.summary import placement_json
from collage_core.report.text import explain_text
from collage_core.runtime.bundle import read

NAME = "explain"
SUMMARY = "Show a bundle's groups, conversions and costs, and why backends declined or failed."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="a file that `collage optimize -o` wrote")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    bundle = read(args.bundle)
    report = dict(bundle.report) or placement_json(bundle.graph, bundle.placement)
    try:
        text = "" if args.json else explain_text(report)
    except Exception as error:  # anyone may have written the report
        raise BundleError(f"{args.bundle}: its report is damaged ({error!r})") from None
    show(report, args.json, lambda _: text)
