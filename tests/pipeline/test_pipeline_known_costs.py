"""Costs that are looked up are those that an optimisation has taken, and none is taken for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collage_core import CostDatabase, Target
from collage_core.candidates import Constraints
from collage_core.measuring.bounding import search_placement
from collage_core.measuring.known_costs import KnownCosts, look_up
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Silent
from collage_core.pipeline.optimize import Optimization, optimize
from collage_core.plugins import PLUGINS_VARIABLE, default_registry
from collage_core.runtime import Bundle, read, save
from collage_core.search import OpLevelSearch

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_TARGET = Target("cpu", 1)
_BACKENDS = ("operators", "pairs", "reference")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("known")


@pytest.fixture(scope="module")
def optimised(parse: Parse, folder: Path) -> Iterator[Optimization]:
    """With a graph library that has to be asked what it takes, and takes no Exp."""
    model = parse("(float[8] x) => (float y) { p = Relu(x) q = Exp(p) r = Neg(q) y = Abs(r) }")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGINS_VARIABLE, "pipeline_library_backends")
        patch.setenv("PIPELINE_PACE", "0.1")
        default_registry.cache_clear()
        found = optimize(model, backends=_BACKENDS, target=_TARGET, costs=folder / "c.sqlite", rounds=0)
        save(Bundle(found.graph, found.placement), folder / "m.collage")
        yield found
    default_registry.cache_clear()


def _known(
    folder: Path, costs: str = "c.sqlite", constraints: Constraints | None = None, since: float = 0.0
) -> KnownCosts:
    """Of the graph as it comes out of a bundle."""
    graph = read(folder / "m.collage").graph
    backends = {name: default_registry().backend(name) for name in _BACKENDS}
    with CostDatabase(folder / costs) as database:
        before = len(database)
        machine = Machine(backends, _TARGET, database, default_registry(), Silent())
        known = look_up(machine, graph, constraints, since)
        assert len(database) == before
    return known


def test_they_are_those_of_the_optimisation(optimised: Optimization, folder: Path) -> None:
    known = _known(folder)
    assert known.costs.kernels == optimised.costs.kernels
    assert known.costs.conversion_records == optimised.costs.conversion_records
    assert any(name == "pairs" for _, _, name in known.costs.kernels)
    assert known.newer == optimised.costs.measured > 0
    assert _known(folder, since=time.time() + 1.0).newer == 0
    again = search_placement(known.candidates, known.costs, OpLevelSearch()).placement
    assert again.digest == optimised.placement.digest
    assert again.predicted_ms == pytest.approx(optimised.placement.predicted_ms)


@pytest.mark.usefixtures("optimised")
def test_constraints_are_kept(folder: Path) -> None:
    known = _known(folder, constraints=Constraints(excluded=[("pairs", None)]))
    assert {name for _, _, name in known.costs.kernels} == {"operators", "reference"}


@pytest.mark.usefixtures("optimised")
def test_what_the_database_lacks_is_no_candidate(folder: Path) -> None:
    with CostDatabase(folder / "c.sqlite") as database:
        lines = [line for line in database.export() if json.loads(line)["key"]["backend"] != "pairs"]
    with CostDatabase(folder / "less.sqlite") as database:
        assert database.import_(lines) > 0
    known = _known(folder, "less.sqlite")
    assert {name for _, _, name in known.costs.kernels} == {"operators", "reference"}
    assert {c.backend for c in known.candidates.candidates} == {"operators", "reference"}
