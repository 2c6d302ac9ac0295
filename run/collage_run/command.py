"""Running a model on arrays from files, as `collage run` and `collage-run` do."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from collage_run.errors import CollageError, InputError
from collage_run.executable import Executable
from collage_run.files import destination, regular, written
from collage_run.formats import Array
from collage_run.types import TensorType

__all__ = ["add_arguments", "json_text", "load_arguments", "pairs_of", "run", "shape_in"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that `run` reads, but for the bundle."""
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
        "--threads", type=int, metavar="N", help="run on so many (default: as many as it was made for)"
    )
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run the machine code of an exported bundle, which may do anything",
    )
    parser.add_argument(
        "--expect", metavar="DIGEST", help="refuse an exported bundle with another digest than this one"
    )


def load_arguments(args: argparse.Namespace) -> Mapping[str, Any]:
    """Of `load`, as the arguments say."""
    return {"allow_code": args.allow_code, "expect": args.expect, "threads": args.threads}


def run(args: argparse.Namespace, load: Callable[[], Executable]) -> dict[str, Any]:
    """Run what `load` returns as the arguments say. Returns what is told of it, as JSON values.

    CollageError for arguments that mean nothing or do not fit the model, and for files that cannot be read or
    written.
    """
    if args.repeat < 1:
        raise CollageError("--repeat must be at least 1")
    files = pairs_of("--output", args.output, files=True)
    given = pairs_of("--input", args.input, files=True)
    _require_apart(files.values(), [args.bundle, *given.values()])
    executable = load()
    for name in files:
        if name not in executable.outputs:
            raise CollageError(f"--output {name}: the model's outputs are {', '.join(executable.outputs)}")
    inputs = _inputs(executable, given)
    buffers = {name: np.empty(t.static_shape, np.dtype(t.dtype)) for name, t in executable.buffers.items()}
    executable.run(inputs, buffers)
    times_ms = []
    for _ in range(args.repeat):
        start = time.perf_counter()
        executable.run(inputs, buffers)
        times_ms.append((time.perf_counter() - start) * 1e3)
    outputs = executable.valid(buffers)
    for name, file in files.items():
        with written(file) as partial, partial.open("wb") as stored:
            # Of a file NumPy asks the position, and a pipe has none.
            stream: Any = SimpleNamespace(write=stored.write)
            np.save(stream, outputs[name], allow_pickle=False)
    return {
        "latency_ms": median(times_ms),
        "runs": args.repeat,
        "outputs": {name: _summary(array, files.get(name)) for name, array in outputs.items()},
    }


def json_text(report: Any) -> str:
    """JSON knows no NaN and no infinity: they are null (RFC 8259, section 6)."""
    return json.dumps(_finite(report), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def pairs_of(option: str, texts: Sequence[str], *, files: bool = False) -> dict[str, str]:
    """NAME=VALUE options; CollageError for one without "=" or given twice.

    A name may itself hold "=", unless the values are `files`, whose paths may.
    """
    result: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=") if files else text.rpartition("=")
        if not equals or not name or not value:
            raise CollageError(f"{option} {text}: expected NAME=VALUE")
        if name in result:
            raise CollageError(f"{option} {name}: given twice")
        result[name] = value
    return result


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
    return {name: _as_declared(_array(name, file), executable.inputs[name]) for name, file in files.items()}


def shape_in(name: str, file: str) -> tuple[int, ...]:
    """Of the array in a file that is given for an input; InputError if it cannot be read."""
    return _array(name, file).shape


def _array(name: str, file: str) -> Array:
    try:
        with open(file, "rb", opener=regular) as opened:
            return np.lib.format.read_array(opened, allow_pickle=False)
    except OSError as error:
        raise InputError(f"--input {name}: {file}: {error.strerror or error}") from None
    except Exception as error:  # a damaged header makes numpy raise anything
        raise InputError(f"--input {name}: {file}: not a .npy file ({error})") from None


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
