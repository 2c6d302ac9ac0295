"""Models at the sizes at which kernels go wrong: 0, 1, primes; of rank 0 to 5; in every float type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from collage_core.formats import Array
from collage_core.testing import make_model, node

__all__ = ["edges"]

_Edge = tuple[onnx.ModelProto, dict[str, Array]]
_FLOATS = ("float32", "float64", "float16")
_UNARY = (
    *("Abs", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Neg", "Relu"),
    *("Sigmoid", "Softplus", "Tanh"),
)
_BINARY = ("Add", "Div", "Max", "Min", "Mul", "Sub")
_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")
_ALONG = ("LogSoftmax", "Softmax")
_SHAPES = ((), (1,), (13,), (0, 3), (1, 1, 1), (7, 1, 5), (1, 3, 17, 13), (2, 3, 1, 5, 7))
_PAIRS: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = (
    *(((), ()), ((13,), ()), ((13,), (1,)), ((7, 1, 5), (3, 1)), ((0, 3), (3,)), ((1, 3, 17, 13), (3, 1, 1))),
    *(((5, 7), (5, 7)), ((2, 3, 1, 5, 7), (2, 3, 1, 5, 7))),
)
_PRODUCTS: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = (
    *(((1, 1), (1, 1)), ((17, 13), (13, 7)), ((1, 13), (13, 1)), ((0, 3), (3, 5)), ((3, 0), (0, 5))),
    *(((2, 1, 17, 13), (13, 7)), ((3, 17, 5), (3, 5, 1)), ((13,), (13, 7)), ((17, 13), (13,))),
)
_CONVOLUTIONS: Sequence[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = (
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((1, 3, 13, 11), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 17, 1), (7, 3, 3, 1), {"strides": [2, 1]}),
    ((1, 7, 13, 13), (7, 1, 3, 3), {"group": 7, "pads": [0, 1, 2, 1]}),
    ((1, 6, 11, 7), (4, 3, 1, 1), {"group": 2}),
    ((1, 3, 19, 17), (5, 3, 3, 3), {"dilations": [3, 2]}),
    ((0, 3, 5, 5), (2, 3, 3, 3), {}),
    ((1, 3, 23), (5, 3, 5), {"pads": [2, 2]}),
    ((1, 2, 5, 7, 3), (3, 2, 3, 3, 1), {}),
)
_POOLS: Sequence[tuple[tuple[int, ...], dict[str, Any]]] = (
    ((1, 1, 1, 1), {"kernel_shape": [1, 1]}),
    ((1, 3, 13, 11), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 5, 7, 17), {"kernel_shape": [2, 3], "strides": [2, 1], "ceil_mode": 1}),
    ((0, 3, 5, 5), {"kernel_shape": [3, 3]}),
    ((1, 3, 19), {"kernel_shape": [5], "strides": [3]}),
)


def edges(op_type: str) -> Iterator[_Edge]:
    """Models of one operator, with inputs; none of operators that are not in the tables of this module."""
    for dtype in _FLOATS:
        yield from _MAKERS.get(op_type, _nothing)(op_type, dtype)


def _nothing(op: str, dtype: str) -> Iterator[_Edge]:
    return iter(())


def _unary(op: str, dtype: str) -> Iterator[_Edge]:
    for shape in _SHAPES:
        yield _edge(op, {"x": _array(shape, dtype)})


def _binary(op: str, dtype: str) -> Iterator[_Edge]:
    for one, other in _PAIRS:
        away_from_zero = np.asarray(np.abs(_array(other, dtype, 1)) + 1, dtype)
        yield _edge(op, {"x": _array(one, dtype), "z": away_from_zero})
        yield _edge(op, {"x": _array(one, dtype)}, {"z": away_from_zero})


def _reduction(op: str, dtype: str) -> Iterator[_Edge]:
    for shape in _SHAPES[1:]:
        for axes in ([0], [-1], [*range(len(shape))]):
            if all(shape[a] for a in axes):  # of nothing there is no largest
                for keepdims in (0, 1):
                    inputs = {"x": _array(shape, dtype)}
                    yield _edge(op, inputs, {"axes": np.array(axes, np.int64)}, keepdims=keepdims)


def _along(op: str, dtype: str) -> Iterator[_Edge]:
    for shape in _SHAPES[1:]:
        for axis in {0, len(shape) - 1}:
            if shape[axis]:
                yield _edge(op, {"x": _array(shape, dtype)}, axis=axis)


def _transpose(op: str, dtype: str) -> Iterator[_Edge]:
    for shape in _SHAPES[1:]:
        yield _edge(op, {"x": _array(shape, dtype)}, perm=[*range(len(shape))][::-1])


def _concatenation(op: str, dtype: str) -> Iterator[_Edge]:
    for shape in _SHAPES[1:]:
        yield _edge(op, {"x": _array(shape, dtype), "z": _array(shape, dtype, 1)}, axis=len(shape) - 1)


def _product(op: str, dtype: str) -> Iterator[_Edge]:
    for one, other in _PRODUCTS:
        yield _edge(op, {"x": _array(one, dtype), "w": _array(other, dtype, 1)})
        yield _edge(op, {"x": _array(one, dtype)}, {"w": _array(other, dtype, 1)})


def _gemm(op: str, dtype: str) -> Iterator[_Edge]:
    for rows, depth, columns in ((1, 1, 1), (17, 13, 7), (1, 13, 5), (0, 3, 5)):
        for turned in (0, 1):
            weights = _array((columns, depth) if turned else (depth, columns), dtype, 1)
            constants = {"w": weights, "c": _array((columns,), dtype, 2)}
            yield _edge(op, {"x": _array((rows, depth), dtype)}, constants, transB=turned)


def _convolution(op: str, dtype: str) -> Iterator[_Edge]:
    for image, kernel, attributes in _CONVOLUTIONS:
        bias = _array(kernel[:1], dtype, 2)
        yield _edge(op, {"x": _array(image, dtype)}, {"w": _array(kernel, dtype, 1), "b": bias}, **attributes)


def _pool(op: str, dtype: str) -> Iterator[_Edge]:
    for image, attributes in _POOLS:
        yield _edge(op, {"x": _array(image, dtype)}, **attributes)


def _layer_normalisation(op: str, dtype: str) -> Iterator[_Edge]:
    for shape in ((1, 1), (7, 13), (0, 5), (2, 3, 17)):
        scale, shift = (_array(shape[-1:], dtype, seed) for seed in (1, 2))
        yield _edge(op, {"x": _array(shape, dtype)}, {"s": scale, "b": shift})


def _edge(
    op: str, inputs: dict[str, Array], constants: dict[str, Array] | None = None, **attributes: Any
) -> _Edge:
    operands = [*inputs, *(constants or {})]
    return make_model([node(op, operands, "y", **attributes)], inputs, constants), inputs


def _array(shape: Sequence[int], dtype: str, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


_MAKERS: dict[str, Callable[[str, str], Iterator[_Edge]]] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_ALONG, _along),
    "AveragePool": _pool,
    "Concat": _concatenation,
    "Conv": _convolution,
    "Gemm": _gemm,
    "LayerNormalization": _layer_normalisation,
    "MatMul": _product,
    "MaxPool": _pool,
    "Transpose": _transpose,
}
