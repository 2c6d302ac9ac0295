"""`collage export`: a bundle that brings its kernels, compiled and packed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from collage_run.archives import ARCHIVE
from collage_run.printable import printable_line

from collage_core.cli.arguments import add_json
from collage_core.cli.output import show
from collage_core.cli.shapes import add_profile, shapes_of
from collage_core.runtime import export, read
from collage_core.writable import require_replaceable

NAME = "export"
SUMMARY = (
    "Write a bundle that brings its kernels, compiled and packed, for processors like this one: loading it "
    "compiles nothing. It holds machine code."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="a file that `collage optimize -o` wrote")
    add_profile(parser, "none: an exported bundle has one")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write it")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    require_replaceable(args.output, {"bundle": args.bundle}, ARCHIVE, "bundle")
    digest = export(read(args.bundle, check_weights=True, shapes=shapes_of(args, "export")), args.output)
    report = {"file": args.output, "digest": digest, "bytes": Path(args.output).stat().st_size}
    show(report, args.json, _text)


def _text(report: dict[str, Any]) -> str:
    file, digest = printable_line(report["file"]), report["digest"]
    return (
        f"exported as {file} ({report['bytes'] / 1e6:.1f} MB), with machine code for this processor\n"
        f"digest: {digest}\n"
        f"to run it: collage run {file} --allow-code --expect {digest} --input NAME=FILE.npy"
    )
