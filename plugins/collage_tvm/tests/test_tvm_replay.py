"""Schedules that a stranger may have written: what is replayed, and what is refused before TVM sees it."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from collage_tvm.backend import TvmBackend
from collage_tvm.library import Function
from collage_tvm.tuning.index_map import digits_of
from collage_tvm.tuning.kernel import module_of, workload_hash
from collage_tvm.tuning.records import TUNED, Schedule
from collage_tvm.tuning.workload import workload_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from tvm.tirx import IndexMap

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Format, plain
from collage_core.target import Target
from collage_core.testing import bind, make_group

_TARGET = Target("cpu", 2)
_RNG = np.random.default_rng(0)
_X, _W = _RNG.standard_normal((24, 32), np.float32), _RNG.standard_normal((32, 48), np.float32)
_GROUP = make_group(
    [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["o"])],
    {"x": _X},
    {"w": _W},
)
_VARIANT = Variant((plain("float32", (24, 32)),), (plain("float32", (24, 48)),))


def _map(function: Callable[..., Any], dimensions: int) -> str:
    return str(tvm.ir.save_json(IndexMap.from_func(function, dimensions, index_dtype="int32")))


def _trace() -> list[Any]:
    """Tiles, on two threads, in vectors, of weights that are stored in the order in which they are read."""
    instructions = [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["CacheRead", ["b0", []], [1, "global"], ["b1"]],
        ["TransformLayout", ["b0", _map(lambda i, j: [j // 16, i, j % 16], 2)], [1, 0, None, False], []],
        ["Annotate", ["b1", 1], ["meta_schedule.layout_rewrite_preproc"], []],
        ["GetLoops", ["b0"], [], ["l0", "l1", "l2"]],
        ["SamplePerfectTile", ["l0"], [2, 64], ["v0", "v1"]],
        ["Split", ["l0", "v0", "v1"], [1, 0], ["l3", "l4"]],
        ["Split", ["l1", "None", 16], [1, 0], ["l5", "l6"]],
        ["Reorder", ["l3", "l5", "l4", "l2", "l6"], [], []],
        ["SampleCategorical", [], [[0, 16, 64, 512], [0.25] * 4], ["v2"]],
        ["Annotate", ["l3", "v2"], ["pragma_auto_unroll_max_step"], []],
        ["Annotate", ["l3", 1], ["pragma_unroll_explicit"], []],
        ["EnterPostproc", [], [], []],
        ["Parallel", ["l3"], [], []],
        ["Vectorize", ["l6"], [], []],
        ["DecomposeReduction", ["b0", "l2"], [], ["b2"]],
    ]
    return [instructions, [[5, [6, 4]], [9, 1]]]


def _variant(trace: Any) -> Variant:
    module = module_of(workload_of(_GROUP, _VARIANT).function)
    return replace(_VARIANT, options=((TUNED, Schedule(workload_hash(module), trace).to_text()),))


def _replayed(trace: Any) -> Any:
    """What the kernel of this schedule computes."""
    variant = _variant(trace)
    assert TvmBackend().refusal(_GROUP, variant, _TARGET) is None
    bound = bind(TvmBackend().build(_GROUP, variant, _TARGET), _GROUP, variant, {"x": _X})
    assert not bound.call()
    return bound.outputs[0]


def _refused(trace: Any) -> str:
    with pytest.raises(BackendError) as caught:
        _replayed(trace)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 400
    return said


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path / "home"))


def test_what_our_tuner_writes_is_replayed() -> None:
    expected = np.maximum(_X @ _W, 0)
    assert np.max(np.abs(_replayed(_trace()) - expected)) <= 1e-5 * np.max(expected)


def test_what_is_compiled_ahead_is_all_that_a_tuned_kernel_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(function: Function) -> bytes:
        raise AssertionError("it was not compiled ahead")

    TvmBackend().compile_ahead(_GROUP, _variant(_trace()), _TARGET)
    monkeypatch.setattr(Function, "_object", never)
    expected = np.maximum(_X @ _W, 0)
    assert np.max(np.abs(_replayed(_trace()) - expected)) <= 1e-5 * np.max(expected)


def _with(*added: Any, at: int = 12) -> Callable[[list[Any]], object]:
    """Further instructions, behind all that decisions are for."""
    return lambda t: t[0].__setitem__(slice(at, at), added)


def _changed(number: int, part: int, *values: Any) -> Callable[[list[Any]], object]:
    return lambda t: t[0][number].__setitem__(part, list(values))


_NOT_ALLOWED = "which is not allowed"
_BREAKS: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "code in a pragma": (
        _with(["Annotate", ["l3", '"define i32 @f()"'], ["pragma_import_llvm"], []]),
        f"the annotation 'pragma_import_llvm', {_NOT_ALLOWED}",
    ),
    "source in a pragma": (_with(["Annotate", ["l3", '"int f;"'], ["pragma_import_c"], []]), _NOT_ALLOWED),
    "a tensor instruction": (_with(["Tensorize", ["b0", '"dot_16x4"'], [1], []]), "instruction 'Tensorize'"),
    "a thread axis": (_with(["Bind", ["l3"], ["threadIdx.x"], []]), "the instruction 'Bind'"),
    "another element type": (_with(["UnsafeSetDType", ["b1"], [0, '"int8"'], []]), "'UnsafeSetDType'"),
    "a method of Python": (_with(["__class__", [], [], []]), "the instruction '__class__'"),
    "too much unrolled": (
        _with(["Annotate", ["l4", 10**6], ["pragma_auto_unroll_max_step"], []]),
        "pragma_auto_unroll_max_step = 1000000",
    ),
    "a truth for a number": (
        _with(["Annotate", ["l4", True], ["pragma_auto_unroll_max_step"], []]),
        "pragma_auto_unroll_max_step = True",
    ),
    "no checks of what is split unevenly": (_changed(6, 2, 1, 1), "Split with [1, 1]"),
    "factors of nothing": (_changed(7, 1, "l1", "None", 0), "the factor 0"),
    "long vectors": (_changed(7, 1, "l1", 3, 4096), "vectors of 4096"),
    "vectors of vectors": (_with(["Vectorize", ["l4"], [], []], at=14), ""),
    "an unknown block": (_changed(4, 1, "b7"), "'b7' for a block"),
    "a loop for a block": (_with(["GetLoops", ["l3"], [], ["l9"]]), "'l3' for a block"),
    "too few results": (_changed(4, 3, "l0", "l1"), "2 results of GetLoops, where there are 3"),
    "tiles of another extent": (lambda t: t[1][0].__setitem__(1, [600, 4]), "the tiles [600, 4]"),
    "no tiles": (lambda t: t[1].pop(0), "the tiles None"),
    "negative tiles": (lambda t: t[1][0].__setitem__(1, [-6, -4]), "the tiles [-6, -4]"),
    "a choice that is none": (lambda t: t[1][1].__setitem__(1, 4), "the choice 4"),
    "choices beyond all bounds": (
        _changed(9, 2, [0, 10**6], [0.5, 0.5]),
        "the choices [0, 1000000]",
    ),
    "another memory": (_changed(1, 2, 1, "shared"), "CacheRead of"),
    "an input in another order": (_changed(1, 2, 0, "global"), "CacheRead of what is no weight"),
    "an output in another order": (
        _changed(2, 2, 0, 0, None, False),
        "TransformLayout of what is no copy of a weight",
    ),
    "an order without proof": (_changed(2, 2, 1, 0, None, True), "TransformLayout with"),
    "an order that is none": (
        lambda t: t[0][2][1].__setitem__(1, _map(lambda i, j: [i, j // 16, j % 8], 2)),
        "an order that is none",
    ),
    "a program for an order": (
        lambda t: t[0][2][1].__setitem__(1, '{"root_index": 0, "nodes": [{"type": "ffi.Function"}]}'),
        "an order that is none",
    ),
    "the product done beforehand": (
        _changed(3, 1, "b0", 1),
        "a block to be done beforehand that stores no weight",
    ),
    "many instructions": (lambda t: t[0].extend(t[0] * 100), "no list of instructions"),
    "no instructions": (lambda t: t[0].clear(), "no list of instructions"),
    "nothing but numbers": (lambda t: t[0].__setitem__(0, 5), "no list of instructions"),
    "decisions for nobody": (lambda t: t[1].append([[], 5]), "no list of instructions"),
    "what TVM itself refuses": (_changed(13, 1, "l2"), "does not fit: Parallel: "),
}


@pytest.mark.parametrize("name", _BREAKS)
def test_what_it_never_writes_is_refused(name: str) -> None:
    trace = _trace()
    edit, said = _BREAKS[name]
    edit(trace)
    assert said in _refused(trace)


def test_buffers_are_bounded() -> None:
    shapes = (512, 512), (512, 512)
    inputs = {name: np.zeros(shape, np.float32) for name, shape in zip("xy", shapes, strict=True)}
    group = make_group([helper.make_node("MatMul", ["x", "y"], ["o"])], inputs)
    variant = Variant(tuple(plain("float32", s) for s in shapes), (plain("float32", (512, 512)),))
    module = module_of(workload_of(group, variant).function)
    trace = [
        [
            ["GetSBlock", [], ["matmul", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l0", "l1", "l2"]],
            ["RFactor", ["l2"], [0], ["b1"]],
        ],
        [],
    ]
    options = ((TUNED, Schedule(workload_hash(module), trace).to_text()),)
    with pytest.raises(BackendError, match=f"buffers of {512**3 + 512**2} elements, which is not allowed"):
        TvmBackend().build(group, replace(variant, options=options), _TARGET)


@pytest.mark.parametrize(
    "text",
    [
        "x" * (1 << 17),
        base64.b64encode(zlib.compress(b'["0", [[], []]]' + b" " * (1 << 24), 9)).decode(),
        base64.b64encode(zlib.compress(b"[" * 100_000)).decode(),
        base64.b64encode(zlib.compress(b'["0", [[], []]]')[:-4]).decode(),
        base64.b64encode(zlib.compress(b"5")).decode(),
        "é",
    ],
)
def test_nothing_is_unpacked_beyond_a_limit(text: str) -> None:
    with pytest.raises(BackendError, match="the tuned schedule is damaged") as caught:
        TvmBackend().build(_GROUP, replace(_VARIANT, options=((TUNED, text),)), _TARGET)
    assert "\n" not in str(caught.value)


def test_what_is_tuned_in_other_formats_or_by_other_options_is_refused() -> None:
    text = Schedule("0", _trace()).to_text()
    turned = replace(_VARIANT, outputs=(Format("float32", (1, 0)),), options=((TUNED, text),))
    refusal = TvmBackend().refusal(_GROUP, turned, _TARGET)
    assert isinstance(refusal, Refusal)
    assert "it is tuned as (float32:plain) -> (float32:plain) only" in str(refusal)
    for options in (((TUNED, text), ("unroll", "9")), (("schedule", text),)):
        refusal = TvmBackend().refusal(_GROUP, replace(_VARIANT, options=options), _TARGET)
        assert isinstance(refusal, Refusal)
        assert "it does not offer" in str(refusal)


@given(st.data())
def test_orders_are_those_that_take_every_element_to_a_place_of_its_own(data: st.DataObject) -> None:
    """Against a count of the places of all elements."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 4, 6, 8, 12]), min_size=1, max_size=2))
    sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
    digit = st.tuples(st.integers(0, len(shape) - 1), sizes, st.none() | sizes)
    drawn = data.draw(st.lists(digit, min_size=1, max_size=4))

    def place(index: Any) -> list[Any]:
        cut = [(index[d] if below is None else index[d] % below, divisor) for d, divisor, below in drawn]
        return [value // divisor for value, divisor in cut]

    places = [tuple(place(index)) for index in np.ndindex(*shape)]
    extents = [max(p[k] for p in places) + 1 for k in range(len(drawn))]
    is_order = len(set(places)) == len(places) == math.prod(extents)
    text = _map(lambda *i: place(i), len(shape))
    try:
        digits_of(text, shape)
    except BackendError:
        return
    assert is_order, json.loads(text)
