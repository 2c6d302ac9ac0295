"""One of everything that the plugin offers, on the emulated library and, where there is one, on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from collage_cublas.backend import CublasBackend
from collage_cuda.support import missing
from cublas_emulation import ROUNDING, TARGET, emulate

from collage_core.backend import Variant
from collage_core.errors import DeclinedError, Refusal
from collage_core.ir import Subgraph
from collage_core.testing import NothingBuiltError, bind, check_group, make_graph, make_group, node

_GPU = pytest.param(
    "gpu",
    marks=[
        pytest.mark.ci,
        pytest.mark.skipif(missing(["nvmath"]) is not None, reason="there is no GPU, or no way to it"),
    ],
)


@pytest.fixture(params=["emulated", _GPU], autouse=True)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "emulated":
        emulate(monkeypatch)
    return str(request.param)


def _values(shape: Sequence[int], seed: int, dtype: str = "float32") -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.dtype(dtype))


_SHAPES = [
    ((64, 96), (96, 80)),
    ((128, 512), (512, 1024)),
    ((33, 17), (17, 29)),
    ((1, 300), (300, 77)),
    ((77, 300), (300, 1)),
    ((300,), (300, 77)),
    ((77, 300), (300,)),
    ((300,), (300,)),
    ((5, 1), (1, 7)),
    ((2, 3, 16, 32), (2, 3, 32, 24)),
    ((5, 16, 32), (32, 24)),
    ((16, 32), (5, 32, 24)),
    ((7, 1, 16, 32), (3, 32, 24)),
    ((2, 1, 16, 32), (1, 3, 32, 24)),
]


@pytest.mark.parametrize("shapes", _SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("constant", [False, True])
def test_products(shapes: Any, dtype: str, constant: bool) -> None:
    values = {
        name: _values(shape, i, dtype) for i, (name, shape) in enumerate(zip("ab", shapes, strict=True))
    }
    constants = {"b": values.pop("b")} if constant else {}
    group = make_group([node("MatMul", ["a", "b"], ["y"])], values, constants)
    others = {name: -2 * v for name, v in values.items()}
    target = ROUNDING if dtype == "float32" else TARGET
    assert check_group(CublasBackend(), group, values, target, other_inputs=others)


@pytest.mark.parametrize("flags", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("addend", ["", "n", "mn", "m1"])
def test_gemms(flags: tuple[int, int], addend: str) -> None:
    m, k, n = 40, 72, 56
    values = {
        "a": _values((k, m) if flags[0] else (m, k), 0),
        "b": _values((n, k) if flags[1] else (k, n), 1),
    }
    constants: dict[str, Any] = {}
    if addend:
        c = _values([{"m": m, "n": n, "1": 1}[d] for d in addend], 2)
        (constants if addend == "m1" else values)["c"] = c
    beta = 1.5 if addend in ("mn", "m1") else 1.0
    made = node("Gemm", list("abc")[: 3 if addend else 2], ["y"], transA=flags[0], transB=flags[1], beta=beta)
    assert check_group(CublasBackend(), make_group([made], values, constants), values, ROUNDING)


def _chain(*nodes: Any) -> list[onnx.NodeProto]:
    """(operator, what it reads besides the value before), the first reads `a`."""
    made, running = [], "a"
    for i, (op, *names) in enumerate(nodes):
        attributes = {"approximate": "tanh"} if op == "Gelu" else {}
        made.append(node(op, [running, *names], [f"v{i}"], **attributes))
        running = f"v{i}"
    return made


_CHAINS = [
    [("Add", "bias")],
    [("Add", "matrix")],
    [("Add", "bias"), ("Add", "matrix")],
    [("Mul", "scale")],
    [("Mul", "scale"), ("Add", "matrix")],
    [("Relu",)],
    [("Add", "bias"), ("Relu",)],
    [("Add", "bias"), ("Add", "matrix"), ("Relu",)],
    [("Gelu",)],
    [("Add", "bias"), ("Gelu",)],
]


@pytest.mark.parametrize("batch", [(), (6,)])
@pytest.mark.parametrize("chain", _CHAINS, ids=lambda c: "+".join(n[0] for n in c))
def test_chains(chain: list[tuple[str, ...]], batch: tuple[int, ...]) -> None:
    """Of a batch the matrix is one for all."""
    values = {"a": _values((*batch, 48, 64), 0), "b": _values((*batch, 64, 40), 1)}
    added = {"bias": _values((40,), 2), "matrix": _values((48, 40), 3)}
    values |= {name: v for name, v in added.items() if any(name in n for n in chain)}
    constants = {"scale": np.float32(0.125)} if chain[0] == ("Mul", "scale") else {}
    group = make_group(_chain(("MatMul", "b"), *chain), values, constants)
    try:
        assert check_group(CublasBackend(), group, values, ROUNDING)
    except NothingBuiltError as error:
        pytest.skip(str(error))  # no algorithm: of an activation, none that keeps NaN


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_between_rows(batch: int) -> None:
    """Attention: factors and result as the Transposes beside them leave or want them."""
    q, k = _values((batch, 20, 3, 16), 0), _values((batch, 24, 3, 16), 1)
    nodes = [
        node("Transpose", ["q"], ["a"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k"], ["b"], perm=[0, 2, 3, 1]),
        node("MatMul", ["a", "b"], ["p"]),
        node("Transpose", ["p"], ["y"], perm=[0, 2, 1, 3]),
    ]
    graph = make_graph(nodes, {"q": q, "k": k})
    kernels = check_group(CublasBackend(), Subgraph(graph, [graph.nodes[2].id]), {"q": q, "k": k}, ROUNDING)
    assert len(kernels) == 8 * 5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(64, 64), (512, 256), (3, 5)])
def test_nothing_is_rounded_on_the_way(dtype: str, shape: tuple[int, int]) -> None:
    """Not to TF32, nor to any other type: what is multiplied by 1 is the same to the last bit."""
    a = _values(shape, 0, dtype)
    values, constants = {"a": a}, {"b": np.eye(shape[1], dtype=dtype)}
    bound, variant = _bound(_chain(("MatMul", "b")), values, constants)
    assert not bound.call()
    bound.stations["cuda"].queue.synchronize()
    (found,) = bound.read(bound.outputs, variant.outputs)
    np.testing.assert_array_equal(found, a)


@pytest.mark.parametrize("op", ["Relu", "Gelu"])
def test_activations_keep_nan(op: str) -> None:
    a, b = _values((48, 64), 0), _values((64, 40), 1)
    a[5, 7] = np.nan
    group = make_group(_chain(("MatMul", "b"), (op,)), {"a": a, "b": b})
    try:
        assert check_group(CublasBackend(), group, {"a": a, "b": b}, TARGET)
    except NothingBuiltError as error:
        pytest.skip(str(error))


def test_infinities_come_through() -> None:
    a, b = _values((48, 64), 0), _values((64, 40), 1)
    a[5, 7], a[6, 7] = np.inf, -np.inf
    group = make_group(_chain(("MatMul", "b"), ("Add", "c")), {"a": a, "b": b, "c": b[0]})
    assert check_group(CublasBackend(), group, {"a": a, "b": b, "c": b[0]}, TARGET)


def _bound(nodes: list[onnx.NodeProto], values: dict[str, Any], constants: dict[str, Any]) -> Any:
    group = make_group(nodes, values, constants)
    backend = CublasBackend()
    variants = backend.variants(group, TARGET)
    assert not isinstance(variants, Refusal)
    variant: Variant = variants[0]
    kernel = backend.build(group, variant, TARGET)
    return bind(kernel, group, variant, values), variant


def test_calls_can_be_captured(where: str) -> None:
    """As a graph, which reads what the buffers hold when it is launched."""
    if where != "gpu":
        pytest.skip("nothing is emulated of it")
    values = {"a": _values((64, 96), 0)}
    constants = {"b": _values((96, 80), 1), "c": _values((80,), 2)}
    bound, variant = _bound(_chain(("MatMul", "b"), ("Add", "c")), values, constants)
    queue = bound.stations["cuda"].queue
    launch = queue.capture([bound.call])
    assert launch is not None
    for factor in (1, -3):
        bound.load({"a": factor * values["a"]})
        launch()
        queue.synchronize()
        (found,) = bound.read(bound.outputs, variant.outputs)
        expected = factor * values["a"] @ constants["b"] + constants["c"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)


def test_which_activations_the_library_has() -> None:
    """For the record: what is declined says why."""
    for op in ("Relu", "Gelu"):
        for dtype in ("float32", "float64", "float16"):
            values = {name: _values((64, 64), i, dtype) for i, name in enumerate("ab")}
            try:
                _bound(_chain(("MatMul", "b"), (op,)), values, {})
                print(op, dtype, "fused")
            except DeclinedError as error:
                print(op, dtype, error)
