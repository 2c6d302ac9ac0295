"""What depends on random numbers is compared by shape, element type and range."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest

from collage_core.backend import Bound, Kernel
from collage_core.costs import Policy
from collage_core.costs.check import compare, compare_all
from collage_core.costs.trial import Trial
from collage_core.devices import CpuDevice, Queue, Station
from collage_core.formats import Array, plain
from collage_core.ir.randomness import Drawn

_UNIT = Drawn(0, 1)
_COIN = Drawn(0, 1, is_whole=True)


def _float(*values: float) -> Array:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("result", "drawn", "why"),
    [
        (_float(0, 1), _UNIT, None),
        (_float(0.3, 0.9), Drawn(), None),
        (_float(0.3, 1.1), _UNIT, "should hold numbers from 0 to 1, and holds 1.1"),
        (_float(-0.1, 1), _UNIT, "and holds -0.1"),
        (_float(np.nan, 1), _UNIT, "NaN or infinity"),
        (_float(np.inf, 1), Drawn(), "NaN or infinity"),
        (_float(0.3), _UNIT, "has shape"),
        (np.array([0.1, 0.2]), _UNIT, "is float64"),
        (_float(0, 1), _COIN, None),
        (_float(0, 0.5), _COIN, "should hold whole numbers from 0 to 1, and holds 0.5"),
    ],
)
def test_a_draw_is_right_where_it_is_legal(result: Array, drawn: Drawn, why: str | None) -> None:
    error, refusal = compare("y", result, _float(0.25, 0.75), drawn)
    if why is None:
        assert (error, refusal) == (0.0, None)
    else:
        assert error is None
        assert refusal is not None
        assert why in refusal.reason


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool", "float16", ml_dtypes.bfloat16])
def test_every_element_type_has_its_range(dtype: str) -> None:
    expected = np.array([0, 1, 1]).astype(dtype)
    assert compare("y", expected[::-1], expected, _COIN) == (0.0, None)
    if np.dtype(dtype) != np.bool_:
        assert compare("y", expected * 2, expected, _COIN)[1] is not None


def test_the_ends_of_a_range_round_as_the_numbers_do() -> None:
    # 0.1 is no number of float16: the nearest is below it.
    lowest = np.array([0.1], np.float16)
    assert compare("y", lowest, lowest, Drawn(0.1, 0.2)) == (0.0, None)


def test_infinity_is_right_where_the_reference_has_some() -> None:
    assert compare("y", _float(-np.inf, 0), _float(0, -np.inf), Drawn()) == (0.0, None)


def test_other_outputs_are_compared_as_ever() -> None:
    expected = {"r": _float(0.5), "y": _float(2)}
    assert compare_all({"r": _float(0.7), "y": _float(2)}, expected, {"r": _UNIT}).reason is None
    assert compare_all({"r": _float(0.7), "y": _float(2)}, expected).reason is not None
    wrong = compare_all({"r": _float(0.7), "y": _float(2.1)}, expected, {"r": _UNIT})
    assert wrong.relative == pytest.approx(0.05)
    assert wrong.reason is not None
    assert "'y'" in wrong.reason


class Drawing(Kernel):
    """One output from which numbers come anew in every call."""

    def __init__(self, draw: Callable[[tuple[int, ...]], Array]) -> None:
        self._draw = draw

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        def call() -> None:
            outputs[0][...] = self._draw(outputs[0].shape)

        return call


@pytest.mark.parametrize(("high", "status"), [(1.0, "ok"), (9.0, "wrong")])
def test_a_kernel_may_draw_other_numbers_each_time(high: float, status: str) -> None:
    random = np.random.default_rng(0)
    kernel = Drawing(lambda shape: random.uniform(0, high, shape))
    output = ("r", np.full(64, 0.5, np.float32), plain("float32", (64,)))
    policy = Policy(warmup_runs=1, min_runs=2, max_runs=2, max_seconds=0.1)
    here = {"cpu": Station(CpuDevice(), protect=True)}
    record = Trial(kernel, [], [output], here, held_to={"r": _UNIT}).record(policy, 0.0)
    assert record.status == status
    assert Trial(kernel, [], [output], here).record(policy, 0.0).status == "wrong"
