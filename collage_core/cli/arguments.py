"""Arguments that several commands share, and how their texts become values."""

from __future__ import annotations

import argparse
import math
import os
import zipfile
import zlib
from collections.abc import Collection, Mapping
from functools import cache

import numpy as np
from collage_run.command import pairs_of
from collage_run.files import regular

from collage_core.candidates import Constraints
from collage_core.cli.shapes import add_shape
from collage_core.errors import CollageError
from collage_core.formats import CPU, Array
from collage_core.ir.onnx_check import one_line
from collage_core.measuring.metric import Metric, metric_in
from collage_core.pipeline.effort import EFFORTS, NORMAL
from collage_core.plugins import Registry, default_registry
from collage_core.serving import MOST_AT_A_TIME
from collage_core.steering import SETTINGS, Setting, read_settings
from collage_core.target import PRECISIONS, Target
from collage_core.writable import require_folder

__all__ = [
    "add_costs",
    "add_json",
    "add_objective",
    "add_placing",
    "add_reading",
    "add_rounds",
    "add_settings",
    "add_target",
    "calibration_of",
    "concurrency_of",
    "constraints_of",
    "costs_of",
    "count_of",
    "forget_settings",
    "metric_of",
    "names_of",
    "require_settings",
    "rounds_of",
    "samples_in",
    "seconds_of",
    "settings_text",
    "target_of",
]

_MOST_ROUNDS = 10_000
_OBJECTIVES = ("latency", "throughput")
_OF_TARGET = ("devices", "precision", "threads", "skip-pass")
"""Settings of every command that measures."""
_DESTINATIONS = {"pin": "pins_set"}
"""Where settings go that do not go where their options do."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@cache
def _settings() -> tuple[Mapping[str, Setting], CollageError | None]:
    try:
        return read_settings(), None
    except CollageError as error:
        return {}, error


def forget_settings() -> None:
    """Read the files again when they are asked for next: once a command."""
    _settings.cache_clear()


def add_settings(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Have files set these options of the command, by their names, where it is not told otherwise. What is
    wrong with those files is raised by `require_settings`, when it is known which command is meant.
    """
    found, _ = _settings()
    mine = {name: setting for name, setting in found.items() if name in names}
    # Pins that are given go before those that are set, one by one.
    parser.set_defaults(**{_DESTINATIONS.get(n, n.replace("-", "_")): s.value for n, s in mine.items()})
    earlier = parser.get_default("settings") or {}
    parser.set_defaults(settings={**earlier, **{n: s.where for n, s in mine.items()}})


def require_settings(args: argparse.Namespace) -> None:
    """CollageError, with file and line, where a file that sets options of this command is wrong."""
    _, error = _settings()
    if error is not None and getattr(args, "settings", None) is not None:
        raise error


def require_texts(args: argparse.Namespace) -> None:
    """CollageError for what was given and is empty: as a path that would be the current folder."""
    for name, given in vars(args).items():
        if "" in (given if isinstance(given, list) else [given]):
            raise CollageError(f"argument {name}: it is empty")


def settings_text(args: argparse.Namespace) -> str:
    """What is set for a command by files, for its message when it fails; "" where nothing is."""
    told = ", ".join(f"{name} ({where})" for name, where in (getattr(args, "settings", None) or {}).items())
    return f"; set by files: {told}" if told else ""


def add_costs(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument(
        "--costs",
        metavar="FILE",
        default=default,
        help="cost database, in a folder that is there (default: in the user's cache folder)",
    )
    if default is None:
        add_settings(parser, ["costs"])


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def add_placing(parser: argparse.ArgumentParser, settings: Collection[str] = SETTINGS) -> None:
    """What `optimize` and `bench` need to place a model. settings: what files may set of it."""
    parser.add_argument(
        "--backends", metavar="A,B", help="backends that may take part (default: all that are available)"
    )
    add_target(parser, settings)
    parser.add_argument(
        "--max-error",
        type=float,
        metavar="1e-2",
        help="round what gains most time for its error, while that makes no output be off by more than this "
        "of its largest element, on inputs that nothing was chosen by (default: as --precision says)",
    )
    parser.add_argument(
        "--metric",
        metavar="FILE.py:FUNCTION",
        help="what --max-error limits instead: a Python function of outputs and expected outputs, each by "
        "name with samples along a further axis in front, that returns how far they are off",
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE.npz",
        help="inputs to weigh errors with, by name, samples along a further axis in front "
        "(default: they are made up)",
    )
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="NODES=BACKEND",
        help="run these nodes on this backend; NODES is here and below a node's name, a glob of names, or an "
        "operator",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="BACKEND[:NODES]",
        help="keep a backend, or it from these nodes, out",
    )
    parser.add_argument(
        "--keep-together",
        action="append",
        default=[],
        metavar="NODES[,NODES]",
        help="run these nodes as one group, whoever does",
    )
    parser.add_argument(
        "--verify",
        metavar="PEER",
        help="ask this runtime what the model answers as it was given, and stop where the reference says "
        "something else (default: nobody is asked)",
    )
    parser.add_argument(
        "--level",
        default="op",
        metavar="op|graph",
        help="how far to search: op, exactly from measured costs (default); graph, from there on by "
        "evolution, measured end to end; or the name of a search that a plugin brings",
    )
    parser.add_argument(
        "--effort",
        default=NORMAL.name,
        metavar="|".join(EFFORTS),
        help="; ".join(f"{e.name}: {e.promise}" for e in EFFORTS.values()) + f" (default: {NORMAL.name})",
    )
    parser.add_argument(
        "--budget",
        metavar="60s",
        help="how long all of it may take (default: as the effort has it, "
        + ", ".join(f"{e.name} {e.budget_s:g}s" for e in EFFORTS.values() if e.budget_s is not None)
        + ")",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of what such a search leaves to chance (default: 0)"
    )
    parser.set_defaults(placement=None, pins_set=[])
    add_settings(parser, settings)


def add_objective(parser: argparse.ArgumentParser, concurrency: str) -> None:
    """concurrency: what the option of that name does."""
    parser.add_argument(
        "--objective",
        choices=_OBJECTIVES,
        default=_OBJECTIVES[0],
        help="what is to be best: latency, of one request at a time (default), or throughput, of several: "
        "sessions beside each other, each with its share of the threads",
    )
    parser.add_argument("--concurrency", type=int, metavar="N", help=concurrency)


def add_rounds(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"alternating rounds of {what}, at least, two in each sitting: more where they are cheap "
        "(default: three sittings for all, eight and more for those who are close)",
    )


def add_target(parser: argparse.ArgumentParser, settings: Collection[str] = SETTINGS) -> None:
    """What every command needs that measures kernels of a model: for what device, which model exactly, where
    costs are kept. settings: see `add_placing`.
    """
    parser.add_argument("--devices", metavar="cpu,A", help=f"devices that may take part (default: {CPU})")
    parser.add_argument(
        "--precision",
        metavar="A,B",
        help="float types to which values may be rounded where they are stored: bf16, fp16 (default: none)",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads for every library (default: all of this process)"
    )
    add_reading(parser)
    add_costs(parser)
    add_settings(parser, {*_OF_TARGET} & {*settings})


def add_reading(parser: argparse.ArgumentParser) -> None:
    """How a model is read: which one exactly, and how it is normalised."""
    add_shape(parser)
    parser.add_argument(
        "--skip-pass", action="append", default=[], metavar="NAME", help="leave out a normalising pass"
    )


def target_of(args: argparse.Namespace, default: Target | None = None) -> Target:
    """With devices that are here; CollageError says which are. default: what holds where nothing is said."""
    default = default or Target.default()
    threads = default.threads if args.threads is None else args.threads
    registry = default_registry()
    named = default.accelerators if args.devices is None else names_of(args.devices) or ()
    devices = [registry.device(name).name for name in named]
    precisions = default.precisions
    if args.precision is not None:
        precisions = tuple(PRECISIONS.get(name.lower(), name) for name in names_of(args.precision) or ())
    return Target(CPU, threads, precisions, tuple(name for name in devices if name != CPU))


def costs_of(args: argparse.Namespace, *, there: bool = False) -> str | None:
    """The cost database that `add_costs` asks for; None for the default one, whose folders are made.

    CollageError where a mistyped name would make folders. there: for what only reads or deletes, also where
    it would make a file.
    """
    file: str | None = args.costs
    if file is not None:
        require_folder("--costs", file)
    if file is not None and there and not os.path.lexists(file):
        raise CollageError(f"--costs {file}: no such file")
    return file


def metric_of(args: argparse.Namespace) -> Metric | None:
    """The function that `--metric` names beside `--max-error`; None where nothing was given. CollageError
    where there is none.
    """
    if args.metric is None:
        return None
    if args.max_error is None:
        raise CollageError("--metric says nothing without --max-error")
    return metric_in(args.metric)


def calibration_of(args: argparse.Namespace) -> dict[str, Array] | None:
    """The arrays of `--calibrate` beside `--max-error`; None where nothing was given. CollageError where they
    cannot be read.
    """
    if args.calibrate is None:
        return None
    if args.max_error is None:
        raise CollageError("--calibrate says nothing without --max-error")
    return samples_in(args.calibrate)


def samples_in(file: str) -> dict[str, Array]:
    """The arrays of a file that `--calibrate` names. CollageError where they cannot be read."""
    try:
        with open(file, "rb", opener=regular) as opened:
            arrays = np.load(opened, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise CollageError(f"--calibrate {file}: it holds one array; arrays by name are a .npz file")
            return {name: arrays[name] for name in arrays.files}
    except ValueError as error:
        why = one_line(error)
        # Of whatever it does not know NumPy thinks that it is a pickle, and tells how to load one.
        raise CollageError(f"--calibrate {file}: {'not a .npz file' if 'pickled' in why else why}") from None
    except OSError as error:
        raise CollageError(f"--calibrate {file}: {error.strerror or one_line(error)}") from None
    except (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise CollageError(f"--calibrate {file}: {one_line(error)}") from None


def rounds_of(args: argparse.Namespace) -> int | None:
    """What `add_rounds` asks for; CollageError if there are none."""
    return count_of("--rounds", args.rounds, _MOST_ROUNDS)


def count_of(option: str, count: int | None, most: int) -> int | None:
    """As it was given; CollageError for less than 1, or more than `most`."""
    if count is not None and not 1 <= count <= most:
        raise CollageError(f"{option} must be 1 to {most}")
    return count


def concurrency_of(args: argparse.Namespace) -> int | None:
    """Of how many requests at a time the throughput is to be best; None where latency is."""
    concurrency = count_of("--concurrency", args.concurrency, MOST_AT_A_TIME)
    if args.objective == _OBJECTIVES[0]:
        return None
    return concurrency or target_of(args).threads


def names_of(text: str | None) -> list[str] | None:
    """A comma-separated list; None where nothing was given. CollageError if it is empty."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise CollageError("expected names separated by commas, as in a,b")
    return names


def seconds_of(option: str, text: str | None) -> float | None:
    """A duration, as in 90s, 10m or 1.5h; None where nothing was given. CollageError for anything else."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:] in _SECONDS else (text, "s")
    try:
        seconds = float(number) * _SECONDS[unit]
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise CollageError(f"{option} {text}: expected a duration, as in 90s, 10m or 1h")
    return seconds


def constraints_of(args: argparse.Namespace, registry: Registry) -> Constraints:
    pins = {**pairs_of("pin", args.pins_set), **pairs_of("--pin", args.pin)}
    pins = {nodes: registry.backend(b).name for nodes, b in pins.items()}
    excluded = []
    for text in args.exclude:
        backend, colon, nodes = text.partition(":")
        if colon and not nodes:  # of a variable that is not set, say: not meant is all of the backend
            raise CollageError(f"--exclude {text}: expected BACKEND or BACKEND:NODES")
        excluded.append((registry.backend(backend).name, nodes or None))
    together = [tuple(names_of(text) or ()) for text in args.keep_together]
    return Constraints(pins, excluded, together)
