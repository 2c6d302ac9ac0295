"""Compiling ahead: what `build` looks up afterwards is there, compiled once, without a look at weights."""

from __future__ import annotations

import gc
import os
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collage_run.image import Image
from collage_tvm import build, library, parameters
from collage_tvm.backend import TvmBackend
from collage_tvm.objects import ObjectCache
from collage_tvm.operands import Operands
from counting_compilations import LOG
from onnx import NodeProto

from collage_core.backend import Variant, plain_variant
from collage_core.costs import KernelItem, MeasureJob, Policy
from collage_core.costs.ahead import AheadCompiler
from collage_core.ir import Graph, Subgraph, from_model, save_stored
from collage_core.target import Target
from collage_core.testing import bind, make_group, make_model, node
from collage_core.worker import Worker, child_state

_TARGET = Target("cpu", 2)
_KEY = "0123456789abcdef" * 4
_RNG = np.random.default_rng(0)
_TWINS = 4


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLLAGE_LOCK", str(tmp_path / "lock"))
    return tmp_path / "home"


def _array(*shape: int) -> Any:
    return _RNG.standard_normal(shape, np.float32)


def _product(columns: int = 40) -> tuple[Subgraph, Variant]:
    nodes = [node("MatMul", ["x", "w"], "m"), node("Add", ["m", "b"], "o")]
    group = make_group(nodes, {"x": _array(9, 30)}, {"w": _array(30, columns), "b": _array(columns)})
    return group, plain_variant(group)


def _network() -> Graph:
    """Products that differ in nothing but their weights, each with a Softmax of its own size behind it."""
    nodes: list[NodeProto] = []
    weights: dict[str, Any] = {}
    values: list[str] = []
    for k in range(_TWINS):
        weights |= {f"w{k}": _array(32, 48), f"v{k}": _array(48, 10 + k)}
        nodes += [node("MatMul", ["x", f"w{k}"], f"a{k}"), node("Softmax", [f"a{k}"], f"s{k}", axis=k % 2)]
        nodes += [node("MatMul", [f"s{k}", f"v{k}"], f"o{k}")]
        values.append(f"o{k}")
    return from_model(make_model(nodes, {"x": _array(24, 32)}, weights, values))


@contextmanager
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def never(function: library.Function) -> bytes:
        raise AssertionError("it was not compiled ahead")

    with monkeypatch.context() as patched:
        patched.setattr(library.Function, "_object", never)
        yield


def test_build_finds_what_two_processes_have_compiled_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = _network()
    save_stored(graph, tmp_path / "graph")
    groups = [Subgraph(graph, [n.id]) for n in graph.nodes]
    items = [KernelItem(k, tuple(n.id for n in g.nodes), plain_variant(g)) for k, g in enumerate(groups)]
    asked = MeasureJob(
        tmp_path / "graph", tmp_path, "tvm", _TARGET, Policy(), tuple(items), ("counting_compilations",)
    )
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    with AheadCompiler(asked, processes=2) as compiler:
        compiler.compile([i for i in items for _ in range(2)])  # the same at the same time
    keys = Counter(line.split()[1] for line in (tmp_path / "log").read_text().splitlines())
    assert set(keys.values()) == {1}
    assert {p.stem for p in home.rglob("*.object")} == set(keys)
    assert len(keys) == 1 + 2 + _TWINS, "products that differ in weights alone share their code"
    with _nothing_is_compiled(monkeypatch):
        for group in groups:
            TvmBackend().build(group, plain_variant(group), _TARGET)


def test_it_reads_no_weights_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("nobody needs it to compile")

    group, variant = _product()
    with monkeypatch.context() as patched:
        patched.setattr(Operands, "_repacked", never)
        patched.setattr(build, "own", never)
        patched.setattr(Image, "load", never)
        TvmBackend().compile_ahead(group, variant, _TARGET)
    x = _array(9, 30)
    again, _ = _product()  # of another graph: what was lowered is kept for the same one
    with _nothing_is_compiled(monkeypatch):
        bound = bind(TvmBackend().build(again, variant, _TARGET), again, variant, {"x": x})
    assert not bound.call()
    w, b = (again.graph.constants[v] for v in ("w", "b"))
    np.testing.assert_allclose(bound.outputs[0], x @ w + b, rtol=1e-5, atol=1e-5)


def test_a_twin_is_lowered_once_and_has_constants_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[Subgraph] = []

    def counted(subgraph: Subgraph, *others: Any) -> Any:
        lowered.append(subgraph)
        return original(subgraph, *others)

    original = parameters.lowered
    monkeypatch.setattr(build, "lowered", counted)
    group, variant = _product()
    kernels = [TvmBackend().build(group, variant, _TARGET) for _ in range(2)]
    assert len(lowered) == 1
    addresses = [[c.value for c in k._constants] for k in kernels]  # type: ignore[attr-defined]
    assert len({a for constants in addresses for a in constants}) == 4
    x = _array(9, 30)
    first, second = (bind(k, group, variant, {"x": x}) for k in kernels)
    assert not first.call()
    assert not second.call()
    np.testing.assert_array_equal(first.outputs[0], second.outputs[0])
    TvmBackend().build(group, variant, Target("cpu", 1))
    TvmBackend().build(*_product(), _TARGET)
    assert len(lowered) == 3


def test_what_was_lowered_last_keeps_no_model_alive() -> None:
    group, variant = _product()
    TvmBackend().build(group, variant, _TARGET)
    graph = weakref.ref(group.graph)
    del group
    gc.collect()
    assert graph() is None


def _hold(folder: Path, key: str) -> bool:
    claim = ObjectCache(folder).claimed(key)
    child_state["claim"] = claim
    return claim.__enter__()


def test_an_object_that_another_process_makes_is_left_to_it(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "objects")
    with Worker() as worker:
        assert worker.call(_hold, tmp_path / "objects", _KEY)
        with cache.claimed(_KEY) as claimed:
            assert not claimed
        with cache.claimed(f"f{_KEY[1:]}") as claimed:
            assert claimed
        worker.kill()
    with cache.claimed(_KEY) as claimed:
        assert claimed


def test_what_cannot_be_kept_is_not_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "file"
    home.write_text("")
    monkeypatch.setenv("COLLAGE_HOME", str(home))
    group, variant = _product()
    with _nothing_is_compiled(monkeypatch):
        TvmBackend().compile_ahead(group, variant, _TARGET)
    TvmBackend().build(group, variant, _TARGET)


def test_claims_survive_the_sweep(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    with cache.claimed(_KEY):
        pass
    (tmp_path / "killed").touch()
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    cache.put(_KEY, b"code")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{_KEY}.object", "claims"]
