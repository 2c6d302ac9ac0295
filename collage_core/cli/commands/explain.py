"""`collage explain`: why a bundle is placed as it is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage_run.files import replacing

from collage_core.cli.arguments import add_json
from collage_core.cli.output import require_replaceable, require_writable, show
from collage_core.errors import BundleError, CollageError
from collage_core.report.front import front_svg
from collage_core.report.summary import placement_json
from collage_core.report.text import explain_text
from collage_core.runtime.bundle import read
from collage_core.steering import placement_yaml

NAME = "explain"
SUMMARY = "Show a bundle's groups, conversions and costs, and why backends declined or failed."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="a file that `collage optimize -o` wrote")
    parser.add_argument(
        "--front",
        metavar="FILE.svg",
        help="draw time against error there, of what was tried to hold --max-error",
    )
    parser.add_argument(
        "--placement",
        metavar="FILE.yaml",
        help="write there who runs what, to be changed and given to `collage place`",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    for file, begins, what in ((args.front, b"<svg", "picture"), (args.placement, b"version:", "placement")):
        if file is not None:
            require_replaceable(require_writable(file), file, begins, what)
    bundle = read(args.bundle)
    report = dict(bundle.report) or placement_json(bundle.graph, bundle.placement)
    try:
        text = "" if args.json else explain_text(report)
        picture = None if args.front is None else _front(report, args.bundle)
    except CollageError:
        raise
    except Exception as error:  # anyone may have written the report
        raise BundleError(f"{args.bundle}: its report is damaged ({error!r})") from None
    placement = None if args.placement is None else placement_yaml(bundle.graph, bundle.placement)
    for path, content in ((args.front, picture), (args.placement, placement)):
        if content is not None:
            with replacing(Path(path)) as file:
                file.write_text(content, encoding="utf-8")
    show(report, args.json, lambda _: text)


def _front(report: Mapping[str, Any], file: str) -> str:
    limit = report.get("error_limit") or {}
    if not limit.get("tried"):
        raise BundleError(f"{file}: no error was limited by --max-error, and no front is known")
    return front_svg(limit, str(report.get("model") or file))
