"""A model that draws random numbers is placed, run, and told with its seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_core import Target, optimize
from collage_core.measuring.comparison import Comparison
from collage_core.measuring.progress import Silent
from collage_core.pipeline.optimize import COLLAGE, Optimization
from collage_core.plugins import PLUGINS_VARIABLE, default_registry
from collage_core.report.summary import optimization_json
from collage_core.report.text import explain_text
from collage_core.testing import make_model, node

pytestmark = pytest.mark.ci

X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)


@pytest.fixture
def dice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(PLUGINS_VARIABLE, "pipeline_random_backends")
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()


def model() -> onnx.ModelProto:
    """y depends on a draw from [2, 3), z does not."""
    nodes = [
        node("RandomUniformLike", ["x"], "r", low=2.0, high=3.0),
        node("Add", ["r", "x"], "y"),
        node("Relu", ["x"], "z"),
    ]
    return make_model(nodes, {"x": X}, outputs=["y", "z"])


class Notes(Silent):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


def placed(backend: str, costs: Path, rounds: int, notes: Notes | None = None) -> Optimization:
    return optimize(
        model(), backends=[backend], target=Target("cpu", 1), costs=costs, rounds=rounds, progress=notes
    )


@pytest.mark.usefixtures("dice")
def test_other_numbers_are_right_and_the_seed_is_told(tmp_path: Path) -> None:
    notes = Notes()
    found = placed("dice", tmp_path / "costs.db", 1, notes)
    report = optimization_json(found, "model")
    assert report["random"] == [{"node": "r", "op": "RandomUniformLike", "seed": 1}]
    assert "seeds: r (RandomUniformLike) 1" in explain_text(report)
    (note,) = [n for n in notes.told if "random" in n]
    assert "r (RandomUniformLike) with seed 1" in note
    assert note.endswith("range: y")
    assert report["infeasible"] == report["rejected"] == []
    record = comparison_of(found).records[COLLAGE]
    assert record.ok
    assert record.error == 0.0


@pytest.mark.usefixtures("dice")
def test_numbers_out_of_range_are_wrong(tmp_path: Path) -> None:
    (wrong,) = optimization_json(placed("loaded", tmp_path / "costs.db", 0), "model")["infeasible"]
    assert (wrong["backend"], wrong["ops"]) == ("loaded", "RandomUniformLike")
    assert wrong["reason"].startswith("wrong: output 'r' should hold numbers from 2 to 3, and holds ")


@pytest.mark.usefixtures("dice")
def test_what_does_not_depend_on_a_draw_is_compared_as_ever(tmp_path: Path) -> None:
    (wrong,) = optimization_json(placed("sloppy", tmp_path / "costs.db", 0), "model")["infeasible"]
    assert (wrong["backend"], wrong["ops"]) == ("sloppy", "Relu")
    assert "more than 0.0001" in wrong["reason"]


def test_a_graph_without_inputs_is_placed(tmp_path: Path) -> None:
    drawing = make_model([node("RandomNormal", [], "r", shape=[3, 2])], {})
    found = optimize(drawing, backends=[], costs=tmp_path / "costs.db", rounds=0)
    assert [g.backend for g in found.placement.groups] == ["reference"]


def comparison_of(found: Optimization) -> Comparison:
    assert found.comparison is not None
    return found.comparison
