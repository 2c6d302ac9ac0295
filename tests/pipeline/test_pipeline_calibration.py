"""What a group costs beyond its kernel: fitted from steps timed in place, kept, and part of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from collage_core import Target, Variant, default_registry
from collage_core.costs.database import CostDatabase
from collage_core.costs.record import CostRecord
from collage_core.errors import BackendError
from collage_core.formats import channels_last, plain
from collage_core.ir import Graph, TensorType, from_model
from collage_core.pipeline import calibration
from collage_core.pipeline.costing import Costs
from collage_core.pipeline.progress import Silent
from collage_core.placement import VIEW, Group, Placement
from collage_core.search.transitions import Transitions

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse


@pytest.fixture
def graph(parse: Parse) -> Graph:
    text = """(float[2, 3] x) => (float[2, 3] y)
    { [a] p = Relu(x)  [b] q = Reshape(p, s)  [c] r = Sigmoid(q)  [d] t = Tanh(p)  [e] u = Reshape(r, z)
      [f] y = Add(u, t) }"""
    return from_model(parse(text, s=np.array([6]), z=np.array([2, 3])))


def _placement(graph: Graph, **backends: str) -> Placement:
    groups = []
    for node in graph.nodes:
        read = [v for v in node.inputs if not graph.is_constant(v)]
        variant = Variant(
            tuple(plain("float32", graph.shape_of(v)) for v in read),
            tuple(plain("float32", graph.shape_of(v)) for v in node.outputs),
        )
        groups.append(
            Group(backends[node.name], (node.id,), variant, 0.0 if backends[node.name] == VIEW else 1.0)
        )
    return Placement(tuple(groups), (), Target("cpu", 1))


def test_crossings_are_those_that_the_search_counts(graph: Graph) -> None:
    placement = _placement(graph, a="one", b=VIEW, c="two", d="two", e=VIEW, f="one")
    took_ms = [1.5, 0.0, 2.0, 1.25, 0.0, 3.0]
    assert calibration._excess(graph, placement, took_ms) == [
        ("one", 0, 0.5),
        ("two", 0, 1.0),  # through a view
        ("two", 1, 0.25),
        ("one", 1, 2.0),
    ]


def test_constants_are_medians() -> None:
    steps = [("one", 0, 0.1), ("one", 0, 0.2), ("one", 0, 9.0), ("one", 1, 0.5), ("one", 2, 0.9)]
    steps += [("two", 1, 0.3), ("two", 1, 0.4), ("low", 0, -1.0), ("low", 0, -2.0), ("low", 0, -3.0)]
    details = calibration._fit(steps, ["one", "two", "low", "idle"]).details
    assert details["group_ms"] == pytest.approx({"one": 0.2, "two": 0.35, "low": 0.0, "idle": 0.0})
    # One's share above its own constant is 0.3, and 0.35 for each of two values; two's -0.05 and 0.05.
    assert details["crossing_ms"] == pytest.approx((0.05 + 0.3) / 2)


@pytest.mark.ci
def test_calibrated_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLAGE_CALIBRATION")
    registry = default_registry()
    backends = {b.name: b for b in registry.available(["tvm", "reference"])}
    with CostDatabase(tmp_path / "c.sqlite") as database:

        def calibrate() -> tuple[Transitions, int]:
            return calibration.calibrate(backends, Target("cpu", 1), database, registry, Silent())

        found, measured = calibrate()
        assert measured > 1
        assert found.group_ms.keys() == backends.keys()
        assert all(0 <= ms < 1e3 for ms in (*found.group_ms.values(), found.crossing_ms))
        monkeypatch.setattr(calibration, "_measure", None)
        assert calibrate() == (found, 0)


def test_failure_costs_nothing_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BackendError("no room")

    monkeypatch.delenv("COLLAGE_CALIBRATION")
    monkeypatch.setattr(calibration, "_measure", fail)
    told: list[str] = []

    class Listener(Silent):
        def note(self, text: str) -> None:
            told.append(text)

    registry = default_registry()
    backends = {b.name: b for b in registry.available(["tvm", "reference"])}
    with CostDatabase(tmp_path / "c.sqlite") as database:
        found = calibration.calibrate(backends, Target("cpu", 1), database, registry, Listener())
        assert found == (Transitions(), 0)
        assert len(database) == 0, "the next run tries again"
    assert told == ["groups and crossings are taken to cost nothing, since calibration failed: no room"]


def test_where_nothing_is_to_be_measured_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLAGE_CALIBRATION")
    monkeypatch.setattr(calibration, "_measure", None)
    registry = default_registry()
    with CostDatabase(tmp_path / "c.sqlite") as database:
        for names, measure in ((["tvm", "reference"], False), (["reference"], True)):
            backends = {b.name: b for b in registry.available(names)}
            found = calibration.calibrate(
                backends, Target("cpu", 1), database, registry, Silent(), measure=measure
            )
            assert found == (Transitions(), 0)


def test_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    with CostDatabase(tmp_path / "c.sqlite") as database:
        found = calibration.calibrate({}, Target("cpu", 1), database, default_registry(), Silent())
    assert found == (Transitions(), 0)


def test_conversions_are_chosen_with_what_their_group_costs() -> None:
    type = TensorType("float32", (1, 4, 2, 2))
    key = type, plain("float32", type.static_shape), channels_last("float32", type.static_shape)
    records = {"quick": CostRecord("ok", 0.010, 0.0, 30), "near": CostRecord("ok", 0.012, 0.0, 30)}
    costs = Costs({}, {key: records})
    assert costs.converters() == {key: ("quick", 0.010)}
    assert costs.converters(None, Transitions({"quick": 0.003})) == {key: ("near", 0.012)}
    assert costs.converters(["quick"], Transitions({"quick": 0.003})) == {key: ("quick", 0.010)}
