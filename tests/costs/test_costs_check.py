"""When an answer counts as right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from collage_core.costs.check import compare, tolerance
from collage_core.formats import Array

FLOATS = ["float64", "float32", "float16"]
EXACT = ["int8", "int64", "uint8", "bool"]


@given(
    st.sampled_from(FLOATS + EXACT).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0)))
)
def test_a_value_equals_itself_nan_and_infinity_included(value: Array) -> None:
    assert compare("y", value.copy(), value) == (0.0, None)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_tolerance_is_relative_to_the_largest_element(dtype: str, factor: float) -> None:
    expected: Array = np.array([1000.0, -3.0, 0.0]).astype(dtype)
    difference = 1000.0 * tolerance(dtype) * factor
    error, wrong = compare("y", np.array([1000.0, -3.0, difference]).astype(dtype), expected)
    assert error == pytest.approx(tolerance(dtype) * factor, rel=1e-3)
    assert (wrong is not None) == (factor > 1)


@given(
    hnp.arrays("float32", 5, elements=st.floats(-100, 100, width=32)),
    hnp.arrays("float32", 5, elements=st.floats(-100, 100, width=32)),
)
def test_error_is_as_defined(result: Array, expected: Array) -> None:
    error, wrong = compare("y", result, expected)
    scale = np.abs(expected.astype(float)).max()
    defined = np.abs(result.astype(float) - expected.astype(float)).max() / (scale or 1)
    assert error == pytest.approx(defined)
    assert (wrong is None) == (defined <= 1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_must_be_where_they_belong(bad: float) -> None:
    expected: Array = np.array([1, 2], np.float32)
    odd: Array = np.array([1, bad], np.float32)
    for a, b in ((odd, expected), (expected, odd), (odd, -odd if np.isinf(bad) else expected)):
        error, wrong = compare("y", a, b)
        assert error is None
        assert wrong is not None
        assert "'y'" in str(wrong)


@pytest.mark.parametrize("dtype", EXACT)
def test_integers_and_booleans_are_exact(dtype: str) -> None:
    expected: Array = np.array([1, 0, 1]).astype(dtype)
    error, wrong = compare("y", np.array([1, 1, 1]).astype(dtype), expected)
    assert error == 1.0
    assert wrong is not None


def test_a_large_integer_is_not_rounded() -> None:
    expected: Array = np.array([2**62], np.int64)
    assert compare("y", expected + 1, expected)[1] is not None


def test_a_shape_is_compared_first() -> None:
    _, wrong = compare("y", np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
    assert wrong is not None
    assert "(2, 3)" in str(wrong)
