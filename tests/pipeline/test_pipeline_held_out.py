"""What errors on some inputs tell of others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from collage_core.measuring.held_out import of_others


def test_what_some_are_off_by_tells_what_others_are() -> None:
    rng = np.random.default_rng(3)
    held = dict.fromkeys((5, 17), 0)
    for _ in range(500):
        some, others = (0.01 * rng.lognormal(0.0, 0.5, count) for count in (17, 100))
        held[17] += others.max() <= of_others(some.tolist())
        held[5] += others.max() <= some[:5].max() / 0.85
    assert held[17] > 400
    assert held[5] < 100  # what was asked before


@pytest.mark.parametrize(
    ("errors", "least", "most"),
    [
        pytest.param([], 0.0, 0.0, id="none"),
        pytest.param([0.0] * 17, 0.0, 0.0, id="nothing is off"),
        pytest.param([0.0] * 16 + [0.1], 0.1, 0.1, id="one is off"),
        pytest.param([0.01] * 17, 0.01, 0.01, id="all the same"),
        pytest.param([*np.linspace(0.01, 0.02, 17)], 0.025, 0.04, id="spread"),
        pytest.param([1e-300, *np.linspace(0.01, 0.02, 16)], 0.025, 0.04, id="a lucky one"),
        pytest.param([0.01, math.inf], math.inf, math.inf, id="not a number"),
    ],
)
def test_what_others_are_off_by(errors: list[float], least: float, most: float) -> None:
    assert least <= of_others(errors) <= most
