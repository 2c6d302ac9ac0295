"""What backends have reached is kept, of each by itself, and begins the guesses of the next network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_core import CostDatabase, Target, optimize
from collage_core.backend import Backend
from collage_core.costs.record import CostRecord
from collage_core.pipeline.effort import NORMAL, THOROUGH
from collage_core.pipeline.estimates import Estimates
from collage_core.pipeline.priors import PRIORS, keep_priors, known_priors
from collage_core.plugins import default_registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from collage_core.costs.roofline import Peaks
    from collage_core.search.candidates import CandidateSet
    from tests.pipeline.conftest import Parse

_TARGET = Target("cpu", 1)


def _reference() -> dict[str, Backend]:
    return {"reference": default_registry().backends["reference"]}


def test_the_last_of_a_kind_stands_and_other_kinds_stay() -> None:
    backends = _reference()
    with CostDatabase(":memory:") as database:
        assert known_priors(backends, _TARGET, database) == {"reference": {}}
        keep_priors({"reference": {"a": 0.5, "b": 0.25}}, backends, _TARGET, database)
        keep_priors({"reference": {"b": 0.75}}, backends, _TARGET, database)
        assert known_priors(backends, _TARGET, database) == {"reference": {"a": 0.5, "b": 0.75}}
        assert known_priors(backends, Target("cpu", 2), database) == {"reference": {}}, "of other threads"


def test_damaged_ones_are_none() -> None:
    backends = _reference()
    with CostDatabase(":memory:") as database:
        keep_priors({"reference": {"a": 0.5}}, backends, _TARGET, database)
        (key,) = [stored.key for stored in database.items() if stored.key.kind == PRIORS]
        for damaged in ({}, {"shares": 3}, {"shares": {"a": "fast", "b": -1.0}}):
            database.put(key, CostRecord("ok", details=damaged))
            assert known_priors(backends, _TARGET, database) == {"reference": {}}


def test_whoever_measures_leaves_them(parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    model = parse("(float[4,4] x) => (float[4,4] y) { [neg] a = Neg(x) [tan] y = Tan(a) }")
    for effort in (NORMAL, THOROUGH):
        costs = tmp_path / f"{effort.name}.sqlite"
        optimize(model, backends=["reference"], target=_TARGET, costs=costs, effort=effort, rounds=0)
        with CostDatabase(costs) as database:
            shares = known_priors(_reference(), _TARGET, database)["reference"]
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
