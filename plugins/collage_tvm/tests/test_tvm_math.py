"""The elementary functions' errors in units of the last place, over their whole range."""

from __future__ import annotations

import math

import numpy as np
import pytest
from collage_tvm.backend import TvmBackend

from collage_core.backend import plain_variant
from collage_core.target import Target
from collage_core.testing import bind, make_group, node

_FUNCTIONS = {
    "Exp": (-87.0, 88.7, math.exp, 3),
    "Log": (1e-37, 1e30, math.log, 3),
    "Tanh": (-20.0, 20.0, math.tanh, 6),
    "Erf": (-8.0, 8.0, math.erf, 8),
    "Sigmoid": (-60.0, 60.0, lambda v: 1 / (1 + math.exp(-v)), 4),
}


@pytest.mark.parametrize("op", _FUNCTIONS)
def test_function_is_exact_to_a_few_last_places(op: str) -> None:
    low, high, true, limit = _FUNCTIONS[op]
    count = 40_000
    x = (np.geomspace(low, high, count) if low > 0 else np.linspace(low, high, count)).astype(np.float32)
    if low < 0:
        x[: count // 4] = np.geomspace(1e-20, 1.0, count // 4)
    group = make_group([node(op, ["x"], "o")], {"x": x})
    variant = plain_variant(group)
    bound = bind(TvmBackend().build(group, variant, Target("cpu", 2)), group, variant, {"x": x})
    assert not bound.call()
    want = np.array([true(float(v)) for v in x])
    places = np.abs(bound.outputs[0].astype(np.float64) - want) / np.spacing(np.abs(want).astype(np.float32))
    assert places.max() <= limit, f"{places.max()} last places at {x[places.argmax()]}"
