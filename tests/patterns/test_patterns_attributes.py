"""Attributes under both spellings, defaults of the schema, and aliases of operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from collage_core.ir import Graph, Operator
from collage_core.patterns import Attributes, find_matches, is_op

Parse = Callable[..., Graph]


def only(graph: Graph) -> Operator:
    return Operator(graph, graph.nodes[-1])


@pytest.fixture
def conv(parse: Parse) -> Operator:
    return only(
        parse("(float[1,8,9,9] x) => (float y) { y = Conv<group=2, strides=[2,2]>(x, w) }", w=(4, 4, 3, 3))
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strides", (2, 2)),
        ("group", 2),
        ("groups", 2),
        ("kernel_shape", (3, 3)),
        ("kernel_size", (3, 3)),
        ("pads", (0, 0, 0, 0)),
        ("padding", (0, 0, 0, 0)),
        ("dilations", (1, 1)),
        ("dilation", (1, 1)),
        ("auto_pad", "NOTSET"),
        ("data_layout", "NCHW"),
        ("kernel_layout", "OIHW"),
        ("out_dtype", "float32"),
        ("channels", 4),
    ],
)
def test_both_spellings(conv: Operator, name: str, value: object) -> None:
    assert conv.attrs[name] == value
    assert getattr(conv.attrs, name) == value


def test_missing(conv: Operator) -> None:
    assert "colour" not in conv.attrs
    assert conv.attrs.get("colour", 7) == 7
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = conv.attrs.colour
    assert set(conv.attrs) == {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}
    assert len(conv.attrs) == 6


@pytest.mark.parametrize(
    ("shape", "weights", "data", "kernel"),
    [((1, 2, 5), (3, 2, 3), "NCW", "OIW"), ((1, 2, 5, 5, 5), (3, 2, 3, 3, 3), "NCDHW", "OIDHW")],
)
def test_layouts_of_other_ranks(
    parse: Parse, shape: tuple[int, ...], weights: tuple[int, ...], data: str, kernel: str
) -> None:
    op = only(parse(f"(float{list(shape)} x) => (float y) {{ y = Conv(x, w) }}", w=weights))
    assert (op.attrs.data_layout, op.attrs.kernel_layout) == (data, kernel)


@pytest.mark.parametrize(
    ("mode", "pads"), [("SAME_UPPER", (0, 1, 1, 1)), ("SAME_LOWER", (1, 1, 0, 1)), ("VALID", (0,) * 4)]
)
def test_pads_in_effect(parse: Parse, mode: str, pads: tuple[int, ...]) -> None:
    attribute = f'auto_pad="{mode}", strides=[2,1]'
    op = only(parse(f"(float[1,2,8,8] x) => (float y) {{ y = Conv<{attribute}>(x, w) }}", w=(3, 2, 3, 3)))
    assert op.attrs.pads == pads


def test_other_operators(parse: Parse) -> None:
    text = "(float[2,3,4] x) => (float y) {{ y = {} }}"
    assert only(parse(text.format("Softmax(x)"))).attrs.axis == -1
    assert only(parse(text.format("ReduceSum<keepdims=0>(x, a)"), a=np.array([1, 2]))).attrs.axis == (1, 2)
    assert only(parse(text.format("LeakyRelu<alpha=0.2>(x)"))).attrs.alpha == pytest.approx(0.2)
    clip = only(
        parse(text.format("Clip(x, lo, hi)"), lo=np.float32(0).reshape(()), hi=np.float32(6).reshape(()))
    )
    assert (clip.attrs.a_min, clip.attrs.a_max) == (0.0, 6.0)
    assert only(parse(text.format("Reshape(x, s)"), s=np.array([6, 4]))).attrs.newshape == (6, 4)
    dense = only(parse("(float[2,3] x) => (float y) { y = Gemm<transB=1>(x, w) }", w=(5, 3)))
    assert (dense.attrs.units, dense.attrs.transpose_b, dense.attrs.alpha) == (5, 1, 1.0)
    pool = only(parse("(float[1,2,8,8] x) => (float y) { y = MaxPool<kernel_shape=[2,2]>(x) }"))
    assert (pool.attrs.pool_size, pool.attrs.layout, pool.attrs.ceil_mode) == ((2, 2), "NCHW", 0)


def test_has_attr_compares_as_people_write(parse: Parse) -> None:
    graph = parse("(float[1,2,8,8] x) => (float y) { y = Conv<pads=[1,2,1,2]>(x, w) }", w=(3, 2, 3, 3))
    assert find_matches(graph, is_op("conv2d").has_attr({"padding": (1, 2), "strides": 1}))
    assert not find_matches(graph, is_op("conv2d").has_attr({"padding": (2, 1)}))
    assert not find_matches(graph, is_op("conv2d").has_attr({"padding": 1}))
    assert find_matches(graph, is_op("conv2d").has_attr({"padding": [1, 2, 1, 2]}))
    leaky = parse("(float[2] x) => (float y) { y = LeakyRelu<alpha=0.2>(x) }")
    assert find_matches(leaky, is_op("leaky_relu").has_attr({"alpha": 0.2}))
    assert not find_matches(leaky, is_op("leaky_relu").has_attr({"alpha": 0.21}))


@pytest.mark.parametrize(
    ("alias", "inputs", "call", "others"),
    [
        ("conv1d", "float[1,2,5] x", "Conv(x, c3)", ["conv2d", "conv3d"]),
        ("conv2d_transpose", "float[1,2,5,5] x", "ConvTranspose(x, c4)", ["conv1d_transpose", "conv2d"]),
        ("dense", "float[2,3] x", "MatMul(x, c2)", ["batch_matmul"]),
        ("dense", "float[2,3] x", "Gemm(x, c2)", []),
        ("matmul", "float[2,3] x, float[3,2] z", "MatMul(x, z)", ["dense", "batch_matmul"]),
        ("batch_matmul", "float[2,3,3] x, float[2,3,2] z", "MatMul(x, z)", ["dense"]),
        ("max_pool2d", "float[1,2,5,5] x", "MaxPool<kernel_shape=[2,2]>(x)", ["max_pool1d", "avg_pool2d"]),
        ("global_avg_pool2d", "float[1,2,5,5] x", "GlobalAveragePool(x)", ["global_avg_pool3d"]),
        ("add", "float[2,3] x, float[2,3] z", "Add(x, z)", ["bias_add"]),
        ("multiply", "float[2,3] x, float[2,3] z", "Mul(x, z)", ["add"]),
        ("relu", "float[2,3] x", "Relu(x)", ["sigmoid"]),
        ("softmax", "float[2,3] x", "Softmax(x)", []),
        ("layer_norm", "float[2,3] x", "LayerNormalization(x, c1)", []),
        ("concatenate", "float[2,3] x", "Concat<axis=0>(x, x)", []),
        ("transpose", "float[2,3] x", "Transpose(x)", []),
    ],
)
def test_aliases(parse: Parse, alias: str, inputs: str, call: str, others: list[str]) -> None:
    constants = {"c1": (3,), "c2": (3, 4), "c3": (4, 2, 3), "c4": (2, 4, 3, 3)}
    graph = parse(
        f"({inputs}) => (float y) {{ y = {call} }}", **{k: v for k, v in constants.items() if k in call}
    )
    assert only(graph).name == alias
    assert find_matches(graph, is_op(alias))
    assert find_matches(graph, is_op(f"nn.{alias.upper()}"))
    for other in others:
        assert not find_matches(graph, is_op(other))


@pytest.mark.parametrize(
    ("shape", "is_bias"), [((4,), True), ((4, 1, 1), True), ((1, 4, 1, 1), True), ((4, 4), False)]
)
def test_bias_add(parse: Parse, shape: tuple[int, ...], is_bias: bool) -> None:
    graph = parse("(float[1,4,4,4] x) => (float y) { y = Add(b, x) }", b=shape)
    assert bool(find_matches(graph, is_op("bias_add"))) == is_bias


def test_attributes_of_other_domains(parse: Parse) -> None:
    op = only(parse("(float[4] x) => (float[4] y) { y = ours.Fancy<k=3>(x) }"))
    assert dict(Attributes(op)) == {"k": 3}
    assert op.name == "Fancy"
