"""One built kernel on recorded inputs: checked, timed, and checked again."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from collage_core import clock
from collage_core.backend import Bound, Kernel
from collage_core.costs.check import Standard, compare
from collage_core.costs.record import DISTURBED, RACED_OUT, CostRecord, Policy
from collage_core.costs.timing import time_bound
from collage_core.devices import Station
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array, Format, device_of

__all__ = ["Operand", "Trial", "ways_to_share"]

Operand = tuple[str, Array, Format]
"""A value's name, its recorded elements, and the format in which the kernel sees it."""

_LATE_S = 0.5
"""How long a wrong answer is watched: if it still changes, the kernel had not finished when it returned."""
_LOOK_EVERY_S = 0.005


class Trial:
    """A built kernel, bound to guarded buffers for the recorded inputs.

    stations: one for each device on which an operand lies, by name. twin: the same kernel, built once more
    (see `time_bound`). held_to: as `standards` says of the outputs.
    """

    def __init__(
        self,
        kernel: Kernel,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        stations: Mapping[str, Station],
        twin: Kernel | None = None,
        held_to: Mapping[str, Standard] = MappingProxyType({}),
    ) -> None:
        self._held_to = held_to
        self._kernel = kernel
        self._inputs = inputs
        self._outputs = outputs
        self._stations = stations
        self._sources = [self._array(operand, "input") for operand in inputs]
        self._results = [self._array(operand, "output") for operand in outputs]
        self._works_on = stations[device_of(f for _, _, f in (*inputs, *outputs))]
        self._workspace = self._works_on.bytes(kernel.workspace_bytes, "the workspace")
        self._unanswered = [_unanswered(value, f) for _, value, f in outputs]
        self._bound = self._bind(kernel)
        self._twin = None if twin is None else self._bind(twin)

    def record(self, policy: Policy, build_s: float, enough_ms: float = math.inf) -> CostRecord:
        """Check, time, and check again: a kernel may be right once only. May be called again. enough_ms: see
        `time_bound`.

        BackendError if a run returns an error code.
        """
        details: dict[str, object] = {
            "build_s": round(build_s, 6),
            "workspace_bytes": self._kernel.workspace_bytes,
        }
        error, wrong = self._answer()
        if wrong is None:
            station = self._works_on
            samples = time_bound(
                self._bound, policy, self._twin, enough_ms, device=station.device, queue=station.queue
            )
            last_error, wrong = self._verdict(self._copies())
            error = _worst(error, last_error)
        if wrong is None:
            self._fill()
            # Not with a copy: what a late run writes may be there before anybody can look.
            wrong = self._late(self._unanswered, _LOOK_EVERY_S)
        if wrong is None:
            # Once more from the start: what was in the outputs may have been left from an earlier run.
            last_error, wrong = self._answer()
            error = _worst(error, last_error)
        if wrong is None:
            wrong = self._aliased()
        if wrong is None:
            wrong = self._trespass()
        if wrong is not None:
            return CostRecord("wrong", error=error, reason=str(wrong), details=details)
        if samples.runs < policy.min_runs and samples.median_ms > enough_ms:
            details[RACED_OUT] = True
        if samples.is_disturbed:
            details[DISTURBED] = True
        return CostRecord(
            "ok",
            median_ms=samples.median_ms,
            spread_ms=samples.spread_ms,
            runs=samples.runs,
            error=error,
            details={**details, "preempted_runs": samples.preempted},
        )

    def _bind(self, kernel: Kernel) -> Bound:
        return kernel.bind(self._sources, self._results, self._workspace, self._works_on.queue)

    def _array(self, operand: Operand, what: str) -> Any:
        name, value, format = operand
        return self._stations[format.device].array(value.shape, format, f"{what} {name!r}")

    def _fill(self) -> None:
        """Recorded values into the inputs, and into the outputs what no right kernel leaves there."""
        for (_, value, f), source in zip(self._inputs, self._sources, strict=True):
            self._stations[f.device].write(source, f, value)
        for (_, _, f), result, unanswered in zip(self._outputs, self._results, self._unanswered, strict=True):
            self._stations[f.device].write(result, f, unanswered)

    def _answer(self) -> tuple[float | None, Refusal | None]:
        """Fill, and run once; the `_verdict` of what is there at the moment at which the call returns."""
        self._fill()
        code = self._bound()
        # On another device the copies are queued behind it at once: who is late is not waited for.
        if any(f.device != self._works_on.device.name for _, _, f in self._outputs):
            self._works_on.queue.synchronize()
        returned = self._copies()
        if code:
            raise BackendError(f"the kernel returned error code {code!r}")
        error, wrong = self._verdict(returned)
        if wrong is not None and (late := self._late(returned, _LATE_S)) is not None:
            wrong = late
        return error, wrong

    def _copies(self) -> list[Array]:
        return [self._copy(r, f) for (_, _, f), r in zip(self._outputs, self._results, strict=True)]

    def _copy(self, array: Any, format: Format) -> Array:
        return self._stations[format.device].read(array, format)

    def _late(self, returned: Sequence[Array], seconds: float) -> Refusal | None:
        """Whether outputs change within `seconds` though no call is running."""
        deadline = clock.monotonic() + seconds
        while True:
            for (name, _, f), result, before in zip(self._outputs, self._results, returned, strict=True):
                if self._copy(result, f).tobytes() != before.tobytes():
                    return Refusal(
                        f"output {name!r} changed after the call had returned: the kernel does not wait for "
                        "its answer"
                    )
            if clock.monotonic() > deadline:
                return None
            time.sleep(_LOOK_EVERY_S)

    def _verdict(self, results: Sequence[Array]) -> tuple[float | None, Refusal | None]:
        """Worst error of `results`, and what is wrong with them, the inputs or the memory around them."""
        if (outside := self._trespass()) is not None:
            return None, outside
        if (changed := self._changed()) is not None:
            return None, changed
        return self._errors(results)

    def _changed(self, except_for: Collection[int] = ()) -> Refusal | None:
        """Whether an input is no longer what it was given. except_for: inputs by their places."""
        for i, ((name, value, f), array) in enumerate(zip(self._inputs, self._sources, strict=True)):
            if i in except_for:
                continue
            source = self._copy(array, f)
            if not _same(source, value.astype(source.dtype, copy=False)):
                return Refusal(f"it changed its input {name!r}")
        return None

    def _trespass(self) -> Refusal | None:
        for station in self._stations.values():
            if (where := station.buffers.trespass()) is not None:
                return Refusal(f"it wrote outside its buffers, {where}")
        return None

    def _errors(self, results: Sequence[Array]) -> tuple[float | None, Refusal | None]:
        worst: float | None = 0.0
        for (name, value, _), result in zip(self._outputs, results, strict=True):
            error, wrong = compare(name, _as_in(result, value), value, self._held_to.get(name))
            worst = _worst(worst, error)
            if wrong is not None:
                return worst, wrong
        return worst, None

    def _aliased(self) -> Refusal | None:
        """Run once for every output that may lie in an input's buffer, with it there, and once with all.
        No other output may change for that, and no other input.
        """
        shared = {
            o: i
            for o, i in self._kernel.may_alias.items()
            if self._outputs[o][2] == self._inputs[i][2]
            and self._outputs[o][1].shape == self._inputs[i][1].shape
        }
        for alias in ways_to_share(shared):
            self._fill()
            results = [self._sources[alias[o]] if o in alias else r for o, r in enumerate(self._results)]
            where = " and ".join(
                f"{self._outputs[o][0]!r} shares the buffer of input {self._inputs[i][0]!r}"
                for o, i in alias.items()
            )
            if code := self._kernel.bind(self._sources, results, self._workspace, self._works_on.queue)():
                return Refusal(f"the kernel returned error code {code!r} when output {where}")
            answers = [self._copy(r, f) for (_, _, f), r in zip(self._outputs, results, strict=True)]
            _, wrong = self._errors(answers)
            if wrong is None:
                wrong = self._changed(except_for={*alias.values()})
            if wrong is not None:
                return Refusal(f"{wrong} when output {where}")
        return None


def ways_to_share(shared: Mapping[int, int]) -> list[Mapping[int, int]]:
    """Which outputs may lie in which inputs' buffers, one by one, and all at once as an executable's plan has
    them: each input for one output. shared: inputs by output, by their places.
    """
    together: dict[int, int] = {}
    for output, source in shared.items():
        if source not in together.values():
            together[output] = source
    return [*({o: i} for o, i in shared.items()), *([together] if len(together) > 1 else [])]


def _unanswered(value: Array, format: Format) -> Array:
    """What no right kernel leaves where it is to write that value."""
    dtype = np.dtype(format.dtype)
    if dtype.kind in "biu":
        return np.invert(value).astype(dtype)
    return np.full(value.shape, np.nan, dtype)


def _worst(a: float | None, b: float | None) -> float | None:
    """The larger error; None, which no number describes, is worse than any."""
    return None if a is None or b is None else max(a, b)


def _as_in(result: Array, value: Array) -> Array:
    """The numbers that are stored, in the value's own type."""
    return result.astype(value.dtype, copy=False)


def _same(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcV"))  # V: floats that NumPy has not
