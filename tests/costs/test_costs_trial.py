"""Outputs that lie in the buffers of inputs: what else a kernel answers must not change for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from collage_core.backend import Bound, Kernel
from collage_core.costs import Policy
from collage_core.costs.trial import Operand, Trial
from collage_core.devices import CpuDevice, Queue, Station
from collage_core.formats import Array, plain

_QUICK = Policy(warmup_runs=1, min_runs=1, max_runs=1)
_I, _J = (np.array(v, np.float32) for v in ([1.0, 2.0], [5.0, 7.0]))


class Sums(Kernel):
    """The sum of its inputs, and the first one doubled. order: of these two, in which they are written."""

    def __init__(self, may_alias: Mapping[int, int], order: Sequence[int]) -> None:
        self.may_alias = dict(may_alias)
        self._order = order

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        i, j = inputs
        ways = [lambda: np.add(i, j, out=outputs[0]), lambda: np.multiply(i, 2, out=outputs[1])]

        def call() -> None:
            for number in self._order:
                ways[number]()

        return call


def _record(kernel: Kernel) -> tuple[str, str]:
    def operand(name: str, value: Array) -> Operand:
        return name, value, plain("float32", value.shape)

    inputs = operand("i", _I), operand("j", _J)
    outputs = operand("sum", _I + _J), operand("twice", _I * 2)
    found = Trial(kernel, inputs, outputs, {"cpu": Station(CpuDevice(), protect=False)}).record(_QUICK, 0.0)
    return found.status, str(found.reason)


@pytest.mark.parametrize(
    ("kernel", "status", "said"),
    [
        (Sums({0: 0}, (1, 0)), "ok", "None"),
        (Sums({0: 0}, (0, 1)), "wrong", "output 'twice' has error"),
        (Sums({1: 1}, (0, 1)), "ok", "None"),
        (Sums({1: 1}, (1, 0)), "wrong", "output 'sum' has error"),
    ],
)
def test_the_other_output_is_looked_at(kernel: Kernel, status: str, said: str) -> None:
    found, reason = _record(kernel)
    assert found == status, reason
    assert reason.startswith(said)


def test_all_at_once_are_tried_too() -> None:
    class Both(Sums):
        """Right with either output in its input's buffer, and wrong with both."""

        def bind(
            self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
        ) -> Bound:
            shared = [np.shares_memory(a, b) for a, b in zip(inputs, outputs, strict=True)]
            self._order = (1, 0) if shared[0] else (0, 1)
            call = super().bind(inputs, outputs, workspace, queue)

            def wrong() -> None:
                call()
                outputs[0].fill(0)

            return wrong if all(shared) else call

    found, reason = _record(Both({0: 0, 1: 1}, (0, 1)))
    assert found == "wrong"
    where = ("'sum' shares the buffer of input 'i'", "'twice' shares the buffer of input 'j'")
    assert reason.endswith(f"when output {' and '.join(where)}")
