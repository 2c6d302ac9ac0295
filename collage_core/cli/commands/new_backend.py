"""`collage new-backend`: begin a package that brings a backend."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from collage_run.printable import printable_line

from collage_core.cli.arguments import add_json
from collage_core.cli.output import show
from collage_core.cli.skeleton import write_skeleton
from collage_core.plugins import default_registry

NAME = "new-backend"
SUMMARY = (
    "Write a package that brings a backend of one kernel, with tests that it passes: a library's goes there."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the backend: a lower-case identifier")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--graph",
        action="store_const",
        dest="kind",
        const="graph",
        help="of a library that optimises across kernels (default: one kernel per group)",
    )
    kinds.add_argument(
        "--device",
        action="store_const",
        dest="kind",
        const="device",
        help="of kernels on a device of its own, which the package brings as well",
    )
    parser.set_defaults(kind="operator")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where to (default: collage-NAME)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    folder = Path(args.output or f"collage-{args.name}")
    files = write_skeleton(args.name, args.kind, folder, default_registry())
    report = {
        "backend": args.name,
        "kind": args.kind,
        "folder": str(folder),
        "files": [str(f.relative_to(folder)) for f in files],
    }
    show(report, args.json, _text)


def _text(report: dict[str, Any]) -> str:
    folder = printable_line(report["folder"])
    package, tests = shlex.quote(f"{folder}[test]"), shlex.quote(folder)
    return (
        f"written: {folder} ({', '.join(report['files'])})\n"
        f"next: python -m pip install -e {package} && python -m pytest {tests}"
    )
