"""A person's own measure of how far answers are off."""

from __future__ import annotations

import hashlib
import inspect
import math
import runpy
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from collage_core.errors import CollageError, InputError, Terminated
from collage_core.formats import Array

__all__ = ["Metric", "MetricFunction", "metric_in"]

MetricFunction = Callable[[Mapping[str, Array], Mapping[str, Array]], float]
"""Of outputs and expected outputs, by name, each with one more axis in front, along which the samples lie:
how far they are off, 0 where not at all.
"""


@dataclass(frozen=True, slots=True)
class Metric:
    """digest: of the source that it is made of. What that reads from elsewhere is taken to stay as it is."""

    name: str
    function: MetricFunction
    digest: str

    @classmethod
    def of(cls, function: MetricFunction) -> Metric:
        """Of a function. CollageError for what cannot be called, or has no source to be known by."""
        if not callable(function):
            raise CollageError(f"metric is a function of outputs and expected outputs, not {function!r}")
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            raise CollageError(f"metric {function!r} has no source, by which it would be known") from None
        if getattr(function, "__closure__", None):
            raise CollageError(f"metric {function!r} closes over others; write it as one of its own")
        defaults = repr(getattr(function, "__defaults__", None))
        return cls(getattr(function, "__name__", "metric"), function, _digest(f"{source}\n{defaults}"))

    def __call__(self, outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
        """inf for NaN. InputError, with the metric's name, where it fails or answers no number from 0 on."""
        try:
            with redirect_stdout(sys.stderr):  # which is the report's alone
                told = float(self.function(outputs, expected))
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # anything that a person may have written
            raise InputError(f"metric {self.name}: it fails: {type(error).__name__}: {error}") from error
        if told < 0.0:
            raise InputError(f"metric {self.name}: {told:g} is no error, which is 0 or more")
        return math.inf if math.isnan(told) else told


def metric_in(place: str) -> Metric:
    """The function that "FILE.py:NAME" names. CollageError where there is none, or the file fails."""
    file, _, name = place.rpartition(":")
    if not file or not name:
        raise CollageError(f"metric {place!r}: FILE.py:FUNCTION is needed")
    before = list(sys.path)
    sys.path.insert(0, str(Path(file).resolve().parent))  # as where Python runs a file
    try:
        source = Path(file).read_text(encoding="utf-8")
        with redirect_stdout(sys.stderr):
            function = runpy.run_path(file).get(name)
    except OSError as error:
        raise CollageError(f"metric {place}: {error.strerror or error}") from None
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # anything that a person may have written
        raise CollageError(f"metric {place}: {file} fails: {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = before
    if not callable(function):
        raise CollageError(f"metric {place}: {file} has no function {name}")
    return Metric(name, function, _digest(f"{name}\n{source}"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
