"""What ONNX Runtime's optimizer of transformers joins, attention apart: activations, sums that are
normalised, embeddings.

Where ONNX has such an operator at the model's opset, it is that one.
"""

from __future__ import annotations

import math

from collage_core.ir import Call, TensorType
from collage_onnxruntime.definitions.text import (
    AXES_SINCE,
    State,
    float_type,
    function,
    integers,
    known_types,
    number,
)

__all__ = ["STATED"]

_GELU_SINCE, _LAYER_NORM_SINCE, _RMS_NORM_SINCE, _AXES_INPUT_SINCE = 20, 17, 23, 18
"""Opsets: those that bring Gelu, LayerNormalization and RMSNormalization, and in which ReduceMean is told its
axes by an input.
"""
_EPSILON = 1e-12
"""Of the normalisations, where it is not stated."""
_QUICK_ALPHA = 1.702


def _gelu(call: Call) -> str | None:
    return _function("(x) => (y)", _gelu_steps(call, "x"))


def _bias_gelu(call: Call) -> str | None:
    return _function("(a, b) => (y)", _gelu_steps(call, "x"), "x = Add (a, b)")


def _gelu_steps(call: Call, x: str) -> list[str] | None:
    if call.opset >= _GELU_SINCE:
        return [f"y = Gelu ({x})"]
    if not float_type(call):
        return None
    numbers = [number("root", math.sqrt(2.0)), number("one", 1.0), number("half", 0.5)]
    return [
        *numbers,
        f"scaled = Div ({x}, root) bent = Erf (scaled) raised = Add (bent, one)",
        f"double = Mul ({x}, raised) y = Mul (double, half)",
    ]


def _fast_gelu(call: Call) -> str | None:
    """By tanh. A bias comes first."""
    added = "x = Add (a, b)" if call.has(1) else "x = Identity (a)"
    if call.opset >= _GELU_SINCE:
        return _function("(a, b) => (y)", ['y = Gelu <approximate: string = "tanh"> (x)'], added)
    if not float_type(call):
        return None
    steps = [
        number("one", 1.0) + number(" half", 0.5),
        number("linear", math.sqrt(2.0 / math.pi)) + number(" cubic", 0.044715 * math.sqrt(2.0 / math.pi)),
        "square = Mul (x, x) curved = Mul (square, cubic) slope = Add (curved, linear)",
        "inner = Mul (x, slope) bent = Tanh (inner) raised = Add (bent, one)",
        "double = Mul (x, raised) y = Mul (double, half)",
    ]
    return _function("(a, b) => (y)", steps, added)


def _quick_gelu(call: Call) -> str | None:
    if not float_type(call):
        return None
    steps = [number("alpha", call.attributes.get("alpha", _QUICK_ALPHA))]
    return _function(
        "(x) => (y)", [*steps, "scaled = Mul (x, alpha) gate = Sigmoid (scaled) y = Mul (x, gate)"]
    )


def _skip_layer_norm(call: Call) -> str | None:
    """The sum is the fourth output. Mean and deviation, the second and third, no one computes."""
    return _skip_norm(call, "(x, skip, gamma, beta, bias) => (y, mean, deviation, sum)", 4)


def _skip_rms_norm(call: Call) -> str | None:
    return _skip_norm(call, "(x, skip, gamma, bias) => (y, mean, deviation, sum)", 3)


def _skip_norm(call: Call, head: str, bias: int) -> str | None:
    known = known_types(call, 0, 1)
    if call.asks(1) or call.asks(2) or (known is not None and _is_wider(known[1], known[0])):
        return None
    added = "both = Add (x, skip) sum = Add (both, bias)" if call.has(bias) else "sum = Add (x, skip)"
    beta = "beta" if bias == 4 and call.has(3) else ""
    norm = _layer_norm(call, "sum", beta) if bias == 4 else _rms_norm(call, "sum")
    return _function(head, norm, added)


def _is_wider(skip: TensorType, x: TensorType) -> bool:
    """Whether what is added would make x larger, which the operator does not allow."""
    pairs = zip(reversed(skip.shape), reversed(x.shape), strict=False)
    return len(skip.shape) > len(x.shape) or any(a not in (1, b) for a, b in pairs if isinstance(a, int))


def _layer_norm(call: Call, x: str, beta: str) -> list[str] | None:
    """y, along the last axis."""
    epsilon = float(call.attributes.get("epsilon", _EPSILON))
    if call.opset >= _LAYER_NORM_SINCE:
        operands = f"{x}, gamma, {beta}" if beta else f"{x}, gamma"
        return [f"y = LayerNormalization <axis: int = -1, epsilon: float = {epsilon}> ({operands})"]
    if call.opset < AXES_SINCE or not float_type(call, 2):
        return None
    mean = "ReduceMean <axes: ints = [-1], keepdims: int = 1>"
    return [
        f"middle = {mean} ({x}) off = Sub ({x}, middle) square = Mul (off, off) variance = {mean} (square)",
        number("epsilon", epsilon),
        "positive = Add (variance, epsilon) spread = Sqrt (positive) unit = Div (off, spread)",
        f"wide = Mul (unit, gamma) y = Add (wide, {beta})" if beta else "y = Mul (unit, gamma)",
    ]


def _rms_norm(call: Call, x: str) -> list[str] | None:
    """y, along the last axis."""
    epsilon = float(call.attributes.get("epsilon", _EPSILON))
    if call.opset >= _RMS_NORM_SINCE:
        return [f"y = RMSNormalization <axis: int = -1, epsilon: float = {epsilon}> ({x}, gamma)"]
    if call.opset < AXES_SINCE or not float_type(call, 2):
        return None
    attribute = (
        "keepdims: int = 1" if call.opset >= _AXES_INPUT_SINCE else "axes: ints = [-1], keepdims: int = 1"
    )
    axes = ", last" if call.opset >= _AXES_INPUT_SINCE else ""
    return [
        integers("last", -1),
        f"square = Mul ({x}, {x}) power = ReduceMean <{attribute}> (square{axes})",
        number("epsilon", epsilon),
        "positive = Add (power, epsilon) spread = Sqrt (positive)",
        f"unit = Div ({x}, spread) y = Mul (unit, gamma)",
    ]


def _embed_layer_norm(call: Call) -> str | None:
    """The second output tells how many words of each row are not masked, the third the sum."""
    # Of the operator's inputs the sixth is gamma: see `_layer_norm` for whose type it asks.
    norm = _layer_norm(call, "sum", "beta")
    if norm is None or call.opset < AXES_SINCE or (call.has(1) and not call.has(4)):
        return None
    steps = [
        integers("zero", 0) + integers(" one", 1) + integers(" two", 2),
        "shape = Shape (ids) words = Gather (word, ids)",
    ]
    if call.has(8):
        steps.append("places = Gather (position, places_of)")
    else:
        steps.append("count = Slice (shape, one, two) places = Slice (position, zero, count)")
    steps.append("placed = Add (words, places)" if call.has(4) else "sum = Add (words, places)")
    if call.has(4):  # of which all rows have the first, where nothing says which
        which = "segment_ids" if call.has(1) else "zero"
        steps.append(f"segments = Gather (segment, {which}) sum = Add (placed, segments)")
    if call.asks(1) and call.has(7):
        steps += [
            "present = Cast <to: int = 6> (one) kept = Equal (mask, present)",
            "counted = Cast <to: int = 6> (kept) mask_index = ReduceSum <keepdims: int = 0> (counted, one)",
        ]
    elif call.asks(1):
        steps.append(
            "rows = Slice (shape, zero, one)"
            " mask_index = ConstantOfShape <value: tensor = int32[1] {0}> (rows)"
        )
    head = "(ids, segment_ids, word, position, segment, gamma, beta, mask, places_of) => (y, mask_index, sum)"
    return _function(head, norm, *steps)


def _function(head: str, steps: list[str] | None, *before: str) -> str | None:
    """None where there are no steps."""
    return None if steps is None else function(head, *before, *steps)


STATED: dict[str, State] = {
    "Gelu": _gelu,
    "BiasGelu": _bias_gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "EmbedLayerNormalization": _embed_layer_norm,
}
"""By operator."""
