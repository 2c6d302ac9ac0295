"""What errors on some inputs tell of others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from collage_core.ir import from_model
from collage_core.measuring.held_out import of_others
from collage_core.pipeline import calibration

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse


def test_what_some_are_off_by_tells_what_others_are() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(500):
        some, others = (0.01 * rng.lognormal(0.0, 0.5, count) for count in (17, 100))
        held += others.max() <= of_others(some.tolist())
    assert 400 < held < 450, "more than 83 of 100 would cost time for nothing"


@pytest.mark.parametrize(
    ("errors", "least", "most"),
    [
        pytest.param([], 0.0, 0.0, id="none"),
        pytest.param([0.0] * 17, 0.0, 0.0, id="nothing is off"),
        pytest.param([0.0] * 16 + [0.1], 0.1, 0.1, id="one is off"),
        pytest.param([0.01] * 17, 0.01, 0.01, id="all the same"),
        pytest.param([*np.linspace(0.01, 0.02, 17)], 0.025, 0.04, id="spread"),
        pytest.param([1e-300, *np.linspace(0.01, 0.02, 16)], 0.025, 0.04, id="a lucky one"),
        pytest.param([0.0] * 9 + [*np.linspace(0.01, 0.02, 8)], 0.025, 0.04, id="half are exact"),
        pytest.param([1e-200, 1e-200, 1e-200, 1e100, 1e100], 1e100, 1e100, id="nothing in common"),
        pytest.param([5e-324, 5e-324, 0.1], 0.1, 0.1, id="hardly anything"),
        pytest.param([0.01, math.inf], math.inf, math.inf, id="not a number"),
    ],
)
def test_what_others_are_off_by(errors: list[float], least: float, most: float) -> None:
    assert least * (1.0 - 1e-9) <= of_others(errors) <= most * (1.0 + 1e-9)


@pytest.mark.parametrize(("flops", "count"), [(10**12, 16), (14 * 2048 + 5, 14), (1, 4)])
def test_of_a_large_graph_fewer_inputs_are_made_up(
    parse: Parse, monkeypatch: pytest.MonkeyPatch, flops: int, count: int
) -> None:
    monkeypatch.setattr(calibration, "_FLOPS", flops)
    graph = from_model(parse("(float[8,8] x) => (float y) { z = MatMul(x, x) y = MatMul(z, z) }"))
    samples = calibration.made_up(graph, None)
    assert (len(samples.held_out), samples.is_made_up) == (count, True)
