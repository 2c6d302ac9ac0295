"""Values that are stored in another float type than the model's, where the target allows that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from collage_core import Constraints, Optimization, Target, Workspace, build, optimize
from collage_core.backend import Variant, plain_variant
from collage_core.errors import CollageError, PlacementError
from collage_core.formats import Format
from collage_core.ir import Subgraph, from_model
from collage_core.ir.passes import normalise
from collage_core.measuring.entrants import placement_entrant
from collage_core.pipeline.effort import NORMAL, QUICK, THOROUGH, Effort
from collage_core.placement import Conversion, Group, Placement
from collage_core.plugins import default_registry
from collage_core.runtime.plan import rounded_on_the_way

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_CHAIN = "(float[4,64] x) => (float y) { [n] a = Neg(x) [r] b = Relu(a) [e] c = Exp(b) [s] y = Neg(c) }"
_HALVES = Target("cpu", 1, ("float16",))


pytestmark = pytest.mark.usefixtures("halves")


def _optimize(parse: Parse, costs: Path, target: Target) -> Optimization:
    """On the backend of plugins/ alone: the reference does not sleep."""
    return optimize(
        parse(_CHAIN),
        backends=["halves"],
        target=target,
        costs=costs,
        constraints=Constraints(excluded=[("reference", None)]),
        effort=THOROUGH,
        rounds=2,
    )


def _stored(placement: Placement) -> list[str]:
    """The dtype of each group's output, in order."""
    return [g.variant.outputs[0].dtype for g in placement.groups]


@pytest.mark.ci
@pytest.mark.parametrize(("half", "tolerance"), [("float16", 1e-2), ("bfloat16", 2e-2)])
def test_what_is_allowed_is_taken_where_it_pays_and_is_right(
    parse: Parse, tmp_path: Path, half: str, tolerance: float
) -> None:
    found = _optimize(parse, tmp_path / "c.sqlite", Target("cpu", 1, (half,)))
    assert _stored(found.placement) == [half, half, "float32", half]
    assert [(c.source.dtype, c.destination.dtype, c.backend) for c in found.placement.conversions] == [
        (*pair, "reference") for pair in (("float32", half), (half, "float32")) * 2
    ]
    assert rounded_on_the_way(found.graph, found.placement) == {half}
    record = found.comparison.records["collage"] if found.comparison else None
    assert record is not None
    assert record.ok, "it is held to what it stores its values in"
    assert record.error is not None
    assert 1e-6 < record.error < tolerance
    wrong = [r for r in found.costs.kernels.values() if r.status == "wrong"]
    (reason,) = [r.reason or "" for r in wrong]
    limits = rf"more than {tolerance:g} for {half}, and more than twice the 0\.00.*"
    match = re.fullmatch(rf"output 'c' has error (0\.\d+), {limits}", reason)
    assert match is not None, reason
    assert float(match[1]) > tolerance

    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    (y,) = build(found.graph, found.placement)({"x": x}).values()
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, -np.exp(np.maximum(-x, 0)), rtol=tolerance)


@pytest.mark.parametrize(
    "effort",
    [QUICK, *(pytest.param(e, marks=pytest.mark.ci) for e in (NORMAL, THOROUGH))],
    ids=lambda e: e.name,
)
def test_where_rounding_makes_a_wrong_answer_nothing_is_rounded(
    parse: Parse, tmp_path: Path, effort: Effort
) -> None:
    """Which number is the largest, of those that are 8000 and a little: float16 cannot tell."""
    nodes = "[h] a = Add(x, c) [r] b = Abs(a) [n] d = Neg(b) [s] y = ArgMax<axis=1>(d)"
    text = f"(float[4,64] x) => (int64[4,1] y) <float[1] c = {{8000.0}}> {{ {nodes} }}"
    only = [("reference", op) for op in ("Abs", "Neg")]

    def run() -> Optimization:
        return optimize(
            parse(text),
            backends=["halves"],
            target=_HALVES,
            costs=tmp_path / "c.sqlite",
            constraints=Constraints(excluded=only),
            effort=effort,
        )

    first = run()
    assert set(_stored(first.placement)) == {"float32", "int64"}
    assert any("output 'y' (int64) differs" in reason for reason in first.rejected)
    record = first.comparison.records["collage"] if first.comparison else None
    assert record is not None
    assert record.ok
    again = run()
    assert again.placement.digest == first.placement.digest
    assert again.counts["measured"] == 0


@pytest.mark.ci
def test_nothing_is_rounded_that_was_not_asked_for(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse, tmp_path / "c.sqlite", Target("cpu", 1))
    assert set(_stored(found.placement)) == {"float32"}
    assert not found.placement.conversions
    assert not rounded_on_the_way(found.graph, found.placement)
    refused = [r.reason for r in found.candidates.refusals["halves"]]
    assert "offered with 'x', which is float32[4,64], as float16:plain" in refused


@pytest.mark.slow
def test_a_placement_says_what_it_may_round_to(parse: Parse, tmp_path: Path) -> None:
    found = _optimize(parse, tmp_path / "c.sqlite", _HALVES)
    data: dict[str, Any] = json.loads(json.dumps(found.placement.to_json()))
    assert data["precisions"] == ["float16"]
    assert Placement.from_json(data) == found.placement
    data["precisions"] = []
    with pytest.raises(PlacementError, match=r"'x' is float32\[4,64\] and cannot be stored as float16:plain"):
        build(found.graph, Placement.from_json(data))
    del data["precisions"]
    assert Placement.from_json(data).target == Target("cpu", 1), "written before there were any"


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["float16", "int8", "nonsense"])
def test_a_conversion_rounds_to_nothing_else_either(parse: Parse, dtype: str) -> None:
    """Whoever has written it into a placement, on the way between two formats of the value's own type."""
    graph = normalise(from_model(parse("(float[4,64] x) => (float y) { [n] y = Neg(x) }")))
    here, turned, between = Format("float32", (0, 1)), Format("float32", (1, 0)), Format(dtype, (0, 1))
    conversions = tuple(Conversion("x", *ends, "reference") for ends in ((here, between), (between, turned)))
    group = Group("halves", (graph.nodes[0].id,), Variant((turned,), (here,)))
    with pytest.raises(PlacementError, match=rf"'x' is float32.* and cannot be stored as {dtype}:plain"):
        build(graph, Placement((group,), conversions, Target("cpu", 1)))
    allowed = Placement((group,), conversions, _HALVES)
    if dtype == "float16":
        assert rounded_on_the_way(graph, allowed) == {"float16"}


@pytest.mark.ci
def test_a_type_of_the_models_own_is_no_rounding(parse: Parse) -> None:
    text = "(float[4,64] x, float16[4,64] h) => (float y, float16 z) { [n] y = Neg(x) [m] z = Neg(h) }"
    graph = normalise(from_model(parse(text)))
    groups = (Group("halves", (n.id,), plain_variant(Subgraph(graph, [n.id]))) for n in graph.nodes)
    placement = Placement(tuple(groups), (), _HALVES)
    assert not rounded_on_the_way(graph, placement)
    with Workspace(graph) as workspace:
        entrant = placement_entrant(workspace, "both", placement, default_registry())
        held_to = entrant.held_to()
    assert held_to == {"y": "float32", "z": "float16"}


@pytest.mark.ci
def test_a_network_is_held_to_what_rounding_makes_of_it(parse: Parse, tmp_path: Path) -> None:
    """A difference of large numbers: float16 tells them apart by steps of 0.5, and so does the answer."""
    nodes = "[h] a = Add(x, c) [r] b = Relu(a) [n] d = Neg(b) [s] y = Add(d, c)"
    found = optimize(
        parse(f"(float[4,64] x) => (float y) <float[1] c = {{800.0}}> {{ {nodes} }}"),
        backends=["halves"],
        target=_HALVES,
        costs=tmp_path / "c.sqlite",
        constraints=Constraints(excluded=[("reference", "Relu"), ("reference", "Neg")]),
        effort=THOROUGH,
        rounds=2,
    )
    assert "float16" in _stored(found.placement)
    record = found.comparison.records["collage"] if found.comparison else None
    assert record is not None
    assert record.ok, record.reason
    assert record.error is not None
    assert record.error > 2e-2, "more than the tolerance, and no more than rounding does"


@pytest.mark.ci
@pytest.mark.parametrize("given", [["float16"], {"float16"}, ("float16", "float16")])
def test_targets_that_allow_the_same_are_one(given: Any) -> None:
    assert Target("cpu", 1, given) == _HALVES
    assert hash(Target("cpu", 1, given)) == hash(_HALVES)


@pytest.mark.ci
@pytest.mark.parametrize("given", ["sim", None, 5, (5,)])
def test_what_are_no_devices_is_refused(given: Any) -> None:
    with pytest.raises(CollageError, match="is a tuple of devices' names"):
        Target("cpu", 1, (), given)


@pytest.mark.ci
def test_devices_go_by_their_names() -> None:
    assert Target("cpu", 1, (), ("B", "a", "cpu")).devices == ("cpu", "a", "b")


@pytest.mark.ci
@pytest.mark.parametrize("given", ["float16", None, 5, ("int8",), ("half",), (5,)])
def test_what_is_no_precision_is_refused(given: Any) -> None:
    with pytest.raises(CollageError, match=r"is a tuple of float types|is no precision to store floats in"):
        Target("cpu", 1, given)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("stored", "dtype", "rank", "can"),
    [
        (Format("float16", (0, 1)), "float32", 2, True),
        (Format("float32", (1, 0)), "bfloat16", 2, True),
        (Format("float16", (0, 1)), "float32", 3, False),
        (Format("int8", (0, 1)), "float32", 2, False),
        (Format("float32", (0, 1)), "int32", 2, False),
        (Format("int32", (0, 1)), "int32", 2, True),
    ],
)
def test_floats_are_stored_as_floats(stored: Format, dtype: str, rank: int, can: bool) -> None:
    assert stored.can_store(dtype, rank) is can
