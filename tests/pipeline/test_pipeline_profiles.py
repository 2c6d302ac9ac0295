"""A model is placed for several shapes: what is measured is shared, and so is the time."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from chain_optimization import TARGET, Recorder

from collage_core import (
    Bundle,
    CollageError,
    ModelError,
    ProfileFound,
    Session,
    optimize_profiles,
    read_profiles,
    save,
)
from collage_core.ir import Graph
from collage_core.pipeline import profiles
from collage_core.pipeline.reading import Reading, read_model
from collage_core.report.keeping import keep

if TYPE_CHECKING:
    from tests.pipeline.conftest import Answer, Parse

_TEXT = """(float[n,3,6] x) => (float y) {
    [mul] m = MatMul(x, w)
    [soft] y = Softmax(m)
}"""


@pytest.fixture
def model(parse: Parse) -> onnx.ModelProto:
    return parse(_TEXT, w=(6, 5))


def _shapes(*counts: int) -> list[dict[str, tuple[int, ...]]]:
    return [{"n": (count,)} for count in counts]


def _options(folder: Path) -> dict[str, Any]:
    return {
        "backends": ["reference"],
        "target": TARGET,
        "costs": folder / "c.sqlite",
        "rounds": 2,
        "budget_s": 240.0,
    }


@pytest.mark.ci
def test_each_shape_is_placed_and_served(model: onnx.ModelProto, answer: Answer, tmp_path: Path) -> None:
    told: list[list[tuple[int, ...]]] = []
    progress = Recorder()

    def kept(found: tuple[ProfileFound, ...]) -> None:
        bundles = [Bundle(o.graph, o.placement, rows=f.rows) for f in found for o in [f.optimization]]
        save(bundles, tmp_path / "m.collage")
        told.append([o.graph.shape_of("x") for f in found for o in [f.optimization]])

    found = optimize_profiles(
        model, _shapes(1, 4), pad="n", progress=progress, on_best=kept, **_options(tmp_path)
    )
    kept(found)
    assert [f.rows and f.rows.count for f in found] == [None, 4]
    assert told[0] == [(1, 3, 6)], "there is an answer for the first one only"
    assert told[-1] == [(1, 3, 6), (4, 3, 6)]
    assert [len(shapes) for shapes in told] == sorted(len(shapes) for shapes in told)
    with Session(tmp_path / "m.collage") as session:
        for count in (1, 2, 3, 4):
            x = np.random.default_rng(count).standard_normal((count, 3, 6)).astype(np.float32)
            np.testing.assert_allclose(
                session.run(None, {"x": x})[0], answer(model, {"x": x})["y"], rtol=1e-5, atol=1e-6
            )
    again = optimize_profiles(model, _shapes(1, 4), **_options(tmp_path))
    assert all(f.optimization.is_recalled and not f.optimization.counts["measured"] for f in again)


@pytest.mark.ci
def test_what_is_recalled_replaces_a_file_that_holds_more(model: onnx.ModelProto, tmp_path: Path) -> None:
    """While others are to come it stays; in the end there is what was asked for."""
    path, options = tmp_path / "m.collage", {**_options(tmp_path), "budget_s": None}
    keep(optimize_profiles(model, _shapes(1, 4, 8), **options), "m.onnx", path)
    written = path.stat().st_ino
    again = optimize_profiles(model, _shapes(1, 4, 8), **options)
    keep(again[:2], "m.onnx", path, is_all=False)
    keep(again, "m.onnx", path)
    assert path.stat().st_ino == written
    two = optimize_profiles(model, _shapes(1, 4), pad="n", **options)
    assert all(f.optimization.is_recalled for f in (*again, *two))
    keep(two, "m.onnx", path)
    assert [(b.shapes["x"][0], b.rows is not None) for b in read_profiles(path)] == [(1, False), (4, True)]


@pytest.mark.parametrize(
    ("budget_s", "share_s"), [(60.0, 20.0), (0.0, 0.0), (None, None), (math.inf, math.inf)]
)
def test_the_time_is_for_all_of_them(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, budget_s: float | None, share_s: float | None
) -> None:
    """Each has the same part, however long the others took: under it, what is found is recalled."""
    shares: list[float | None] = []

    def optimized(model: object, *, budget_s: float | None, **others: Any) -> object:
        shares.append(budget_s)
        return object()

    monkeypatch.setattr(profiles, "optimize", optimized)
    optimize_profiles(model, _shapes(1, 2, 3), budget_s=budget_s)
    assert shares == [share_s] * 3


def test_one_graph_at_a_time_is_looked_at(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has weights, and there may be 64 of them."""
    read: list[weakref.ref[Graph]] = []

    def reading(*arguments: Any) -> Reading:
        gc.collect()
        assert not [graph for graph in read if graph() is not None]
        made = read_model(*arguments)
        read.append(weakref.ref(made.graph))
        return made

    monkeypatch.setattr(profiles, "read_model", reading)
    monkeypatch.setattr(profiles, "optimize", lambda *arguments, **options: object())
    optimize_profiles(model, _shapes(1, 2, 3))
    assert len(read) == 3


def test_an_interrupt_leaves_what_there_is(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[object]] = []

    def optimized(model: object, *, shapes: Any, on_best: Any, **others: Any) -> str:
        on_best(f"first of {shapes['n']}")
        if shapes == {"n": (2,)}:
            raise KeyboardInterrupt
        return f"all of {shapes['n']}"

    monkeypatch.setattr(profiles, "optimize", optimized)
    with pytest.raises(KeyboardInterrupt):
        optimize_profiles(
            model, _shapes(1, 2, 3), on_best=lambda found: kept.append([f.optimization for f in found])
        )
    assert kept == [["first of (1,)"], ["all of (1,)"], ["all of (1,)", "first of (2,)"]]


@pytest.mark.parametrize(
    ("shapes", "options", "said"),
    [
        ([], {}, "0 profiles of shapes"),
        (_shapes(1, 1), {}, "profiles 1 and 2 have the same shapes: n=1"),
        (
            [*_shapes(1), {"x": (2, 3, 7)}],
            {},
            "profile 2 of 2: --shape x=2,3,7: the model declares x=n,3,6",
        ),
        ([*_shapes(2), {"x": (2, 3, 6)}], {}, "profiles 1 and 2 have the same shapes: x=2,3,6"),
        (_shapes(1, 2), {"inputs": {}}, "inputs is of one shape, and there are 2 profiles"),
        (_shapes(1, 2), {"budget_s": -1.0}, "budget_s is a number of seconds from 0 on"),
        (
            _shapes(1, 2),
            {"pad": "m"},
            "no dimension 'm' to pad; the model's open dimensions: n, its inputs: x",
        ),
        (_shapes(1, 2), {"pad": "x:3"}, "input 'x' has no axis 3"),
        (_shapes(1), {"pad": "n"}, "no profile has more than one row along n"),
        (
            _shapes(2),
            {"pad": "x:2"},
            r"not proven independent at node mul \(MatMul\): it adds up over the rows",
        ),
    ],
)
def test_mistakes(
    shapes: Any, options: dict[str, Any], said: str, model: onnx.ModelProto, tmp_path: Path
) -> None:
    with pytest.raises((CollageError, ModelError), match=said):
        optimize_profiles(model, shapes, **{**_options(tmp_path), **options})
    assert not list(tmp_path.iterdir()), "nothing was measured for it"


@pytest.mark.parametrize("pad", [None, "n"])
def test_another_open_dimension_is_told_with_padding_as_without(
    pad: str | None, parse: Parse, tmp_path: Path
) -> None:
    model = parse("(float[n,6] x, float[m,6] z) => (float y, float q) { y = Relu(x) q = Relu(z) }")
    said = r"input 'z' has an open dimension 'm' in its shape \[m,6\]; give it with --shape z=\.\.\."
    with pytest.raises(ModelError, match=said):
        optimize_profiles(model, _shapes(8), pad=pad, **_options(tmp_path))
