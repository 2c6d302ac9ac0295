"""NumPy's reading of what is asked of cuDNN, on flat memory: sizes and strides count as they do there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from collage_cudnn.description import Call, Description, Step, Tensor

from collage_core.formats import Array

__all__ = ["emulate", "memory_of"]


def memory_of(tensor: Tensor) -> Array:
    """Elements for it, none of them a number yet."""
    return np.full(1 + sum((d - 1) * s for d, s in zip(tensor.dims, tensor.strides, strict=True)), np.nan)


def emulate(planned: Call | Description, inputs: Sequence[Array]) -> Array:
    """The output's memory. inputs: that of each of the group's inputs, flat."""
    if isinstance(planned, Call):
        flat = memory_of(planned.result)
        _view(flat, planned.result)[...] = _CALLS[planned.kind](_view(inputs[0], planned.source), planned)
        return flat
    values: dict[int, Array] = {n: _view(inputs[i], planned.tensors[n]) for n, i in planned.inputs.items()}
    for n, elements in planned.constants.items():
        assert elements.dtype == np.dtype(planned.tensors[n].dtype)
        values[n] = _view(elements.reshape(-1).astype(np.float64), planned.tensors[n])
    values |= {n: np.full(planned.tensors[n].dims, v) for n, v in planned.numbers.items()}
    for step in planned.steps:
        result = _step(step, [values[n] for n in step.inputs])
        assert result.shape == step.dims, f"{step.kind} yields {result.shape}, not {step.dims}"
        values[step.output] = result
    flat = memory_of(planned.tensors[planned.output])
    _view(flat, planned.tensors[planned.output])[...] = values[planned.output]
    return flat


def _view(flat: Array, tensor: Tensor) -> Array:
    size = memory_of(tensor).size
    assert flat.size == size, f"{tensor} takes {size} elements, not {flat.size}"
    strides = [s * flat.itemsize for s in tensor.strides]
    return np.lib.stride_tricks.as_strided(flat, tensor.dims, strides)


def _step(step: Step, x: Sequence[Array]) -> Array:
    if step.kind in _POINTWISE:
        return np.asarray(_POINTWISE[step.kind](*x, **step.attributes))
    return _STRUCTURED[step.kind](step, *x)


def _relu(
    x: Array, negative_slope: float = 0.0, lower_clip: float = 0.0, upper_clip: float = math.inf
) -> Array:
    below = lower_clip + negative_slope * (x - lower_clip) if negative_slope else lower_clip
    return np.minimum(np.where(x < lower_clip, below, x), upper_clip)


def _elu(x: Array) -> Array:
    return np.asarray(np.where(x > 0, x, np.expm1(x)), np.float64)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


_POINTWISE: Mapping[str, Callable[..., Array]] = {
    "abs": np.abs,
    "add": np.add,
    "ceil": np.ceil,
    "cos": np.cos,
    "div": np.divide,
    "elu": _elu,
    "erf": _erf,
    "exp": np.exp,
    "floor": np.floor,
    "gelu": lambda x: 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),
    "gelu_approx_tanh": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "identity": lambda x: x,
    "log": np.log,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "neg": np.negative,
    "reciprocal": np.reciprocal,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "swish": lambda x, swish_beta=1.0: x * _sigmoid(swish_beta * x),
    "tan": np.tan,
    "tanh": np.tanh,
}


_Tap = tuple[tuple[int, ...], tuple[slice, ...]]


def _taps(step: Step, kernel: Sequence[int], places: Sequence[int]) -> list[_Tap]:
    """For every element of the kernel its place, and the slices of the padded image that it meets."""
    found = []
    strides, dilations = step.attributes["stride"], step.attributes["dilation"]
    for tap in itertools.product(*map(range, kernel)):
        slices = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, places, strict=True)
        )
        found.append((tap, slices))
    return found


def _padding(step: Step) -> list[tuple[int, int]]:
    return list(zip(step.attributes["pre_padding"], step.attributes["post_padding"], strict=True))


def _fprop(step: Step, x: Array, w: Array) -> Array:
    groups = x.shape[1] // w.shape[1]
    padded = np.pad(x, [(0, 0), (0, 0), *_padding(step)])
    places = step.dims[2:]
    split = padded.reshape(x.shape[0], groups, w.shape[1], *padded.shape[2:])
    filters = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    result = np.zeros((x.shape[0], groups, filters.shape[1], *places))
    for tap, slices in _taps(step, w.shape[2:], places):
        met = split[(slice(None),) * 3 + slices]
        result += np.einsum("ngc...,gkc->ngk...", met, filters[(slice(None),) * 3 + tap])
    whole = [(n + b + e - (k - 1) * d - 1) // s + 1 for n, (b, e), k, d, s in _sizes(step, x, w)]
    assert tuple(whole) == tuple(places), f"the window fits {whole} times, not {places}"
    return result.reshape(step.dims)


def _sizes(step: Step, x: Array, w: Array) -> list[tuple[int, tuple[int, int], int, int, int]]:
    attributes = step.attributes
    return list(
        zip(
            x.shape[2:],
            _padding(step),
            w.shape[2:],
            attributes["dilation"],
            attributes["stride"],
            strict=True,
        )
    )


def _dgrad(step: Step, dy: Array, w: Array) -> Array:
    groups = step.dims[1] // w.shape[1]
    padding = _padding(step)
    padded = [n + b + e for n, (b, e) in zip(step.dims[2:], padding, strict=True)]
    split = dy.reshape(dy.shape[0], groups, -1, *dy.shape[2:])
    filters = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    result = np.zeros((dy.shape[0], groups, w.shape[1], *padded))
    for tap, slices in _taps(step, w.shape[2:], dy.shape[2:]):
        result[(slice(None),) * 3 + slices] += np.einsum(
            "ngk...,gkc->ngc...", split, filters[(slice(None),) * 3 + tap]
        )
    inner = tuple(slice(b, b + n) for n, (b, _) in zip(step.dims[2:], padding, strict=True))
    return result[(slice(None),) * 3 + inner].reshape(step.dims)


def _layernorm(step: Step, x: Array, scale: Array, bias: Array, epsilon: Array) -> Array:
    axes = tuple(range(1, x.ndim))
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + epsilon) * scale + bias)


def _attention(step: Step, q: Array, k: Array, v: Array) -> Array:
    scores = np.einsum("bhsd,bhtd->bhst", q, k) * step.attributes["attn_scale"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("bhst,bhtd->bhsd", weights / weights.sum(-1, keepdims=True), v))


_STRUCTURED: Mapping[str, Callable[..., Array]] = {
    "conv_dgrad": _dgrad,
    "conv_fprop": _fprop,
    "layernorm": _layernorm,
    "matmul": lambda step, a, b: np.matmul(a, b),
    "sdpa": _attention,
}


def _softmax(x: Array, call: Call) -> Array:
    shifted = x - x.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return np.asarray(logs if call.settings["is_log"] else np.exp(logs))


_REDUCTIONS: Mapping[str, Callable[..., Array]] = {
    "ADD": np.sum,
    "AVG": np.mean,
    "MAX": np.max,
    "MIN": np.min,
    "MUL": np.prod,
    "NORM1": lambda x, axes, keepdims: np.abs(x).sum(axes, keepdims=keepdims),
    "NORM2": lambda x, axes, keepdims: np.sqrt((x * x).sum(axes, keepdims=keepdims)),
}


def _reduction(x: Array, call: Call) -> Array:
    left = call.result.dims
    axes = tuple(d for d in range(x.ndim) if left[d] != x.shape[d])
    return _REDUCTIONS[call.settings["operator"]](x, axes, keepdims=True)


def _pooling(x: Array, call: Call) -> Array:
    window, padding, stride = (call.settings[n] for n in ("window", "padding", "stride"))
    mode, places = call.settings["mode"], call.result.dims[2:]
    fits = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], padding, window, stride, strict=True)]
    assert tuple(fits) == tuple(places), f"the window fits {fits} times, not {places}"
    result = np.empty(call.result.dims)
    for place in itertools.product(*map(range, places)):
        first = [o * s - p for o, s, p in zip(place, stride, padding, strict=True)]
        slices = tuple(
            slice(max(f, 0), min(f + k, n)) for f, k, n in zip(first, window, x.shape[2:], strict=True)
        )
        met = x[(slice(None),) * 2 + slices]
        axes = tuple(range(2, x.ndim))
        if mode == "max":
            value = met.max(axes)
        else:
            count = math.prod(window) if "include" in mode else math.prod(met.shape[2:])
            value = met.sum(axes) / count
        result[(slice(None),) * 2 + place] = value
    return result


_CALLS: Mapping[str, Callable[[Array, Call], Array]] = {
    "pooling": _pooling,
    "reduction": _reduction,
    "softmax": _softmax,
    "transform": lambda x, call: x,
}
