"""`collage run`: run a bundle on arrays from files."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from collage_run.files import regular

from collage_core.cli.arguments import add_json, pairs_of
from collage_core.cli.output import show
from collage_core.errors import CollageError, InputError
from collage_core.formats import Array
from collage_core.ir import TensorType
from collage_core.report.text import table
from collage_core.runtime import Executable, load
from collage_core.runtime.files import destination, replacing

NAME = "run"
SUMMARY = "Run a bundle on inputs from .npy files and save or summarise its outputs."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="a file that `collage optimize -o` or `collage export` wrote")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input of the model"
    )
    parser.add_argument(
        "--output", action="append", default=[], metavar="NAME=FILE.npy", help="where to save an output"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="run N times and tell the median (default: 1)"
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run the machine code of an exported bundle, which may do anything, instead of building it anew",
    )
    parser.add_argument(
        "--expect", metavar="DIGEST", help="refuse an exported bundle with another digest than this one"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    if args.repeat < 1:
        raise CollageError("--repeat must be at least 1")
    files = pairs_of("--output", args.output, files=True)
    given = pairs_of("--input", args.input, files=True)
    _require_apart(files.values(), [args.bundle, *given.values()])
    executable = load(args.bundle, allow_code=args.allow_code, expect=args.expect)
    for name in files:
        if name not in executable.outputs:
            raise CollageError(f"--output {name}: the model's outputs are {', '.join(executable.outputs)}")
    inputs = _inputs(executable, given)
    outputs = executable(inputs)
    times_ms = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        executable.run(inputs, outputs)
        times_ms.append((time.perf_counter() - start) * 1e3)
    for name, file in files.items():
        try:
            with replacing(file) as partial, partial.open("wb") as written:
                # Of a file NumPy asks the position, and a pipe has none.
                stream: Any = SimpleNamespace(write=written.write)
                np.save(stream, outputs[name], allow_pickle=False)
        except OSError as error:
            raise CollageError(f"cannot write {file}: {error.strerror or error}") from None
    report = {
        "latency_ms": median(times_ms),
        "runs": args.repeat,
        "outputs": {name: _summary(array, files.get(name)) for name, array in outputs.items()},
    }
    show(report, args.json, _text)


def _require_apart(outputs: Iterable[str], read: Iterable[str]) -> None:
    """CollageError where a file would be written twice, or over what is read."""
    taken = {Path(os.path.realpath(file)): "it is read" for file in read}
    for file in outputs:
        try:
            path = destination(file)
        except OSError as error:
            raise CollageError(f"cannot write {file}: {error.strerror or error}") from None
        if path in taken:
            raise CollageError(f"cannot write {file}: {taken[path]}")
        taken[path] = "another output is written there"


def _inputs(executable: Executable, files: dict[str, str]) -> dict[str, Array]:
    for name in files:
        if name not in executable.inputs:
            raise InputError(f"the model has no input {name!r}; its inputs: {', '.join(executable.inputs)}")
    for name in executable.inputs:
        if name not in files:
            raise InputError(
                f"input {name!r} ({executable.inputs[name]}) is missing; give it with --input {name}=FILE.npy"
            )
    arrays = {}
    for name, file in files.items():
        try:
            with open(file, "rb", opener=regular) as opened:
                array = np.lib.format.read_array(opened, allow_pickle=False)
        except OSError as error:
            raise InputError(f"--input {name}: {file}: {error.strerror or error}") from None
        except Exception as error:  # a damaged header makes numpy raise anything
            raise InputError(f"--input {name}: {file}: not a .npy file ({error})") from None
        arrays[name] = _as_declared(array, executable.inputs[name])
    return arrays


def _as_declared(array: Array, type: TensorType) -> Array:
    """The array in its own dtype, where that is one that .npy files have no name for (bfloat16)."""
    if array.dtype.kind != "V" or array.dtype.itemsize != np.dtype(type.dtype).itemsize:
        return array
    return array.view(np.dtype(type.dtype))


def _summary(array: Array, file: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape), "file": file}
    if array.size and array.dtype.kind in "fiu":
        with np.errstate(all="ignore"):  # the mean of two infinities is no number, and no news
            result |= {"min": float(array.min()), "mean": float(array.mean()), "max": float(array.max())}
    return result


def _text(report: dict[str, Any]) -> str:
    rows = [
        (
            name,
            f"{o['dtype']}{o['shape']}",
            *(f"{o[k]:.6g}" if k in o else "-" for k in ("min", "mean", "max")),
            o["file"] or "",
        )
        for name, o in report["outputs"].items()
    ]
    text = table(("output", "type", "min", "mean", "max", "saved as"), rows, right=[2, 3, 4])
    return f"{text}\n\nmedian of {report['runs']} runs after the first: {report['latency_ms']:.4f} ms"
