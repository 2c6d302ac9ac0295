"""Patterns and a rule that a user registers place operators, from `add_backend_pattern` to right numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import collage_core as collage
from collage_core import Constraints, Optimization, Target, build, is_op, kBroadcast, kFusable, wildcard
from collage_core.formats import Array
from collage_core.ir import Operator, OpKind
from collage_core.plugins import default_registry
from collage_core.registration import clear_registered

if TYPE_CHECKING:
    from tests.pipeline.conftest import Answer, Parse

_TARGET = Target("cpu", 1)
_ARITHMETIC = ("Mul", "Add", "Relu", "Neg", "Exp")


def _error(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """max|difference| / max|reference|, the worst of the outputs."""
    return max(float(np.max(np.abs(found[v] - y)) / np.max(np.abs(y))) for v, y in expected.items())


def _placed(o: Optimization, backend: str) -> dict[str, str]:
    """Where the groups of a backend come from, by the names of their nodes."""
    origins = {(c.backend, tuple(n.id for n in c.subgraph.nodes)): c.origin for c in o.candidates.candidates}
    return {
        "+".join(o.graph.node(i).name for i in g.nodes): origins[backend, g.nodes].split()[0]
        for g in o.mix.groups
        if g.backend == backend
    }


@pytest.fixture
def speechless(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed backend that says nothing by itself about what it can run."""
    name = "dnnl"
    backend = default_registry().backend(name)

    def nothing(self: object) -> Sequence[object]:
        return ()

    monkeypatch.setattr(type(backend), "patterns", nothing)
    monkeypatch.setattr(type(backend), "rules", nothing)
    yield name
    clear_registered()


def test_an_installed_library(speechless: str, parse: Parse, answer: Answer, tmp_path: Path) -> None:
    model = parse(
        """(float[1,8,8,8] x) => (float y) {
            [conv] c = Conv<pads=[1,1,1,1]>(x, w)
            [relu] r = Relu(c)
            [last] d = Conv(r, v)
            [exp] e = Exp(d)
            [odd] y = CumSum(e, axis)
        }""",
        w=(8, 8, 3, 3),
        v=(4, 8, 1, 1),
        axis=np.array(1),
    )

    def run() -> Optimization:
        return collage.optimize(
            model, backends=[speechless], target=_TARGET, costs=tmp_path / "c.sqlite", rounds=0
        )

    assert _placed(run(), speechless) == {}

    convolution = is_op("conv2d")(wildcard(), wildcard())
    collage.add_backend_pattern(backend="DNNL", pattern=convolution)
    collage.add_backend_pattern(backend="DNNL", pattern=is_op("relu")(convolution))
    collage.add_backend_pattern_rule(
        backend="DNNL", valid_ops=lambda op: op.op_type == "Exp", fusion_rule=lambda kind, src, sink: False
    )
    result = run()
    assert _placed(result, speechless) == {"conv+relu": "pattern", "last": "pattern", "exp": "rule"}
    x = {"x": np.random.default_rng(1).standard_normal((1, 8, 8, 8), dtype=np.float32)}
    assert _error(build(result.graph, result.placement)(x), answer(model, x)) < 1e-4


@pytest.mark.ci
@pytest.mark.usefixtures("grudges")
def test_a_plugin_without_patterns(parse: Parse, answer: Answer, tmp_path: Path) -> None:
    model = parse(
        """(float[16] x) => (float y) {
            [mul] m = Mul(w, x)
            [add] a = Add(m, x)
            [relu] r = Relu(a)
            [sum] s = CumSum(r, axis)
            [neg] n = Neg(s)
            [exp] y = Exp(n)
        }""",
        w=(16,),
        axis=np.array(0),
    )
    fused = is_op("relu")(is_op("add")(is_op("mul")(wildcard(), wildcard()), wildcard()))
    collage.add_backend_pattern(backend="Handy", pattern=fused)

    def fusion_rule(kind: OpKind, src: Operator, sink: Operator) -> bool:
        assert kind <= kFusable
        return bool(collage.check_path(src, sink, lambda op: op.kind <= kBroadcast))

    collage.add_backend_pattern_rule(
        backend="handy", valid_ops=lambda op: op.op_type in _ARITHMETIC[-2:], fusion_rule=fusion_rule
    )
    result = collage.optimize(
        model,
        backends=["handy"],
        target=_TARGET,
        costs=tmp_path / "c.sqlite",
        constraints=Constraints(excluded=[("reference", op) for op in _ARITHMETIC]),
        rounds=2,
    )
    assert _placed(result, "handy") == {"mul+add+relu": "pattern", "neg+exp": "rule"}
    x: dict[str, Array] = {"x": np.random.default_rng(1).standard_normal(16, dtype=np.float32)}
    assert _error(build(result.graph, result.placement)(x), answer(model, x)) < 1e-6
