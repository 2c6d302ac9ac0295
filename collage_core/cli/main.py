"""The `collage` command.

Results go to standard output, progress to standard error. Exit codes: 0 done; 1 it cannot be done, with one
line that says why; 2 wrong usage; others as the command says; 130 interrupted.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.metadata
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from traceback import walk_tb
from types import FrameType
from typing import TextIO, cast

from collage_core.cli import commands
from collage_core.cli.arguments import forget_settings, require_settings, require_texts, settings_text
from collage_core.cli.output import Dispensable, drop
from collage_core.errors import CollageError, Terminated
from collage_core.worker import RemoteError
from collage_core.worker.errors import is_own

__all__ = ["main"]

_INTERRUPTED = 130
_NO_THREAD = "can't start new thread"


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
        subparser.set_defaults(run=command.run, measures=command in commands.MEASURING)
    return parser


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # Whoever started us may have closed them; `print` would write what is for the one to the other.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    if not faulthandler.is_enabled():
        with suppress(OSError, ValueError, AttributeError):  # it is no file
            # Where a library takes this process down, what was called is told.
            faulthandler.enable(sys.stderr)
    # No answer is lost for progress that cannot be written.
    with redirect_stderr(cast(TextIO, Dispensable(sys.stderr))), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    args = argparse.Namespace(measures=False)
    try:
        forget_settings()
        args = _parser().parse_args(arguments)
        if threading.current_thread() is threading.main_thread():
            # So that `with` blocks end and temporary folders go, as on Ctrl-C.
            signal.signal(signal.SIGTERM, _terminate)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under `nohup`
                signal.signal(signal.SIGHUP, _terminate)
        require_texts(args)
        require_settings(args)
        code: int | None = args.run(args)
        sys.stdout.flush()
    except CollageError as error:
        return _fail(_text(error) + settings_text(args))
    except KeyboardInterrupt:
        _tell("interrupted; what was measured is kept" if args.measures else "interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        drop(sys.stdout)  # its reader is gone (`| head`)
        return 1
    except OSError as error:
        drop(sys.stdout)
        said = error.strerror or str(error)
        return _fail(f"{error.filename}: {said}" if error.filename else said)
    except MemoryError as error:
        return _fail(f"out of memory: {error}".removesuffix(": "))
    except RuntimeError as error:  # Python has no class of its own for this one
        if str(error) != _NO_THREAD:
            raise
        return _fail(f"out of memory or of processes: {error}")
    except SystemExit as error:
        if hasattr(args, "run") and not isinstance(error, Terminated):  # no longer argparse's own
            *_, (frame, line) = walk_tb(error.__traceback__)
            where = f"{frame.f_code.co_filename}:{line}"
            return _fail(f"a plugin would end the process: sys.exit({error.code!r}) at {where}")
        with suppress(OSError):  # argparse's own output
            sys.stdout.flush()
            raise
        drop(sys.stdout)
        return 1
    return code or 0


def _text(error: CollageError) -> str:
    """What the reference says in a worker is what a person needs, without the worker's own words."""
    if isinstance(error, RemoteError) and is_own(error.type_name):
        return error.message
    return str(error)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """In one line, without the place in our source."""
    _tell(f"note: {message}")


def _tell(message: str) -> None:
    print("collage:", " ".join(message.split("\n")), file=sys.stderr)


def _fail(message: str) -> int:
    _tell(message)
    return 1


def _nowhere() -> TextIO:
    return open(os.devnull, "w")  # closed by the interpreter, when nobody writes any more


if __name__ == "__main__":
    sys.exit(main())
