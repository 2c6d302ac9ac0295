"""Integers divided by zero, and by -1 where the answer is too large: nothing ends, and no code grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_tvm import library
from collage_tvm.backend import TvmBackend

from collage_core.errors import Refusal
from collage_core.target import Target
from collage_core.testing import check_group, make_group, node

_LEAST = object()
"""The least number of the dtype."""
_DIVIDENDS = [5, -5, 0, _LEAST, _LEAST, 7, -7]
_DIVISORS = [0, 0, 0, -1, 0, -1, 2]
_QUOTIENTS = [0, 0, 0, _LEAST, 0, -7, -3]


def _integers(values: list[Any], dtype: str) -> Any:
    """Nine times, which leaves a rest of every width of vectors."""
    return np.array([np.iinfo(dtype).min if v is _LEAST else v for v in values] * 9, dtype)


@pytest.mark.parametrize("constant", [False, True], ids=["input", "constant"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("nodes", "answers"),
    [
        ([node("Div", ["x", "y"], "o")], _QUOTIENTS),
        ([node("Mod", ["x", "y"], "o")], [0, 0, 0, 0, 0, 0, 1]),
        ([node("Mod", ["x", "y"], "o", fmod=1)], [0, 0, 0, 0, 0, 0, -1]),
        (
            [node("Div", [f"v{k}" if k else "x", "y"], f"v{k + 1}") for k in range(12)],
            [0, 0, 0, _LEAST, 0, 7, 0],
        ),
    ],
    ids=["Div", "Mod", "fmod", "chain"],
)
def test_dividing_integers_ends_nothing(
    nodes: list[onnx.NodeProto],
    answers: list[Any],
    dtype: str,
    constant: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By zero, and the least by -1, for which processors have no answer: NumPy's."""
    x, y = _integers(_DIVIDENDS, dtype), {"y": _integers(_DIVISORS, dtype)}
    inputs, constants = ({"x": x}, y) if constant else ({"x": x, **y}, {})
    group = make_group(nodes, inputs, constants)
    expected = {group.outputs[0]: _integers(answers, dtype)}
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path))  # where nothing is compiled yet
    check_group(TvmBackend(), group, inputs, Target("cpu", 2), expected=expected)


@pytest.mark.parametrize("constant", [False, True], ids=["input", "constant"])
def test_what_is_divided_is_not_written_out_for_every_use_of_it(
    constant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of four times as many divisions is four times as long, and not 2 to the power of them."""
    lengths = []

    def function_of(parameters: Any, body: Any, target: Target, **how: Any) -> Any:
        lengths.append(len(str(body)))
        return library.function_of(parameters, body, target, **how)

    monkeypatch.setattr("collage_tvm.build.function_of", function_of)
    values = _integers(_DIVIDENDS, "int32")
    for count in (3, 12):
        nodes = [node("Div", [f"v{k}" if k else "x", "y"], f"v{k + 1}") for k in range(count)]
        inputs, constants = ({"x": values}, {"y": values}) if constant else ({"x": values, "y": values}, {})
        group = make_group(nodes, inputs, constants)
        variants = TvmBackend().variants(group, Target("cpu", 1))
        assert not isinstance(variants, Refusal)
        TvmBackend().build(group, variants[0], Target("cpu", 1))
    short, long = lengths
    assert long < 6 * short
