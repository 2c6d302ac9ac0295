"""The `collage` command.

Results go to standard output, progress to standard error. Exit codes: 0 done; 1 it cannot be done, with one
line that says why; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from collage_core.cli import commands
from collage_core.errors import CollageError

__all__ = ["main"]

_INTERRUPTED = 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="collage",
        description="Place the operators of an ONNX model on the backends installed here, by measurement.",
    )
    parser.add_argument("--version", action="version", version=importlib.metadata.version("collage-core"))
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in commands.ALL:
        subparser = subparsers.add_parser(command.NAME, help=command.SUMMARY, description=command.SUMMARY)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parser().parse_args(arguments)
    if threading.current_thread() is threading.main_thread():
        # So that `with` blocks end and temporary folders go, as on Ctrl-C.
        signal.signal(signal.SIGTERM, _terminate)
    try:
        args.run(args)
        sys.stdout.flush()
    except CollageError as error:
        print(f"collage: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("collage: interrupted; what was measured is kept", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`| head`); the interpreter must not complain when it flushes at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"collage: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
