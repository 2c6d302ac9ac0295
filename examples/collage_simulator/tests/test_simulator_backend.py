"""Every operator in every precision, through the kit that plugins are held to."""

from __future__ import annotations

import numpy as np
import pytest
from collage_simulator.backend import SimBackend
from collage_simulator.operators import BINARY, UNARY

from collage_core.errors import Refusal
from collage_core.target import Target
from collage_core.testing import check_group, make_group, node

_TARGET = Target("cpu", 1, ("float16",), ("sim",))
_X = np.random.default_rng(0).uniform(0.5, 2.0, (4, 4)).astype(np.float32)


@pytest.mark.parametrize("op", UNARY)
def test_one_operand(op: str) -> None:
    group = make_group([node(op, ["x"], "y")], {"x": _X})
    kernels = check_group(SimBackend(), group, {"x": _X}, _TARGET, other_inputs={"x": _X + 0.25})
    assert [v.outputs[0].dtype for v in kernels] == ["float32", "float16"]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("op", BINARY)
def test_two_operands(op: str, constant: bool) -> None:
    other = _X[::-1].copy()
    inputs = {"x": _X} if constant else {"x": _X, "w": other}
    group = make_group([node(op, ["x", "w"], "y")], inputs, {"w": other} if constant else {})
    assert len(check_group(SimBackend(), group, inputs, _TARGET)) == 2


def test_attributes() -> None:
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    for made in (node("Softmax", ["x"], "y", axis=0), node("LeakyRelu", ["x"], "y", alpha=0.3)):
        check_group(SimBackend(), make_group([made], {"x": x}), {"x": x}, _TARGET)


def test_where_the_device_takes_no_part_nothing_is_offered() -> None:
    group = make_group([node("Neg", ["x"], "y")], {"x": _X})
    assert isinstance(SimBackend().variants(group, Target("cpu", 1)), Refusal)
    (only,) = SimBackend().variants(group, Target("cpu", 1, (), ("sim",)))  # type: ignore[misc]
    assert {f.dtype for f in (*only.inputs, *only.outputs)} == {"float32"}
