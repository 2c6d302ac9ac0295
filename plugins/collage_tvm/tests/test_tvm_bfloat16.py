"""Groups that read or yield bfloat16: computed in float32, whose upper half it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from collage_tvm.backend import TvmBackend

from collage_core.devices import IMMEDIATE
from collage_core.errors import Refusal
from collage_core.formats import Array, Format, empty
from collage_core.ir import Subgraph, TensorType
from collage_core.target import Processor, Target
from collage_core.testing import check_group, make_group, node

_ROUNDING = Target("cpu", 2, ("bfloat16",))
_NOTHING = np.empty(0, np.uint8)


@pytest.fixture(autouse=True)
def _units(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is offered where somebody multiplies it; this backend needs no instructions for it."""
    monkeypatch.setattr("collage_core.target.processor", lambda: Processor("with units", ("avx512_bf16",)))


def _f(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def _stored(subgraph: Subgraph, target: Target = _ROUNDING) -> set[tuple[str, str]]:
    """The types of the first input and of the output."""
    offered = TvmBackend().variants(subgraph, target)
    assert not isinstance(offered, Refusal)
    return {(v.inputs[0].dtype, v.outputs[0].dtype) for v in offered}


_EVERY = {(a, b) for a in ("float32", "bfloat16") for b in ("float32", "bfloat16")}
_GROUPS: dict[str, tuple[list[onnx.NodeProto], list[tuple[int, ...]], dict[str, Array]]] = {
    "a chain": ([node("Exp", ["x"], "a"), node("Mul", ["a", "z"], "o")], [(3, 70), (3, 70)], {}),
    "a constant": ([node("Add", ["x", "c"], "o")], [(2, 5, 33)], {"c": _f(33)}),
    "an image": ([node("Relu", ["x"], "a"), node("Sigmoid", ["a"], "o")], [(1, 20, 9, 9)], {}),
    "a pool": ([node("MaxPool", ["x"], "o", kernel_shape=[3, 3], strides=[2, 2])], [(1, 20, 13, 13)], {}),
    "rows": ([node("Softmax", ["x"], "o", axis=-1)], [(4, 7, 65)], {}),
    "a norm": (
        [node("LayerNormalization", ["x", "s", "b"], "n"), node("Gelu", ["n"], "o")],
        [(6, 96)],
        {"s": _f(96), "b": _f(96)},
    ),
    "a mean": ([node("ReduceMean", ["x"], "o", keepdims=0)], [(500, 300)], {}),
    "a transposition": ([node("Transpose", ["x"], "o", perm=[0, 2, 1])], [(3, 40, 50)], {}),
    "a join": (
        [node("Concat", ["x", "z"], "a", axis=1), node("Neg", ["a"], "o")],
        [(2, 5, 9), (2, 3, 9)],
        {},
    ),
    "a resize": (
        [node("Resize", ["x", "", "r"], "o", mode="nearest")],
        [(1, 4, 6, 6)],
        {"r": np.array([1, 1, 2, 2], np.float32)},
    ),
    "a single number": ([node("Tanh", ["x"], "o")], [()], {}),
}


@pytest.mark.parametrize("name", _GROUPS)
def test_every_mixture_is_right(name: str) -> None:
    nodes, shapes, constants = _GROUPS[name]
    given = dict(zip("xz", (_f(*s) for s in shapes), strict=False))
    group = make_group(nodes, given, constants)
    assert _stored(group) == _EVERY
    others = {v: np.asarray(np.roll(a, 1)) for v, a in given.items()}
    kernels = check_group(TvmBackend(), group, given, _ROUNDING, other_inputs=others)
    assert {(v.inputs[0].dtype, v.outputs[0].dtype) for v in kernels} == _EVERY


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("MatMul", ["x", "w"], "o")], {"w": _f(8, 8)}),
        ([node("CumSum", ["x", "axis"], "o")], {"axis": np.array(1)}),
    ],
    ids=["a product", "sums"],
)
def test_where_it_is_not_offered(nodes: Sequence[onnx.NodeProto], constants: dict[str, Array]) -> None:
    assert _stored(make_group(nodes, {"x": _f(8, 8)}, constants)) == {("float32", "float32")}


def test_only_where_it_is_allowed_and_somebody_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    group = make_group([node("Relu", ["x"], "o")], {"x": _f(8, 8)})
    assert _stored(group, Target("cpu", 2)) == {("float32", "float32")}
    monkeypatch.setattr("collage_core.target.processor", lambda: Processor("without", ("avx2",)))
    assert _stored(group) == {("float32", "float32")}


@pytest.mark.parametrize("ends", [("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_conversions_round_as_numpy_does(ends: tuple[str, str], order: tuple[int, ...]) -> None:
    """To the nearest, to the even one half-way; infinities, NaNs, the largest and the smallest numbers."""
    shape, backend = (40, 70), TvmBackend()
    x = _f(*shape)
    x[0, :9] = [1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf, np.nan, -0.0, 3.4e38, 1e-40, -1e-45]
    x.view(np.uint32)[1, :2] = [0x7FFFFFFF, 0xFFFFFFFF]  # NaNs that rounding would carry over into numbers
    type = TensorType("float32", shape)
    source, destination = (Format.of(t, shape, o) for t, o in zip(ends, ((0, 1), order), strict=True))
    assert backend.converts(type, source, destination, _ROUNDING)
    kernel = backend.build_conversion(type, source, destination, _ROUNDING)
    given, result = (empty(shape, t) for t in (source, destination))
    given[...] = x
    assert not kernel.bind([given], [result], _NOTHING, IMMEDIATE)()
    np.testing.assert_array_equal(
        result.astype(np.float32), given.astype(destination.dtype).astype(np.float32)
    )


def test_nothing_else_is_rounded() -> None:
    layout = (0, 1)
    for own, stored in (("float32", "float16"), ("float64", "bfloat16"), ("int32", "bfloat16")):
        ends = Format(own, layout), Format(stored, layout)
        assert not TvmBackend().converts(TensorType(own, (2, 3)), *ends, _ROUNDING)
