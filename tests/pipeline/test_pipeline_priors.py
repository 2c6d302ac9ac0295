"""What backends have reached is kept, of each by itself, and begins the guesses of the next network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from collage_core import CostDatabase, Target, optimize
from collage_core.costs.record import CostRecord
from collage_core.measuring.estimates import Estimates
from collage_core.measuring.machine import Machine
from collage_core.measuring.priors import PRIORS, keep_priors, known_priors
from collage_core.pipeline.effort import NORMAL, THOROUGH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collage_core.candidates import CandidateSet
    from collage_core.costs.roofline import Peaks
    from tests.pipeline.conftest import Parse

pytestmark = pytest.mark.ci

_TARGET = Target("cpu", 1)


def _machine(database: CostDatabase) -> Machine:
    """With nothing but the reference."""
    return Machine.of(database, (), _TARGET)


def test_the_last_of_a_kind_stands_and_other_kinds_stay() -> None:
    with CostDatabase(":memory:") as database:
        machine = _machine(database)
        assert known_priors(machine) == {"reference": {}}
        keep_priors(machine, {"reference": {"a": 0.5, "b": 0.25}})
        keep_priors(machine, {"reference": {"b": 0.75}})
        assert known_priors(machine) == {"reference": {"a": 0.5, "b": 0.75}}
        assert known_priors(replace(machine, target=Target("cpu", 2))) == {"reference": {}}, (
            "of other threads"
        )


def test_damaged_ones_are_none() -> None:
    with CostDatabase(":memory:") as database:
        machine = _machine(database)
        keep_priors(machine, {"reference": {"a": 0.5}})
        (key,) = [stored.key for stored in database.items() if stored.key.kind == PRIORS]
        for damaged in ({}, {"shares": 3}, {"shares": {"a": "fast", "b": -1.0}}):
            database.put(key, CostRecord("ok", details=damaged))
            assert known_priors(machine) == {"reference": {}}


def test_whoever_measures_leaves_them(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    model = parse("(float[4,4] x) => (float[4,4] y) { [neg] a = Neg(x) [tan] y = Tan(a) }")
    for effort in (NORMAL, THOROUGH):
        costs = tmp_path / f"{effort.name}.sqlite"
        optimize(model, backends=["reference"], target=_TARGET, costs=costs, effort=effort, rounds=0)
        with CostDatabase(costs) as database:
            shares = known_priors(_machine(database))["reference"]
        assert {kind.split("'")[1] for kind in shares} == {"Neg", "Tan"}
        assert all(0.0 < share < 1.0 for share in shares.values())


def test_the_next_network_begins_with_them(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    told: list[Mapping[str, Mapping[str, float]]] = []

    def estimates(
        candidates: CandidateSet, peaks: Peaks, priors: Mapping[str, Mapping[str, float]]
    ) -> Estimates:
        told.append(priors)
        return Estimates(candidates, peaks, priors)

    monkeypatch.setattr("collage_core.pipeline.run.Estimates", estimates)
    for text in (
        "(float[4,4] x) => (float[4,4] y) { y = Neg(x) }",
        "(float[8] x) => (float[8] y) { y = Neg(x) }",
    ):
        costs = tmp_path / "c.sqlite"
        optimize(parse(text), backends=["reference"], target=_TARGET, costs=costs, rounds=0)
    first, second = told
    assert first == {"reference": {}}
    assert second["reference"]
