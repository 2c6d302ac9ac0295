"""Comparing whole results."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from collage_core.costs.check import compare, compare_all, standards
from collage_core.ir import from_model

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


def test_floats_are_held_to_the_least_precise_type_that_they_were_computed_in() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[2] x, double[2] d) =>
        (double[2] y, double[2] z) {
            a = Exp (x) b = Cast <to = 11> (a) y = Add (b, d) z = Neg (d) n = Cast <to = 7> (b)
            h = Cast <to = 10> (x) f = Cast <to = 1> (h) }"""
    )
    graph = from_model(model)
    found = standards(graph)
    assert {v: found[v] for v in "abyz"} == {"a": "float32", "b": "float32", "y": "float32", "z": "float64"}
    assert "n" not in found, "whole numbers are exact"
    assert found["f"] == "float16"
    assert standards(graph, graph.nodes[1:3]) == {"b": "float64", "y": "float64"}, "given, a is exact"
    right, off = np.ones(2), np.ones(2) * (1 + 1e-6)
    assert compare("y", off, right, found["y"])[1] is None
    assert compare("z", off, right, found["z"])[1] is not None


def test_whole_numbers_make_nothing_less_precise() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float[2,3] x, float[6] z) => (float[2,3] y) {
            q = Cast <to = 10> (x) s = Shape (q) w = Reshape (z, s) y = Exp (w) }"""
    )
    found = standards(from_model(model))
    assert found == {"q": "float16", "w": "float32", "y": "float32"}
