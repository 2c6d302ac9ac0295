"""`collage-run`, also `python -m collage_run`: run an exported bundle where nothing else is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from collage_run.command import add_arguments, json_text, load_arguments, run
from collage_run.errors import CollageError
from collage_run.exported import load

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns its exit code: 0; 1 with one line that says why; 2 for wrong usage; 130 when interrupted."""
    parser = argparse.ArgumentParser(
        prog="collage-run",
        description="Run an exported bundle on inputs from .npy files: tell its outputs as JSON, save them.",
    )
    parser.add_argument("bundle", help="a file that `collage export` wrote")
    add_arguments(parser)
    args = parser.parse_args(arguments)
    try:
        told = run(args, lambda: load(args.bundle, **load_arguments(args)))
        print(json_text(told))
    except (CollageError, MemoryError, OSError) as error:
        print("collage-run:", " ".join(str(error).split()) or "out of memory", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("collage-run: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
