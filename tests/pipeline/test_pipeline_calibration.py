"""What a group costs beyond its kernel: fitted from steps timed in place, kept, and part of predictions."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from collage_core import Target, Variant, default_registry
from collage_core.costs.database import CostDatabase
from collage_core.costs.record import CostRecord
from collage_core.errors import BackendError
from collage_core.formats import channels_last, plain
from collage_core.ir import Graph, TensorType, from_model
from collage_core.measuring import calibration
from collage_core.measuring.costing import Costs
from collage_core.measuring.machine import Machine
from collage_core.measuring.progress import Silent
from collage_core.pipeline.found import Found
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
    assert calibration._steps(graph, placement, took_ms) == [
        ("one", (), 1.0, 1.5),
        ("two", (), 1.0, 2.0),  # through a view
        ("two", ("one",), 1.0, 1.25),
        ("one", ("two",), 1.0, 3.0),
    ]


@pytest.mark.parametrize("pace", [1.0, 1.12, 0.9])
def test_a_slower_machine_is_no_constant(pace: float) -> None:
    """What small steps take in place scatters by far more than they take. Two large ones were disturbed. The
    other backend has large steps and a large constant: to compare its steps with these would tell nothing.
    Nor would what others' values cross to.
    """
    rng = np.random.default_rng(0)
    small = [*rng.uniform(0.004, 0.03, 40), *rng.uniform(0.15, 0.2, 12)]
    steps = [calibration._Step("one", (), ms, pace * ms + 0.01 + abs(rng.normal(0.0, 0.01))) for ms in small]
    steps += [calibration._Step("two", (), ms, pace * ms + 0.3) for ms in rng.uniform(0.4, 0.6, 12)]
    steps += [calibration._Step("one", (), 0.18, 0.9), calibration._Step("one", (), 0.19, 0.7)]
    steps += [calibration._Step("one", ("two",), ms, 2.0 * ms) for ms in rng.uniform(0.1, 0.9, 20)]
    steps += [calibration._Step("few", (), 0.1, 0.1), calibration._Step("few", (), 9.0, 90.0)]
    assert calibration._pace(steps) == pytest.approx(pace, abs=0.03)
    assert calibration._excess(steps[:1], pace)[0][2] == pytest.approx(
        steps[0].took_ms - max(1.0, pace) * steps[0].alone_ms
    )


def test_the_pace_of_steps_that_take_the_same_is_not_known() -> None:
    assert calibration._pace([calibration._Step("one", (), 0.1, ms) for ms in (0.1, 0.2, 0.3)]) == 1.0


def test_constants_are_medians() -> None:
    steps: list[calibration._Excess] = [
        ("one", (), 0.1),
        ("one", (), 0.2),
        ("one", (), 9.0),
        ("one", ("two",), 0.5),
    ]
    steps += [("one", ("two", "two"), 0.9), ("two", ("one",), 0.3), ("two", ("one",), 0.4)]
    steps += [("low", (), -1.0), ("low", (), -2.0), ("low", (), -3.0)]
    details: Any = calibration._fit(steps, ["one", "two", "low", "idle"]).details
    assert details["group_ms"] == pytest.approx({"one": 0.2, "two": 0.35, "low": 0.0, "idle": 0.2})
    # From two to one remain 0.3 and twice 0.35, from one to two -0.05 and 0.05: 0.35 there and back.
    each = pytest.approx(0.35 / 2, abs=1e-6)
    assert details["crossing_ms"] == {"one": each, "two": each, "low": each, "idle": each}


def test_a_backend_that_is_slow_to_enter_is_paid_for_when_it_is_left() -> None:
    """Whatever the way around, what is predicted is what its crossings took."""
    share_ms = {"one": 0.004, "two": 0.03, "three": 0.05}
    pairs = [(a, b) for a in share_ms for b in share_ms if a != b]
    steps: list[calibration._Excess] = [(b, (), 0.0) for b in share_ms for _ in range(3)]
    steps += [(b, (a,), share_ms[a] + share_ms[b]) for a, b in pairs for _ in range(2)]
    steps += [("two", ("one",), 9.0), ("one", ("three",), 0.0)]  # disturbed
    found: Any = calibration._fit(steps, list(share_ms)).details["crossing_ms"]
    assert found == pytest.approx({name: 2 * ms for name, ms in share_ms.items()}, abs=1e-3)


@pytest.mark.parametrize("order", [["hub", "left", "right"], ["right", "left", "hub"]])
def test_there_and_back_costs_what_it_costs_whoever_comes_first(order: list[str]) -> None:
    """Twelve times one way and eight times the other; two spokes that never meet."""
    steps: list[calibration._Excess] = [(b, (), 0.0) for b in order for _ in range(3)]
    steps += [("hub", ("left",), 0.01)] * 12 + [("left", ("hub",), 0.09)] * 8
    steps += [("hub", ("right",), 0.02)] * 2 + [("right", ("hub",), 0.04)] * 5
    found: Any = calibration._fit(steps, order).details["crossing_ms"]
    assert found["hub"] + found["left"] == pytest.approx(0.10, abs=1e-4)
    assert found["hub"] + found["right"] == pytest.approx(0.06, abs=1e-4)
    assert found["left"] - found["right"] == pytest.approx(0.04, abs=1e-4)
    assert found["hub"] > 0.01, "nobody has it all"


@pytest.mark.slow
def test_every_library_is_seen_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside those that would take all of the network."""
    monkeypatch.delenv("COLLAGE_CALIBRATION")
    seen: set[str] = set()
    left: set[str] = set()
    fit = calibration._fit

    def watched(excess: list[calibration._Excess], backends: list[str]) -> CostRecord:
        seen.update(backend for backend, _, _ in excess)
        left.update(source for _, sources, _ in excess for source in sources)
        return fit(excess, backends)

    monkeypatch.setattr(calibration, "_fit", watched)
    registry = default_registry()
    backends = {b.name: b for b in registry.available(None)}
    with CostDatabase(tmp_path / "c.sqlite") as database:
        calibration.calibrate(Machine(backends, Target("cpu", 2), database, registry, Silent()))
    assert seen >= backends.keys() - {"reference"}
    assert left >= backends.keys() - {"reference"}


@pytest.mark.ci
def test_calibrated_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLAGE_CALIBRATION")
    registry = default_registry()
    backends = {b.name: b for b in registry.available(["tvm", "reference"])}
    with CostDatabase(tmp_path / "c.sqlite") as database:

        def calibrate() -> tuple[Transitions, int]:
            return calibration.calibrate(Machine(backends, Target("cpu", 1), database, registry, Silent()))

        found, measured = calibrate()
        assert measured > 1
        assert found.group_ms.keys() == backends.keys()
        assert all(0 <= ms < 1e3 for ms in (*found.group_ms.values(), *found.crossing_ms.values()))
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
        found = calibration.calibrate(Machine(backends, Target("cpu", 1), database, registry, Listener()))
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
            machine = Machine(backends, Target("cpu", 1), database, registry, Silent())
            found = calibration.calibrate(machine, measure=measure)
            assert found == (Transitions(), 0)


def test_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_CALIBRATION", "off")
    with CostDatabase(tmp_path / "c.sqlite") as database:
        found = calibration.calibrate(Machine({}, Target("cpu", 1), database, default_registry(), Silent()))
    assert found == (Transitions(), 0)


def test_conversions_are_chosen_with_what_their_group_costs() -> None:
    type = TensorType("float32", (1, 4, 2, 2))
    key = type, plain("float32", type.static_shape), channels_last("float32", type.static_shape)
    records = {"quick": CostRecord("ok", 0.010, 0.0, 30), "near": CostRecord("ok", 0.012, 0.0, 30)}
    costs = Costs({}, {key: records})
    assert costs.converters() == {key: ("quick", 0.010)}
    costs.transitions = Transitions({"quick": 0.003})
    assert costs.converters() == {key: ("near", 0.012)}
    assert costs.converters(["quick"]) == {key: ("quick", 0.010)}


@pytest.mark.parametrize(
    ("left_s", "took_ms", "is_worth_it"),
    [
        (150.0, 1.0, True),
        (150.0, 100.0, False),  # 40 nodes' constants are some 0.8 ms
        (150.0, None, True),
        (60.0, 1.0, False),
        (math.inf, 100.0, True),
    ],
)
def test_where_constants_cannot_matter_there_is_better_to_measure(
    left_s: float, took_ms: float | None, is_worth_it: bool
) -> None:
    known: Any = SimpleNamespace(candidates=SimpleNamespace(graph=SimpleNamespace(nodes=range(40))))
    best: Any = SimpleNamespace(took_ms=took_ms)
    assert Found(known, {}, best).is_worth_calibrating(left_s) == is_worth_it
