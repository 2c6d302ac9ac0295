"""ONNX's own node tests, driven by ONNX's own runner, on some of the backends that are installed here."""

from __future__ import annotations

import functools
import time
import unittest
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from collage_core.costs.check import tolerance
from collage_core.errors import ModelError, PlacementError, Refusal
from collage_core.formats import Array
from collage_core.onnx_backend import OnnxBackend, PreparedModel
from collage_core.placement import VIEW

__all__ = ["ALONE", "PARTLY", "REFERENCE", "REFUSED", "VIEWS", "Outcome", "cases", "is_float", "run_cases"]

ALONE, PARTLY, REFERENCE, VIEWS, REFUSED = "x", "+", ".", "v", "-"
"""Who ran a case: backends other than the reference; they and the reference; the reference alone; nobody, for
nothing is left of it but views and constants; or it did not run.
"""

_CATEGORY = "OnnxBackendNodeModelTest"
_DEVICE = "_cpu"
_REFERENCE = "reference"
_STRICT = 1e-7
"""ONNX's own absolute tolerance."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ended.

    status: "right"; "refused", when the model is declined as a whole; "wrong", for other numbers; or
    "failed". reason: in one line, for all but the first. ran: one of the marks of this module. operators: by
    who ran them, op types of the normalised graph. notes: what failed and ran elsewhere. refusals: by
    backend, what it declined.
    """

    status: str
    reason: str
    ran: str
    seconds: float
    operators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refusals: Mapping[str, tuple[Refusal, ...]] = field(default_factory=dict)


@functools.cache
def cases() -> dict[str, Any]:
    """ONNX's node cases by name, sorted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the cases overflow on purpose while they are made
        found = {c.name: c for c in load_model_tests(kind="node")}
    return dict(sorted(found.items()))


def is_float(case: Any) -> bool:
    """Whether a floating-point tensor goes in or comes out."""
    return any(_is_float(a) for inputs, outputs in case.data_sets for a in (*inputs, *outputs))


def run_cases(
    names: Collection[str] | None = None, backends: Sequence[str] | None = None, threads: int = 1
) -> dict[str, Outcome]:
    """Run the cases named, or all, on these backends and the reference, or on all that are available.

    Numbers may differ by ONNX's relative tolerance and by what core allows (docs/adr/0007) of the largest.
    """
    kind: type[OnnxBackend] = OnnxBackend if backends is None else OnnxBackend.for_backends(*backends)
    wanted = cases() if names is None else {n: cases()[n] for n in sorted(names)}

    class Recorded(kind):  # type: ignore[misc,valid-type]  # a class made for these backends
        last: PreparedModel | None = None

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
            Recorded.last = None
            Recorded.last = super().prepare(model, device, threads=threads, **kwargs)
            return Recorded.last

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that overflow, and what fails is in the outcomes
        allowed = {name: {"atol": _allowed(case)} for name, case in wanted.items()}
        tests = BackendTest(Recorded, __name__, test_kwargs=allowed).test_cases[_CATEGORY]
        result = _Result(Recorded)
        unittest.TestSuite(tests(name + _DEVICE) for name in wanted).run(result)
    Recorded.close()
    return result.outcomes


class _Result(unittest.TestResult):
    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.outcomes: dict[str, Outcome] = {}
        self._backend = backend
        self._start = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802  (unittest's name)
        super().startTest(test)
        self._backend.last = None
        self._start = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._add(test, "right")

    def addFailure(self, test: unittest.TestCase, err: _Error) -> None:  # noqa: N802
        self._add(test, "wrong", err)

    def addError(self, test: unittest.TestCase, err: _Error) -> None:  # noqa: N802
        refused = self._backend.last is None and isinstance(err[1], ModelError | PlacementError)
        self._add(test, "refused" if refused else "failed", err)

    def _add(self, test: unittest.TestCase, status: str, err: _Error | None = None) -> None:
        name = test.id().rpartition(".")[2].removesuffix(_DEVICE)
        reason = "" if err is None else " ".join(str(err[1]).split())
        seconds = time.monotonic() - self._start
        model: PreparedModel | None = self._backend.last
        if model is None:
            self.outcomes[name] = Outcome(status, reason, REFUSED, seconds)
            return
        operators = _operators(model)
        ran = _mark(set(operators)) if status == "right" else REFUSED
        self.outcomes[name] = Outcome(
            status, reason, ran, seconds, operators, tuple(model.notes), model.refusals
        )


_Error = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


def _operators(model: PreparedModel) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for graph, placement in model.placements:
        for group in placement.groups:
            found.setdefault(group.backend, []).extend(graph.node(i).qualified_op for i in group.nodes)
    return {name: tuple(dict.fromkeys(ops)) for name, ops in found.items()}


def _mark(owners: set[str]) -> str:
    others = owners - {_REFERENCE, VIEW}
    if others:
        return PARTLY if _REFERENCE in owners else ALONE
    return REFERENCE if _REFERENCE in owners else VIEWS


def _allowed(case: Any) -> float:
    """Absolute: core's tolerance times the largest number that is expected, of the strictest output."""
    arrays = [_array(a) for _, outputs in case.data_sets for a in outputs if _is_float(a)]
    found = [tolerance(a.dtype.name) * _largest(a) for a in arrays]
    return max(min(found, default=0.0), _STRICT)


def _largest(array: Array) -> float:
    wide = array.astype(np.float64)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))


def _is_float(data: Any) -> bool:
    array = _array(data)
    return isinstance(array, np.ndarray | np.generic) and tolerance(array.dtype.name) > 0


def _array(data: Any) -> Any:
    return numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else data
