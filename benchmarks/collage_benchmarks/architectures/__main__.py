"""`python -m collage_benchmarks.architectures [NAME ...]`: exports, places and compares; then the table.

A record of each goes to docs/results/architectures, in place of the one before. The table in
docs/results/architectures.md is written anew from all of them. Each takes one to three minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage_run.files import replacing

from collage_benchmarks.architectures.table import MOST_OFF, architectures_table
from collage_benchmarks.architectures.trying import tried
from collage_benchmarks.evidence.machine import end_on_sigterm
from collage_benchmarks.evidence.pages import replaced
from collage_benchmarks.evidence.repository import commit_of, root_of
from collage_core.errors import CollageError

__all__ = ["main"]

_FOLDER, _PAGE = Path("docs/results/architectures"), Path("docs/results/architectures.md")
_NEEDED = ("torch", "transformers", "onnxscript")
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where it cannot be done, or an architecture is not placed, or answered wrongly."""
    parser = argparse.ArgumentParser(
        prog="python -m collage_benchmarks.architectures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all of them")
    parser.add_argument("--list", action="store_true", help="name them, and try none")
    parser.add_argument("--table", action="store_true", help="write the table, and try none")
    args = parser.parse_args(arguments)
    end_on_sigterm()
    try:
        return _run(args)
    except CollageError as error:
        print(f"architectures: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("architectures: interrupted; what was tried before is kept", file=sys.stderr)
        return _INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    titles = {} if args.table else _titles()
    if args.list:
        print("\n".join(f"{name:18}{title}" for name, title in titles.items()))
        return 0
    root, code = root_of(Path.cwd()), 0
    if not args.table:
        if unknown := [name for name in args.names if name not in titles]:
            raise CollageError(f"unknown architecture {unknown[0]!r}; known: {', '.join(titles)}")
        for name in args.names or titles:
            record = {**tried(name, commit_of(root)), "title": titles[name]}
            _write(root / _FOLDER / f"{name}.json", json.dumps(record, indent=1) + "\n")
            reason = _wrong(record)
            print(f"{name}: {reason or 'right'}", flush=True)
            code = code or int(reason is not None)
    records = [json.loads(path.read_text()) for path in sorted((root / _FOLDER).glob("*.json"))]
    page = root / _PAGE
    _write(page, replaced(page.read_text(), {"architectures": lambda: architectures_table(records)}))
    return code


def _wrong(record: Mapping[str, Any]) -> str | None:
    """What is wrong with what was tried."""
    for size, told in record["sizes"].items():
        if told["failed"]:
            return f"{size}: {told['failed']}"
        if (off := max(told["off"].values())) > MOST_OFF:
            return f"{size}: off by {off:.0e}"
    return f"{record['failed']['step']} failed" if record["failed"] else None


def _titles() -> dict[str, Any]:
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise CollageError(f"{', '.join(missing)} missing: pip install 'collage-benchmarks[architectures]'")
    command = [sys.executable, "-P", "-m", "collage_benchmarks.architectures.exporting", "--list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if listed.returncode:
        raise CollageError("the architectures cannot be imported; why is told above")
    return dict(json.loads(listed.stdout))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
