"""The vectorised operators against ONNX Runtime, and against the originals where those follow ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from collage_core.operators import OPERATORS

Feeds = dict[str, npt.NDArray[Any]]
OPSET = 22


def graph_of(op: str, feeds: Feeds, outputs: int, attributes: dict[str, Any]) -> Any:
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    types = [TensorProto.FLOAT, TensorProto.INT64][:outputs]
    results = [helper.make_tensor_value_info(f"y{i}", t, None) for i, t in enumerate(types)]
    node = helper.make_node(op, list(feeds), [r.name for r in results], **attributes)
    return helper.make_graph([node], "g", inputs, results)


def ours(
    op: str, feeds: Feeds, outputs: int = 1, opset: int = OPSET, **attributes: Any
) -> list[npt.NDArray[Any]]:
    graph = graph_of(op, feeds, outputs, attributes)
    return list(ReferenceEvaluator(graph, opsets={"": opset}, new_ops=list(OPERATORS)).run(None, feeds))


def original(
    op: str, feeds: Feeds, outputs: int = 1, opset: int = OPSET, **attributes: Any
) -> list[npt.NDArray[Any]]:
    graph = graph_of(op, feeds, outputs, attributes)
    return list(ReferenceEvaluator(graph, opsets={"": opset}).run(None, feeds))


def runtime(
    op: str, feeds: Feeds, outputs: int = 1, opset: int = OPSET, **attributes: Any
) -> list[npt.NDArray[Any]]:
    model = helper.make_model(
        graph_of(op, feeds, outputs, attributes),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def same(left: list[npt.NDArray[Any]], right: list[npt.NDArray[Any]]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def numbers(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@st.composite
def windows(draw: st.DrawFn, *, dilated: bool = True) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Spatial sizes, and window attributes that leave at least one window per dimension."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    size, kernel = each(1, 9 if rank < 3 else 5), each(1, 3)
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if draw(st.booleans()):
        attributes["strides"] = each(1, 3)
    if dilated and draw(st.booleans()):
        attributes["dilations"] = each(1, 2)
    if draw(st.booleans()):
        # Padding smaller than the kernel, as every runtime demands.
        attributes["pads"] = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    else:
        attributes["auto_pad"] = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    dilations = attributes.get("dilations", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    if "SAME" in attributes.get("auto_pad", ""):
        # ONNX Runtime refuses or forgets dilations then; ONNX leaves open what negative padding means.
        assume("dilations" not in attributes)
        strides = attributes.get("strides", [1] * rank)
        assume(all(-(-n // s) * s - s + k >= n for n, s, k in zip(size, strides, kernel, strict=True)))
    for i in range(rank):
        assume(size[i] + pads[i] + pads[rank + i] >= (kernel[i] - 1) * dilations[i] + 1)
    return tuple(size), attributes


seeds = st.integers(0, 2**16)


@settings(max_examples=150, deadline=None)
@given(
    windows(),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.booleans(),
    seeds,
)
def test_conv_is_onnx_runtimes(
    window: tuple[tuple[int, ...], dict[str, Any]],
    batch: int,
    group: int,
    reads: int,
    writes: int,
    bias: bool,
    seed: int,
) -> None:
    size, attributes = window
    feeds: Feeds = {
        "x": numbers(seed, batch, group * reads, *size),
        "w": numbers(seed + 1, group * writes, reads, *attributes["kernel_shape"]),
    }
    if bias:
        feeds["b"] = numbers(seed + 2, group * writes)
    attributes = {**attributes, "group": group}
    result = ours("Conv", feeds, **attributes)
    same(result, runtime("Conv", feeds, **attributes))
    same(result, original("Conv", feeds, **attributes))


@settings(max_examples=150, deadline=None)
@given(windows(), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.booleans(), st.data(), seeds)
def test_conv_transpose_is_onnx_runtimes(
    window: tuple[tuple[int, ...], dict[str, Any]],
    group: int,
    reads: int,
    writes: int,
    bias: bool,
    data: st.DataObject,
    seed: int,
) -> None:
    size, attributes = window
    rank = len(size)
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    full = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(size, strides, attributes["kernel_shape"], dilations, strict=True)
    ]
    attributes = {**attributes, "group": group}
    extra = [0] * rank
    if data.draw(st.booleans(), "output_padding"):
        extra = [data.draw(st.integers(0, s - 1)) for s in strides]
        attributes["output_padding"] = extra
    pads = attributes.get("pads", [0] * 2 * rank)
    assume(all(f + e > pads[i] + pads[rank + i] for i, (f, e) in enumerate(zip(full, extra, strict=True))))
    if "SAME" in attributes.get("auto_pad", ""):
        # The specification says nothing about a kernel too small to fill the output.
        assume(all(f + e >= n * s for f, e, n, s in zip(full, extra, size, strides, strict=True)))
    elif "pads" not in attributes and data.draw(st.booleans(), "output_shape"):
        attributes["output_shape"] = [data.draw(st.integers(max(1, f - 3), f)) for f in full]
    feeds: Feeds = {
        "x": numbers(seed, 2, group * reads, *size),
        "w": numbers(seed + 1, group * reads, writes, *attributes["kernel_shape"]),
    }
    if bias:
        feeds["b"] = numbers(seed + 2, group * writes)
    same(ours("ConvTranspose", feeds, **attributes), runtime("ConvTranspose", feeds, **attributes))


@settings(max_examples=150, deadline=None)
@given(windows(), st.booleans(), st.sampled_from([1, 2]), st.integers(0, 1), seeds)
def test_max_pool_is_onnx_runtimes(
    window: tuple[tuple[int, ...], dict[str, Any]],
    ceil_mode: bool,
    outputs: int,
    storage_order: int,
    seed: int,
) -> None:
    size, attributes = window
    assume(not ceil_mode or attributes.get("auto_pad") != "VALID")  # docs/operators-decisions.json
    feeds: Feeds = {"x": numbers(seed, 2, 2, *size)}
    attributes = {**attributes, "ceil_mode": int(ceil_mode)}
    if outputs == 2:
        attributes["storage_order"] = storage_order
    result = ours("MaxPool", feeds, outputs, **attributes)
    assume(np.isfinite(result[0]).all())  # every window sees an element
    same(result, runtime("MaxPool", feeds, outputs, **attributes))


@settings(max_examples=150, deadline=None)
@given(windows(), st.booleans(), st.booleans(), seeds)
def test_average_pool_is_onnx_runtimes(
    window: tuple[tuple[int, ...], dict[str, Any]], ceil_mode: bool, include: bool, seed: int
) -> None:
    size, attributes = window
    assume(not ceil_mode or attributes.get("auto_pad") != "VALID")  # docs/operators-decisions.json
    feeds: Feeds = {"x": numbers(seed, 2, 2, *size)}
    attributes = {**attributes, "ceil_mode": int(ceil_mode), "count_include_pad": int(include)}
    with np.errstate(invalid="ignore"):
        result = ours("AveragePool", feeds, **attributes)
    assume(np.isfinite(result[0]).all())
    same(result, runtime("AveragePool", feeds, **attributes))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 4), seeds)
def test_lrn_is_onnx_runtimes(batch: int, channels: int, half: int, seed: int) -> None:
    feeds: Feeds = {"x": numbers(seed, batch, channels, 3, 2)}
    attributes: dict[str, Any] = {"size": 2 * half - 1, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    same(ours("LRN", feeds, **attributes), runtime("LRN", feeds, **attributes))


@pytest.mark.parametrize(
    ("shape", "taken", "axis"), [((3, 70), 5, 1), ((70, 3), 80, 0), ((2, 3, 65), 65, -1)]
)
def test_gather_elements_is_onnx_runtimes(shape: tuple[int, ...], taken: int, axis: int) -> None:
    random = np.random.default_rng(0)
    size = shape[axis]
    places = list(shape)
    places[axis] = taken
    feeds: dict[str, npt.NDArray[Any]] = {
        "x": random.standard_normal(shape).astype(np.float32),
        "i": random.integers(-size, size, places),
    }
    got, expected = (f("GatherElements", feeds, axis=axis) for f in (ours, runtime))
    np.testing.assert_array_equal(got[0], expected[0])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1), st.integers(1, 3), st.integers(3, 9), st.booleans(), st.booleans(), seeds)
def test_pools_are_the_originals_where_padding_is_even(
    pad: int, stride: int, size: int, ceil_mode: bool, include: bool, seed: int
) -> None:
    # Equal pads on all sides: the originals read their order wrongly.
    feeds: Feeds = {"x": numbers(seed, 1, 2, size, size)}
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [stride, stride], "pads": [pad] * 4}
    same(ours("MaxPool", feeds, **attributes), original("MaxPool", feeds, **attributes))
    attributes["count_include_pad"] = int(include)
    same(ours("AveragePool", feeds, **attributes), original("AveragePool", feeds, **attributes))


@settings(max_examples=40, deadline=None)
@given(windows(dilated=False), st.integers(1, 2), seeds)
def test_conv_transpose_is_the_original_with_one_group(
    window: tuple[tuple[int, ...], dict[str, Any]], writes: int, seed: int
) -> None:
    size, attributes = window
    assume("auto_pad" not in attributes)
    rank = len(size)
    strides = attributes.get("strides", [1] * rank)
    pads = attributes["pads"]
    for i, n in enumerate(size):
        assume((n - 1) * strides[i] + attributes["kernel_shape"][i] > pads[i] + pads[rank + i])
    feeds: Feeds = {
        "x": numbers(seed, 1, 2, *size),
        "w": numbers(seed + 1, 2, writes, *attributes["kernel_shape"]),
    }
    same(ours("ConvTranspose", feeds, **attributes), original("ConvTranspose", feeds, **attributes))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["Softmax", "LogSoftmax", "Hardmax"]),
    st.sampled_from([8, 11, 12, 13, 17]),
    st.one_of(st.none(), st.integers(0, 2)),
    seeds,
)
def test_softmax_and_kin_are_onnx_runtimes(op: str, opset: int, axis: int | None, seed: int) -> None:
    feeds: Feeds = {"x": numbers(seed, 2, 3, 4) * 50}
    attributes = {} if axis is None else {"axis": axis}
    same(ours(op, feeds, opset=opset, **attributes), runtime(op, feeds, opset=opset, **attributes))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_pools_keep_the_dtype(op: str, dtype: str) -> None:
    feeds: Feeds = {"x": numbers(0, 1, 2, 5, 5).astype(dtype)}
    (result,) = ours(op, feeds, kernel_shape=[2, 2])
    assert result.dtype == dtype


def test_max_pool_of_integers_ignores_its_padding() -> None:
    feeds: Feeds = {"x": np.full((1, 1, 2, 2), -7, np.int8)}
    (result,) = ours("MaxPool", feeds, kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    assert (result == -7).all()


def test_half_precision_sums_are_kept_in_single() -> None:
    feeds: Feeds = {
        "x": np.full((1, 4096, 1, 1), 0.25, np.float16),
        "w": np.full((1, 4096, 1, 1), 1.0, np.float16),
    }
    (result,) = ours("Conv", feeds)
    assert result.dtype == np.float16
    assert result.item() == 1024.0
