"""Comparing whole results."""

from __future__ import annotations

import numpy as np
import pytest

from collage_core.costs.check import compare_all

_INF, _NAN = float("inf"), float("nan")


def _float(*values: float) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {"y": np.array(values, np.float32)}


def test_the_worst_output_counts() -> None:
    expected = {"a": np.array([2.0, -4.0], np.float32), "b": np.array([1, 2])}
    result = {"a": np.array([2.0, -4.0002], np.float32), "b": np.array([1, 2])}
    difference = compare_all(result, expected)
    assert difference.reason is None
    assert difference.relative == pytest.approx(5e-5, rel=1e-2)
    assert difference.absolute == pytest.approx(2e-4, rel=1e-2)


def test_infinity_and_nan_are_right_where_they_are_expected() -> None:
    difference = compare_all(_float(1, -_INF, _NAN), _float(1, -_INF, _NAN))
    assert (difference.absolute, difference.relative, difference.reason) == (0.0, 0.0, None)
    for wrong in (_float(1, _INF, _NAN), _float(_NAN, -_INF, _NAN), _float(1, -_INF, 0)):
        difference = compare_all(wrong, _float(1, -_INF, _NAN))
        assert difference.relative is None
        assert difference.reason is not None


def test_wrong_numbers_are_told_with_their_error() -> None:
    difference = compare_all(_float(1, 2), _float(1, 4))
    assert (difference.absolute, difference.relative) == (2.0, 0.5)
    assert difference.reason is not None
    assert "error 0.5" in difference.reason
    assert compare_all({"y": np.array([1, 3])}, {"y": np.array([1, 2])}).reason is not None
    assert compare_all({"y": np.zeros((2, 0))}, {"y": np.zeros((2, 0))}).reason is None
