"""The reference against ONNX Runtime on forms that operators had from opset 7 to 12.

Then attributes were what inputs are now, defaults were others, and nothing but the opset says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from two_opinions import difference, one_node, reference, runtime

Tensor = npt.NDArray[Any]


@dataclass(frozen=True)
class Form:
    """An operator as it was at some opsets. constants: which inputs are no inputs of the model."""

    op: str
    opsets: tuple[int, ...]
    inputs: Sequence[Tensor | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    constants: tuple[int, ...] = ()


_random = np.random.default_rng(0)


def real(*shape: int) -> Tensor:
    return _random.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Tensor:
    return np.abs(real(*shape)) + np.float32(0.5)


def whole(low: int, high: int, *shape: int, dtype: str = "int64") -> Tensor:
    return _random.integers(low, high, shape).astype(dtype)


def ints(*values: int) -> Tensor:
    return np.asarray(values, np.int64)


def floats(*values: float) -> Tensor:
    return np.asarray(values, np.float32)


def scalar(value: float, dtype: str = "float32") -> Tensor:
    return np.asarray(value, dtype)


def normalisations() -> Iterator[Form]:
    statistics = [real(3), real(3), real(3), positive(3)]
    yield Form("BatchNormalization", (7, 8, 9, 12), [real(2, 3, 4), *statistics])
    each = [real(3, 4), real(3, 4), real(3, 4), positive(3, 4)]
    yield Form("BatchNormalization", (7, 8), [real(2, 3, 4), *each], {"spatial": 0})
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for axis in ({}, {"axis": 0}, {"axis": 2}):
            yield Form(op, (7, 11, 12), [real(2, 3, 4)], axis)
        yield Form(op, (11, 12), [real(2, 3, 4)], {"axis": -1})
    yield Form("InstanceNormalization", (7,), [real(2, 3, 4), real(3), real(3)])
    yield Form("LpNormalization", (7,), [real(3, 4)], {"p": 1})
    yield Form("LRN", (7,), [real(1, 5, 2, 2)], {"size": 3})
    yield Form("MeanVarianceNormalization", (9,), [real(2, 3, 2, 2)])


def resampling() -> Iterator[Form]:
    for mode in ("nearest", "linear"):
        yield Form("Upsample", (7, 8), [real(1, 1, 3, 2)], {"mode": mode, "scales": [1.0, 1.0, 2.0, 3.0]})
        scales = floats(1, 1, 2, 1.5)
        yield Form("Upsample", (9,), [real(1, 1, 3, 2), scales], {"mode": mode}, constants=(1,))
        yield Form("Resize", (10,), [real(1, 1, 3, 4), scales], {"mode": mode}, constants=(1,))
        places = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_half_pixel_for_nn"]
        for place in places:
            attributes = {"mode": mode, "coordinate_transformation_mode": place}
            half = [real(1, 1, 3, 4), floats(), floats(1, 1, 2, 0.5)]
            yield Form("Resize", (11,), half, attributes, constants=(1, 2))
            sizes = [real(1, 1, 3, 4), floats(), floats(), ints(1, 1, 5, 2)]
            yield Form("Resize", (11,), sizes, attributes, constants=(1, 2, 3))
    regions = floats(0.3, 0.4, 3, 4).reshape(1, 4)
    bins: dict[str, Any] = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    yield Form("RoiAlign", (10,), [real(1, 2, 5, 5), regions, ints(0)], bins)
    yield Form(
        "MaxRoiPool",
        (7,),
        [real(1, 2, 5, 5), floats(0, 0, 0, 3, 4).reshape(1, 5)],
        {"pooled_shape": [2, 2]},
    )


def parameters_that_were_attributes() -> Iterator[Form]:
    yield Form("TopK", (7, 9), [real(3, 5)], {"k": 2, "axis": 1}, 2)
    yield Form("TopK", (10, 11), [real(3, 5), ints(2)], {}, 2, (1,))
    yield Form("Slice", (7, 9), [real(4, 5)], {"starts": [1, -3], "ends": [3, 1000]})
    yield Form("Slice", (7, 9), [real(4, 5)], {"starts": [1], "ends": [-1], "axes": [1]})
    ends = [ints(1, -1), ints(3, -100), ints(0, 1), ints(1, -2)]
    yield Form("Slice", (10, 11, 12), [real(4, 5), *ends], constants=(1, 2, 3, 4))
    yield Form("Clip", (7, 10), [real(4, 5)], {"min": -0.5, "max": 0.5})
    yield Form("Clip", (7,), [real(4, 5)], {"max": 0.5})
    yield Form("Clip", (11, 12), [real(4, 5), None, scalar(0.5)], constants=(2,))
    for mode in ("constant", "reflect", "edge"):
        yield Form("Pad", (7, 10), [real(3, 4)], {"mode": mode, "pads": [1, 0, 2, 1]})
        yield Form("Pad", (11, 12), [real(3, 4), ints(1, 0, 2, 1)], {"mode": mode}, constants=(1,))
    yield Form("Pad", (7,), [real(3, 4)], {"pads": [-1, 0, 2, -1], "value": 2.5})
    yield Form("Dropout", (7, 10), [real(3, 4)], {"ratio": 0.3})
    yield Form("Dropout", (12,), [real(3, 4), scalar(0.4)], {}, 2, (1,))
    yield Form("Split", (7, 11, 12), [real(6, 4)], {"axis": 0, "split": [1, 2, 3]}, 3)
    yield Form("Split", (7, 11, 12), [real(6, 4)], {"axis": 1}, 2)
    yield Form("Squeeze", (7, 11, 12), [real(1, 3, 1, 2)], {"axes": [0]})
    yield Form("Squeeze", (7, 11), [real(1, 3, 1, 2)])
    yield Form("Unsqueeze", (7, 11, 12), [real(3, 2)], {"axes": [0, 3]})
    yield Form("Unsqueeze", (11,), [real(3, 2)], {"axes": [2, 0]})
    yield Form("Unsqueeze", (11,), [real(3, 2)], {"axes": [-1]})
    sums = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]
    for op in sums:
        for axes in ({}, {"axes": [1]}, {"axes": [0, 2], "keepdims": 0}):
            yield Form(f"Reduce{op}", (7, 11, 12), [positive(2, 3, 4)], axes)
        yield Form(f"Reduce{op}", (11, 12), [positive(2, 3, 4)], {"axes": [-1]})


def windows() -> Iterator[Form]:
    image = real(1, 2, 5, 6)
    padded: dict[str, Any] = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 1]}
    yield Form("MaxPool", (7, 8, 10, 11), [image], padded)
    yield Form("MaxPool", (8, 10), [image], {"kernel_shape": [2, 3], "storage_order": 1}, 2)
    ceiled: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    yield Form("MaxPool", (10,), [image], {**ceiled, "dilations": [2, 1]})
    yield Form("AveragePool", (7, 10, 11), [image], padded)
    yield Form("AveragePool", (7, 10), [image], {**padded, "count_include_pad": 1})
    yield Form("AveragePool", (10,), [image], ceiled)
    yield Form("LpPool", (7, 11), [image], {"kernel_shape": [2, 3], "p": 1})
    yield Form("GlobalLpPool", (7, 11), [image], {"p": 3})
    yield Form("GlobalMaxPool", (7,), [real(1, 2, 5)])
    yield Form("GlobalAveragePool", (7,), [real(1, 2, 5)])
    grouped: dict[str, Any] = {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}
    yield Form("Conv", (7, 11), [real(1, 4, 5, 5), real(2, 2, 3, 3)], grouped)
    transposed = [real(1, 2, 3, 3), real(2, 2, 2, 2), real(2)]
    for attributes in (
        {"output_padding": [1, 0]},
        {"auto_pad": "SAME_UPPER"},
        {"output_shape": [5, 5]},
        {"output_shape": [5, 5], "auto_pad": "SAME_UPPER"},
    ):
        yield Form("ConvTranspose", (7, 11), transposed, {"strides": [2, 2], **attributes})


def recurrences() -> Iterator[Form]:
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights = [real(1, gates * 3, 4), real(1, gates * 3, 3), real(1, 2 * gates * 3)]
        lengths = np.asarray([3, 2], np.int32)
        yield Form(op, (7,), [real(3, 2, 4), *weights, lengths], {"hidden_size": 3}, 2)
        both = [real(2, gates * 3, 4), real(2, gates * 3, 3)]
        attributes = {"hidden_size": 3, "direction": "bidirectional"}
        yield Form(op, (7,), [real(3, 2, 4), *both], attributes, 2)


def others() -> Iterator[Form]:
    for op in ("ArgMax", "ArgMin"):
        ties = whole(0, 3, 3, 4, dtype="float32")
        yield Form(op, (7, 11, 12), [ties], {"axis": 1})
        yield Form(op, (7, 11), [ties], {"keepdims": 0})
        yield Form(op, (12,), [ties], {"axis": -1, "select_last_index": 1})
    for to in (1, 6, 7, 9, 11):
        yield Form("Cast", (7, 9, 12), [real(3, 4) * 3], {"to": to})
    for bias in (real(4), real(3, 1), real(3, 4)):
        yield Form("Gemm", (7, 9, 11), [real(3, 2), real(2, 4), bias], {"alpha": 0.5, "beta": 2.0})
    yield Form("Gemm", (11,), [real(3, 2), real(4, 2)], {"transB": 1})
    for axis in ({}, {"axis": 2}, {"axis": 0}):
        yield Form("Flatten", (7, 9, 11), [real(2, 3, 4)], axis)
    depth = ints(4).reshape(())
    yield Form("OneHot", (9, 11), [whole(-4, 6, 3), depth, floats(0, 5)], {"axis": 0}, constants=(1, 2))
    yield Form("Scatter", (9, 10), [real(3, 4), whole(0, 3, 1, 4), real(1, 4)])
    yield Form("ScatterElements", (11, 12), [real(3, 4), whole(-3, 3, 1, 4), real(1, 4)])
    yield Form("ScatterND", (11, 12), [real(3, 4), ints(0, 2).reshape(2, 1), real(2, 4)])
    yield Form("GatherND", (12,), [real(3, 4), whole(0, 4, 3, 1)], {"batch_dims": 1})
    yield Form("Pow", (7, 12), [positive(3, 4), positive(4)])
    yield Form("Pow", (12,), [whole(1, 5, 3, 4), real(4)])
    for op in ("Max", "Min", "Sum", "Mean"):
        yield Form(op, (7, 8, 12), [real(3, 4), real(3, 4), real(3, 4)])
        yield Form(op, (8, 12), [real(4), real(3, 4), real(3, 1)])
    yield Form("Greater", (7, 9), [real(3, 4), real(4)])
    yield Form("Equal", (7, 11), [whole(0, 3, 3, 4), whole(0, 3, 4)])
    yield Form("PRelu", (7, 9), [real(2, 3, 4), real(3, 1)])
    yield Form("DepthToSpace", (7, 11), [real(1, 8, 2, 3)], {"blocksize": 2})
    boxes = floats(0, 0, 1, 1, 0, 0.1, 1, 1.1, 0, 2, 1, 3).reshape(1, 3, 4)
    scores = floats(0.9, 0.75, 0.6).reshape(1, 1, 3)
    thresholds = [ints(3), floats(0.5), floats(0)]
    yield Form("NonMaxSuppression", (10, 11), [boxes, scores, *thresholds])
    image, step, zero = whole(0, 255, 3, 4, dtype="uint8"), scalar(0.1), scalar(3, "uint8")
    yield Form("DequantizeLinear", (10,), [image, step, zero])
    yield Form("QuantizeLinear", (10,), [real(3, 4) * 10, scalar(0.5), zero])
    columns = whole(0, 255, 4, 2, dtype="uint8")
    yield Form("QLinearMatMul", (10,), [image, step, zero, columns, step, zero, scalar(2), zero])


FORMS = [
    form
    for family in (
        normalisations,
        resampling,
        parameters_that_were_attributes,
        windows,
        recurrences,
        others,
    )
    for form in family()
]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.op)
def test_forms_before_opset_13(form: Form) -> None:
    for opset in form.opsets:
        model, inputs = one_node(form.op, opset, form.inputs, form.attributes, form.outputs, form.constants)
        ours, theirs = reference(model, inputs), runtime(model, inputs)
        assert not isinstance(theirs, str), theirs
        assert not isinstance(ours, str), ours
        assert difference(ours, theirs) is None, f"opset {opset}: {ours} instead of {theirs}"
