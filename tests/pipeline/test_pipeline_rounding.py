"""Rounding within an error that is allowed: what gains most time for its error, and no more."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from collage_core import Constraints, Optimization, Target, Workspace, build, optimize
from collage_core.costs.contributions import filled_in, spread_out, squared_errors
from collage_core.costs.inputs import synthesise_inputs
from collage_core.costs.recording import reference_worker
from collage_core.errors import CollageError, InputError
from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise
from collage_core.measuring import held_out
from collage_core.measuring.metric import Metric, metric_in
from collage_core.pipeline.calibration import samples_of
from collage_core.pipeline.effort import NORMAL, QUICK, THOROUGH, Effort
from collage_core.placement import Placement
from collage_core.reference import evaluate, stored_as
from collage_core.search.formulate import formulate
from collage_core.search.penalties import Penalties

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_HALVES = Target("cpu", 1, ("float16",))
_TWO_WAYS = """(float[4,64] x, float[4,64] z) => (float y) <float[1] k = {0.001}> {
    [n] a = Neg(x) [m] b = Abs(z) [k] c = Mul(b, k) [s] y = Add(a, c) }"""
"""What rounding `a` does, 5e-4, shows; of what it does to `b` a thousandth."""


pytestmark = pytest.mark.usefixtures("halves")


def _within(
    parse: Parse,
    costs: Path,
    max_error: float,
    *,
    calibration: Mapping[str, Array] | None = None,
    metric: Metric | None = None,
    effort: Effort = THOROUGH,
) -> Optimization:
    return optimize(
        parse(_TWO_WAYS),
        backends=["halves"],
        target=_HALVES,
        costs=costs / "c.sqlite",
        constraints=Constraints(excluded=[("reference", "Neg"), ("reference", "Abs")]),
        effort=effort,
        rounds=2,
        max_error=max_error,
        calibration=calibration,
        metric=metric,
    )


def _rounded(graph: Graph, placement: Placement) -> set[str]:
    """Values that are stored as float16."""
    of_groups = (
        zip(graph.node(g.nodes[-1]).outputs, g.variant.outputs, strict=True) for g in placement.groups
    )
    return {v for pairs in of_groups for v, f in pairs if f.dtype == "float16"}


@pytest.mark.parametrize(
    ("max_error", "rounded"),
    [
        pytest.param(1e-2, "ab", id="all"),
        pytest.param(1e-4, "b", id="some"),
        pytest.param(1e-8, "", id="nothing"),
    ],
)
@pytest.mark.parametrize(
    "effort",
    [pytest.param(NORMAL, marks=pytest.mark.ci), pytest.param(THOROUGH, marks=pytest.mark.slow)],
    ids=lambda e: e.name,
)
def test_what_is_rounded_hangs_on_the_error_that_is_allowed(
    parse: Parse, tmp_path: Path, max_error: float, rounded: str, effort: Effort
) -> None:
    found = _within(parse, tmp_path, max_error, effort=effort)
    assert _rounded(found.graph, found.placement) == set(rounded)
    assert found.spent is not None
    assert found.spent.most == max_error
    assert found.spent.samples == 16
    if rounded:
        assert found.spent.error is not None
        assert found.spent.error <= max_error
    again = _within(parse, tmp_path, max_error, effort=effort)
    assert again.placement.digest == found.placement.digest
    assert again.counts["measured"] == 0
    assert again.spent is not None
    assert again.spent.error == found.spent.error
    assert found.spent.tried
    assert set(again.spent.tried) == set(found.spent.tried)
    if rounded:
        assert found.spent.error in {t.held_out_error for t in found.spent.tried}

    rng = np.random.default_rng(5)
    x, z = (rng.standard_normal((4, 64)).astype(np.float32) for _ in range(2))
    (y,) = build(found.graph, found.placement)({"x": x, "z": z}).values()
    expected = np.abs(z) * np.float32(0.001) - x
    assert np.abs(y - expected).max() <= max(max_error, 1e-6) * np.abs(expected).max()


@pytest.mark.ci
def test_what_others_are_likely_to_be_off_by_decides(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst that was seen would hold: all is rounded within this limit, as they are."""
    monkeypatch.setattr(held_out, "of_others", lambda errors: 100 * max(errors))
    found = _within(parse, tmp_path, 1e-2, effort=NORMAL)
    assert _rounded(found.graph, found.placement) == {"b"}
    assert found.spent is not None
    assert any(1e-4 < (t.held_out_error or 0.0) <= 1e-2 for t in found.spent.tried)


@pytest.mark.ci
def test_inputs_that_are_held_out_decide(parse: Parse, tmp_path: Path) -> None:
    """On the first sample rounding `b` does next to nothing; on the others it is most of the answer."""
    rng = np.random.default_rng(1)
    x, z = (rng.standard_normal((3, 4, 64)).astype(np.float32) for _ in range(2))
    z[1:] *= 1e4
    found = _within(parse, tmp_path, 1e-4, calibration={"x": x, "z": z})
    assert not _rounded(found.graph, found.placement)
    assert found.spent is not None
    assert found.spent.samples == 2


@pytest.mark.ci
def test_every_place_does_what_rounding_it_does(parse: Parse) -> None:
    graph = normalise(from_model(parse(_TWO_WAYS)))
    sites = [(v, "float16") for v in ("x", "z", "a", "b", "k", "c")]
    with Workspace(graph) as workspace, reference_worker() as worker:
        found = squared_errors(worker, workspace.graph_folder, workspace.recording.directory, sites, math.inf)
        values = {v: np.array(workspace.recording.load(v)) for v in ("x", "z", "a", "b", "c", "y")}
    assert found.keys() == set(sites)
    rounded = {v: stored_as(a, "float16") for v, a in values.items()}
    y, k = values["y"], graph.constants["k"]
    alone = {
        "x": values["c"] - rounded["x"],
        "a": values["c"] + rounded["a"],
        "b": values["a"] + rounded["b"] * k,
        "k": values["a"] + values["b"] * stored_as(k, "float16"),
        "c": values["a"] + rounded["c"],
    }
    for v, answer in alone.items():
        error = np.abs(answer - y).max() / np.abs(y).max()
        assert found[v, "float16"] == pytest.approx(error**2, rel=1e-3), v
    assert found["b", "float16"] < 1e-4 * found["a", "float16"]


@pytest.mark.ci
def test_any_beginning_is_spread_over_all() -> None:
    sites = [(str(i), "float16") for i in range(33)]
    order = [int(v) for v, _ in spread_out(sites)]
    assert sorted(order) == list(range(33))
    for count in (3, 5, 9, 17):
        gaps = np.diff(sorted(order[:count]))
        assert gaps.max() <= 2 * gaps.min(), count
    assert spread_out([]) == []
    assert spread_out(sites[:1]) == sites[:1]


@pytest.mark.ci
def test_what_was_not_measured_is_as_bad_as_its_worse_neighbour() -> None:
    sites = [(v, "float16") for v in "abcdef"]
    filled = filled_in(sites, {sites[1]: 4.0, sites[4]: 1.0})
    assert [filled[s] for s in sites] == [4.0, 4.0, 4.0, 4.0, 1.0, 1.0]
    assert set(filled_in(sites, {}).values()) == {0.0}


_GOOD = {"x": np.arange(512, dtype=np.float32).reshape(2, 4, 64), "z": np.ones((2, 4, 64), np.float32)}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"x": None}, "input 'x' is missing"),
        ({"q": np.ones(3)}, "the model has no input 'q'; it has x, z"),
        ({"x": np.ones((4, 64), np.float32)}, r"'x' must be float32\[samples, 4, 64\], not float32\[4, 64\]"),
        ({"x": np.ones((2, 4, 64))}, r"'x' must be float32\[samples, 4, 64\], not float64\[2, 4, 64\]"),
        (
            {"x": np.ones((3, 4, 64), np.float32)},
            "as many samples are needed of each input, not 3 of 'x', 2 of",
        ),
        ({n: a[:1] for n, a in _GOOD.items()}, "1 samples; at least 2 are needed"),
        ({"x": np.ones((2, 4, 64), np.float32)}, "all samples are the same"),
        ({"x": np.full((2, 4, 64), np.nan, np.float32)}, "'x' holds NaN or infinity"),
    ],
)
def test_a_calibration_that_does_not_fit(
    parse: Parse, changed: Mapping[str, Array | None], told: str
) -> None:
    graph = normalise(from_model(parse(_TWO_WAYS)))
    given = {n: a for n, a in {**_GOOD, **changed}.items() if a is not None}
    with pytest.raises(CollageError, match=f"calibration: {told}"):
        samples_of(graph, given)


@pytest.mark.ci
@pytest.mark.parametrize("max_error", [0.0, -1.0, 1.0, math.nan, math.inf])
def test_an_error_that_is_none(parse: Parse, tmp_path: Path, max_error: float) -> None:
    with pytest.raises(CollageError, match="max_error must be above 0 and below 1"):
        _within(parse, tmp_path, max_error)


@pytest.mark.ci
@pytest.mark.parametrize("max_error", ["0.01", True])
def test_an_error_that_is_no_number(parse: Parse, tmp_path: Path, max_error: Any) -> None:
    with pytest.raises(CollageError, match=f"max_error is a number, not {max_error!r}"):
        _within(parse, tmp_path, max_error)


@pytest.mark.ci
def test_a_price_is_added_to_what_rounds_and_to_nothing_else(parse: Parse, tmp_path: Path) -> None:
    found = _within(parse, tmp_path, 1e-2)
    squared = {site: 2.0 for c in found.candidates.candidates for site in c.rounding_sites}
    told = found.candidates, found.costs.record_of, found.costs.converters()
    plain, priced = formulate(*told), formulate(*told, penalties=Penalties(squared, 0.5))
    assert any(c.rounded_sites for c in plain.choices)
    for c, before, after in zip(plain.choices, plain.problem.choices, priced.problem.choices, strict=True):
        assert after.cost_ms - before.cost_ms == pytest.approx(len(c.rounded_sites))
    rounding = 0
    for (v, source, destination), before_ms in plain.problem.conversion_ms.items():
        added_ms = priced.problem.conversion_ms[v, source, destination] - before_ms
        ends = plain.formats[source].dtype, plain.formats[destination].dtype
        rounds = ends == ("float32", "float16") and (plain.value_names[v], "float16") in squared
        assert added_ms == pytest.approx(float(rounds)), ends
        rounding += rounds
    assert rounding


@pytest.mark.ci
def test_rounding_adds_up_as_the_reference_has_it(parse: Parse) -> None:
    """Of places that have nothing to do with each other, the squares of the errors add up, about."""
    graph = normalise(
        from_model(parse("(float[64,64] x) => (float y) { a = Exp(x) b = Sin(a) c = Cos(a) y = Add(b, c) }"))
    )
    sites = [(v, "bfloat16") for v in ("b", "c")]
    with Workspace(graph) as workspace, reference_worker() as worker:
        found = squared_errors(worker, workspace.graph_folder, workspace.recording.directory, sites, math.inf)
        values = {v: np.array(workspace.recording.load(v)) for v in ("b", "c", "y")}
    both = stored_as(values["b"], "bfloat16") + stored_as(values["c"], "bfloat16")
    error = np.abs(both - values["y"]).max() / np.abs(values["y"]).max()
    assert 0.5 * error <= math.sqrt(sum(found.values())) <= 2.0 * error


def _random_model(rng: np.random.Generator) -> str:
    """Some operators that the backend has and some that it has not, on values of all sizes."""
    lines, values, constants = [], ["x"], []
    for i in range(int(rng.integers(3, 8))):
        op, value = str(rng.choice(["Neg", "Abs", "Relu", "Mul", "Add", "Sin"])), f"v{i}"
        inputs = [str(rng.choice(values[-3:]))]
        if op == "Mul":
            constants.append(f"float[1] k{i} = {{{10.0 ** rng.integers(-3, 2)}}}")
            inputs.append(f"k{i}")
        elif op == "Add":
            inputs.append(str(rng.choice(values)))
        lines.append(f"[n{i}] {value} = {op}({', '.join(inputs)})")
        values.append(value)
    ends = ", ".join(f"float {v}" for v in values[-2:])
    return f"(float[4,64] x) => ({ends}) <{', '.join(constants)}> {{ {' '.join(lines)} }}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_graph_and_the_limit_it_is_held(parse: Parse, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    max_error = float(10.0 ** rng.uniform(-6, -1))
    found = optimize(
        parse(_random_model(rng)),
        backends=["halves"],
        target=_HALVES,
        costs=tmp_path / "c.sqlite",
        effort=QUICK,
        rounds=2,
        max_error=max_error,
    )
    executable = build(found.graph, found.placement)
    for sample in range(1, 17):
        inputs = synthesise_inputs(found.graph, sample)
        answers, expected = executable(inputs), evaluate(found.graph, inputs)
        for name, right in expected.items():
            assert np.abs(answers[name] - right).max() <= max(max_error, 1e-6) * np.abs(right).max(), name


_METRIC = """
import numpy as np

def far(outputs, expected):
    assert set(outputs) == set(expected) == {"y"}
    assert outputs["y"].shape == expected["y"].shape == (17, 4, 64)
    return float(np.abs(outputs["y"] - expected["y"]).max() > LIMIT)

def broken(outputs, expected):
    return outputs["q"]

def negative(outputs, expected):
    return -1.0

def nan(outputs, expected):
    return float("nan")
"""


@pytest.mark.parametrize(
    ("limit", "rounded"),
    [
        pytest.param(1.0, "ab", marks=pytest.mark.slow),
        pytest.param(1e-4, "b", marks=pytest.mark.ci),
        pytest.param(1e-9, "", marks=pytest.mark.slow),
    ],
)
def test_a_metric_of_a_person_decides(parse: Parse, tmp_path: Path, limit: float, rounded: str) -> None:
    """It jumps from 0 to 1 where an element is off by more than `limit`; what is allowed lies between."""
    file = tmp_path / "metrics.py"
    file.write_text(_METRIC.replace("LIMIT", repr(limit)))
    metric = metric_in(f"{file}:far")
    found = _within(parse, tmp_path, 0.5, metric=metric)
    assert _rounded(found.graph, found.placement) == set(rounded)
    assert found.spent is not None
    assert (found.spent.metric, found.spent.most) == ("far", 0.5)
    assert found.spent.error == (0.0 if rounded else None)
    again = _within(parse, tmp_path, 0.5, metric=metric)
    assert (again.placement.digest, again.counts["measured"]) == (found.placement.digest, 0)


@pytest.mark.ci
def test_a_metric_that_fails_is_named(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "metrics.py"
    file.write_text(_METRIC)
    with pytest.raises(InputError, match="metric broken: it fails: KeyError: 'q'"):
        _within(parse, tmp_path, 0.5, metric=metric_in(f"{file}:broken"), effort=QUICK)
    with pytest.raises(InputError, match="metric negative: -1 is no error"):
        _within(parse, tmp_path, 0.5, metric=metric_in(f"{file}:negative"), effort=QUICK)
    with pytest.raises(InputError, match=r"metric nan: inf for equal answers is more than 0\.5"):
        _within(parse, tmp_path, 0.5, metric=metric_in(f"{file}:nan"), effort=QUICK)


@pytest.mark.ci
def test_metrics_that_are_not_there(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "metrics.py"
    for place, why in {
        "metrics.py": "FILE.py:FUNCTION is needed",
        f"{file}:far": "No such file",
    }.items():
        with pytest.raises(CollageError, match=why):
            metric_in(place)
    file.write_text("import nothing_at_all\n")
    with pytest.raises(CollageError, match=r"metrics.py fails: ModuleNotFoundError"):
        metric_in(f"{file}:far")
    (tmp_path / "beside.py").write_text("LIMIT = 3\n")
    file.write_text("from beside import LIMIT\n\ndef far(outputs, expected):\n    return LIMIT\n")
    assert metric_in(f"{file}:far")({}, {}) == 3.0
    assert str(tmp_path) not in sys.path
    file.write_text("import sys\nsys.exit()\n")
    with pytest.raises(CollageError, match=r"metrics.py fails: SystemExit"):
        metric_in(f"{file}:far")
    file.write_text("far = 3\n")
    with pytest.raises(CollageError, match="has no function far"):
        metric_in(f"{file}:far")
    with pytest.raises(CollageError, match="metric says nothing without max_error"):
        optimize(parse(_TWO_WAYS), costs=tmp_path / "c.sqlite", metric=lambda outputs, expected: 0.0)
    with pytest.raises(CollageError, match="has no source"):
        Metric.of(eval("lambda outputs, expected: 0.0"))
    limit = float(file.stat().st_size)
    with pytest.raises(CollageError, match="closes over others"):
        Metric.of(lambda outputs, expected: limit)


@pytest.mark.ci
def test_a_metric_is_known_by_its_source(tmp_path: Path) -> None:
    file = tmp_path / "metrics.py"
    file.write_text(_METRIC.replace("LIMIT", "1"))
    first = metric_in(f"{file}:far")
    assert metric_in(f"{file}:far").digest == first.digest
    assert metric_in(f"{file}:nan").digest != first.digest
    file.write_text(_METRIC.replace("LIMIT", "2"))
    assert metric_in(f"{file}:far").digest != first.digest

    def by(outputs: object, expected: object, by: float = 1.0) -> float:
        return by

    before = Metric.of(by).digest
    by.__defaults__ = (2.0,)
    assert Metric.of(by).digest != before
