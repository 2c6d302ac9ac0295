"""Groups whose values are stored in bfloat16. What each computes is checked with every other test of a group
(`run_group`), where the processor has units for it; here is when it is offered, and what it is not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_dnnl.backend import DnnlBackend
from collage_dnnl.kernels.kernel import PrimitiveKernel
from collage_dnnl.kernels.plan import BinaryPostOp
from collage_dnnl.kernels.planner import plan
from collage_dnnl.library import load
from collage_dnnl.variants import variants

from collage_core import load as load_bundle
from collage_core.backend import Variant
from collage_core.cli.main import main
from collage_core.devices import IMMEDIATE
from collage_core.errors import BackendError, DeclinedError, Refusal
from collage_core.formats import Array, Format, empty, plain
from collage_core.ir import Subgraph, TensorType
from collage_core.target import Processor, Target, cpuinfo, processor
from collage_core.testing import make_group, make_model, node

_FEW = 16
ROUNDING = Target("cpu", 2, ("bfloat16",))
UNITS = pytest.mark.skipif(not processor().multiplies_bfloat16, reason="the processor has no units for it")


@pytest.fixture
def _units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage_core.target.processor", lambda: Processor("with units", ("avx512_bf16",)))


def f(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def _product(weights: bool = True) -> Subgraph:
    """MatMul, and a residual that is added."""
    nodes = [node("MatMul", ["x", "w"], "m"), node("Add", ["m", "r"], "o")]
    given = {"x": f(4, 8), "r": f(4, 16)}
    constants = {"w": f(8, 16)} if weights else None
    return make_group(nodes, given if weights else {**given, "w": f(8, 16)}, constants)


def _dtypes(subgraph: Subgraph, target: Target = ROUNDING) -> set[tuple[str, ...]]:
    """Of the values in the order of the group's inputs, and of the output."""
    offered = variants(subgraph, target)
    assert not isinstance(offered, Refusal)
    return {tuple(f.dtype.removesuffix("loat16") for f in (*v.inputs, *v.outputs)) for v in offered}


_FP32 = {("float32",) * 3}


@pytest.mark.usefixtures("_units")
def test_only_where_it_is_allowed() -> None:
    assert _dtypes(_product(), Target("cpu", 2)) == _FP32
    assert _dtypes(_product(), Target("cpu", 2, ("float16",))) == _FP32


def test_only_where_the_processor_has_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage_core.target.processor", lambda: Processor("without", ("avx2", "avx512f")))
    assert _dtypes(_product()) == _FP32


@pytest.mark.usefixtures("_units")
def test_products_yield_either_type() -> None:
    """What is added to them is of the type that they yield: it may share its memory."""
    assert _dtypes(_product()) == _FP32 | {("bf",) * 3, ("bf", "float32", "float32")}
    assert _dtypes(_product(weights=False)) >= {("bf", "bf", "float32", "float32"), ("bf",) * 4}


@pytest.mark.usefixtures("_units")
@pytest.mark.parametrize("op", ["Softmax", "LayerNormalization"])
def test_normalisations_read_either_type(op: str) -> None:
    x = {"x": f(4, 8)}
    scale = {"s": f(8)} if op == "LayerNormalization" else None
    group = make_group([node(op, ["x", *(scale or ())], "o")], x, scale)
    assert _dtypes(group) == {("float32", "float32"), ("bf", "bf"), ("float32", "bf")}


@pytest.mark.usefixtures("_units")
@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("MatMul", ["c", "x"], "o")], {"c": f(3, 4)}),
        ([node("Concat", ["x", "c"], "o", axis=0)], {"c": f(2, 4)}),
        ([node("Round", ["x"], "o")], {}),
    ],
    ids=["a constant on the left", "a constant among others", "whole numbers"],
)
def test_where_it_is_not_offered(nodes: Sequence[onnx.NodeProto], constants: dict[str, Array]) -> None:
    """Constants are stored in float32 but for weights; whole numbers above 256 are none in bfloat16."""
    assert _dtypes(make_group(nodes, {"x": f(4, 4)}, constants)) == {("float32", "float32")}


@UNITS
def test_it_is_computed_by_the_units(run_group: Any) -> None:
    done = run_group([node("MatMul", ["x", "w"], "o")], {"x": f(32, 64)}, {"w": f(64, 96)})
    names = [k.implementation for k in done.rounded.values() if isinstance(k, PrimitiveKernel)]
    assert len(names) == 2
    assert all("bf16" in name or "amx" in name for name in names)


@UNITS
def test_a_residual_of_another_type_is_no_sum_in_place() -> None:
    """As an edited placement may have it."""
    group = _product()
    x, r, o = (plain(t, s) for t, s in (("bfloat16", (4, 8)), ("float32", (4, 16)), ("bfloat16", (4, 16))))
    variant = Variant((x, r), (o,))
    (op,) = plan(group, variant).post_ops
    assert isinstance(op, BinaryPostOp)
    assert not op.residual
    kernel = DnnlBackend().build(group, variant, ROUNDING)
    assert not kernel.may_alias
    arrays = [empty((4, 8), x), empty((4, 16), r), empty((4, 16), o)]
    arrays[0][...], arrays[1][...] = f(4, 8), f(4, 16)
    assert not kernel.bind(arrays[:2], arrays[2:], np.empty(kernel.workspace_bytes, np.uint8), IMMEDIATE)()
    wanted = f(4, 8) @ f(8, 16) + f(4, 16)
    np.testing.assert_allclose(arrays[2].astype(np.float32), wanted, atol=2e-2 * np.abs(wanted).max())


@UNITS
@pytest.mark.parametrize(
    ("channels", "groups"),
    [(3, 1), (4, 1), (17, 1), (33, 1), (30, 10), (34, 2), (16, 1), (32, 8), (9, 9)],
)
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_no_number_stays_within_its_windows(
    channels: int, groups: int, kernel: int, transposed: bool
) -> None:
    """Some of the library's convolutions read odd or few channels' neighbours: they are declined."""
    each = channels // groups
    weights = f(channels, 4 if transposed else each, kernel, kernel)
    op, pads = "ConvTranspose" if transposed else "Conv", [kernel // 2] * 4
    x = f(1, channels, 9, 9)
    group = make_group([node(op, ["x", "w"], "o", pads=pads, group=groups)], {"x": x}, {"w": weights})
    backend, built = DnnlBackend(), 0
    for variant in _rounded_variants(group):
        try:
            kernel_of = backend.build(group, variant, ROUNDING)
        except DeclinedError:
            continue
        built += 1
        given, result = (
            empty(x.shape, variant.inputs[0]),
            empty(group.graph.shape_of("o"), variant.outputs[0]),
        )
        workspace = empty((kernel_of.workspace_bytes,), plain("uint8", (kernel_of.workspace_bytes,)))
        run = kernel_of.bind([given], [result], workspace, IMMEDIATE)
        for channel in {0, each - 1, channels - 1}:
            given[...] = x
            given[0, channel, 4, 4] = np.nan
            assert not run()
            reached = 4 if transposed else weights.shape[0] // groups
            assert np.isnan(result.astype(np.float32)).sum() == reached * kernel * kernel
    assert built or each % 2 or each < _FEW


def _rounded_variants(subgraph: Subgraph) -> list[Variant]:
    offered = variants(subgraph, ROUNDING)
    assert not isinstance(offered, Refusal)
    return [v for v in offered if v.inputs[0].dtype == "bfloat16"]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_types_are_refused(dtype: str) -> None:
    group = make_group([node("Relu", ["x"], "o")], {"x": f(4, 8)})
    other = plain(dtype, (4, 8))
    variant = Variant((other,), (other,))
    with pytest.raises(DeclinedError):
        DnnlBackend().build(group, variant, ROUNDING)
    with pytest.raises(BackendError, match=f"oneDNN is given .* here, not {dtype}"):
        PrimitiveKernel(load(), plan(group, variant), 2)


@pytest.mark.parametrize("ends", [("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")])
def test_conversions_round_to_the_nearest_even(ends: tuple[str, str]) -> None:
    """In passing, while the layout changes, too; on any processor."""
    shape = (3, 70)
    type, backend = TensorType("float32", shape), DnnlBackend()
    source, destination = (Format.of(t, shape, o) for t, o in zip(ends, ((0, 1), (1, 0)), strict=True))
    assert backend.converts(type, source, destination, ROUNDING)
    kernel = backend.build_conversion(type, source, destination, ROUNDING)
    x, y = (empty(shape, t) for t in (source, destination))
    x[...] = f(*shape)
    x[0, :3] = np.array([1 + 2**-8, 1 + 3 * 2**-8, np.inf], np.float32)  # half-way, to either side
    assert not kernel.bind([x], [y], np.empty(kernel.workspace_bytes, np.uint8), IMMEDIATE)()
    np.testing.assert_array_equal(y, x.astype(destination.dtype))


@pytest.mark.skipif(
    not (
        "amx_bf16" in processor().instructions
        or (processor().multiplies_bfloat16 and cpuinfo().get("vendor_id") == "AuthenticAMD")
    ),
    reason="products are no faster in it: AVX-512 of Intel's processors takes twice as long as in float32",
)
@pytest.mark.ci
def test_a_network_is_placed_in_it_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Products are twice as fast and more; a Softmax over few elements gains nothing by being converted.

    On one thread: other tests run beside this one, and two threads that wait for one another tell of them.
    """
    x, w, v = f(256, 1024), f(1024, 1024) / 32, f(1024, 512) / 32
    model = make_model(
        [
            node("MatMul", ["x", "w"], "m"),
            node("Relu", ["m"], "r"),
            node("MatMul", ["r", "v"], "p"),
            node("ReduceMean", ["p", "axes"], "s", keepdims=0),
            node("Softmax", ["s"], "o"),
        ],
        {"x": x},
        {"w": w, "v": v, "axes": np.array([0], np.int64)},
    )
    onnx.save(model, tmp_path / "m.onnx")
    given = ["optimize", str(tmp_path / "m.onnx"), "--backends", "dnnl", "--rounds", "4", "--json"]
    given += ["--threads", "1", "--costs", str(tmp_path / "costs"), "-o", str(tmp_path / "m.collage")]
    assert main([*given, "--precision", "bf16"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["precisions"] == ["bfloat16"]
    by_node = {name: g for g in told["groups"] for name in g["nodes"]}
    for product in "mp":
        assert by_node[product]["formats"]["inputs"][0].startswith("bfloat16"), product
    assert 1e-4 < told["max_rel_error"] < 2e-2
    executable = load_bundle(tmp_path / "m.collage")
    logits = np.maximum(x.astype(np.float64) @ w, 0) @ v
    right = np.exp(logits.mean(0) - logits.mean(0).max())
    assert np.abs(executable(x)["o"] - right / right.sum()).max() < 2e-2 * (right / right.sum()).max()
    assert main(given) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["precisions"] == []
    assert not any("bfloat16" in f for g in told["groups"] for part in g["formats"].values() for f in part)
