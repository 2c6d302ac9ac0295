"""A chain of operators, placed over the processor and the simulated device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from collage_simulator.costs import VARIABLE

from collage_core import Constraints, Optimization, Target, optimize
from collage_core.pipeline.effort import THOROUGH
from collage_core.placement import Placement

__all__ = ["CHAIN", "ONLY_SIM", "declare", "devices_of", "optimized"]

_TARGET = Target("cpu", 1, (), ("sim",))
ONLY_SIM = Constraints(excluded=[("reference", None), ("dnnl", None)])
"""Nothing may run on the processor."""
CHAIN = """(float[64,64] x) => (float[64,64] y) {
    [n] a = Neg(x) [m] b = MatMul(a, a) [t] c = Tanh(b) [k] d = MatMul(c, c) [r] y = Relu(d) }"""
"""Products between operators of one input each."""


def declare(monkeypatch: pytest.MonkeyPatch, **costs: float) -> None:
    """The device costs what is said here, and else what it costs by default."""
    monkeypatch.setenv(VARIABLE, json.dumps(costs))


def optimized(model: Any, costs: Path, **options: Any) -> Optimization:
    """What is found without a comparison, with a cost database in the folder `costs`."""
    given: dict[str, Any] = {
        "backends": ["sim", "dnnl", "reference"],
        "target": _TARGET,
        "effort": THOROUGH,
        "rounds": 0,
    }
    return optimize(model, costs=costs / "c.sqlite", **(given | options))


def devices_of(placement: Placement) -> list[str]:
    """Where each group runs, in their order."""
    return [g.variant.outputs[0].device for g in placement.groups]
