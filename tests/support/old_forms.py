"""Random graphs of operators in the forms that they had in older opsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from pass_cases import SHAPE, Case

__all__ = ["old_operators"]

_OLD: Sequence[tuple[int, int, str]] = (
    *(
        (7, 12, f"y = {op} <axis: int = {axis}> (x)")
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in (1, 2)
    ),
    (7, 12, "y = Softmax (x)"),
    (7, 12, "s = Unsqueeze <axes: ints = [0, 3]> (x) y = Squeeze <axes: ints = [0]> (s)"),
    *(
        (7, 12 if op == "Sum" else 17, f"y = Reduce{op} <axes: ints = [1, 2], keepdims: int = {keep}> (x)")
        for op in ("Sum", "Mean", "Max", "Min", "L1", "L2", "Prod", "SumSquare", "LogSumExp")
        for keep in (0, 1)
    ),
    (7, 17, "y = ReduceMean <keepdims: int = 0> (x)"),
    (7, 10, "y = Clip <min: float = -0.5, max: float = 0.25> (x)"),
    (7, 10, "y = Clip <max: float = 0.25> (x)"),
    (7, 10, "y = Pad <pads: ints = [0, 0, 1, 2, 0, 0, 0, 1], value: float = 1.5> (x)"),
    (7, 10, 'y = Pad <pads: ints = [0, 0, 1, 2, 0, 0, 0, 1], mode: string = "reflect"> (x)'),
    (7, 9, "y = Slice <axes: ints = [1, 3], starts: ints = [1, -3], ends: ints = [5, 9]> (x)"),
    (7, 9, "y, i = TopK <k: int = 2, axis: int = 1> (x)"),
    (7, 11, "y = Dropout <ratio: float = 0.5> (x)"),
    (7, 13, "y = BatchNormalization <epsilon: float = 1e-3> (x, scale, bias, mean, var)"),
    (7, 12, "y, z = Split <axis: int = 1, split: ints = [2, 4]> (x)"),
    (7, 17, "y, z = Split <axis: int = 1> (x)"),
    (13, 17, "y, z, u = Split <axis: int = 1> (x)"),
    (7, 8, 'y = Upsample <scales: floats = [1.0, 1.0, 2.0, 3.0], mode: string = "nearest"> (x)'),
    (7, 8, 'y = Upsample <scales: floats = [1.0, 1.0, 2.0, 3.0], mode: string = "linear"> (x)'),
    (10, 10, 'y = Resize <mode: string = "nearest"> (x, scales)'),
    (10, 10, 'y = Resize <mode: string = "linear"> (x, scales)'),
    (11, 18, 'y = Resize <mode: string = "linear"> (x, whole, scales)'),
    (7, 12, "f = Flatten (x) y = Gemm <transB: int = 1> (f, f, one)"),
    (7, 12, "y = ArgMax <axis: int = 1, keepdims: int = 0> (x)"),
    (9, 10, "y = Scatter <axis: int = 1> (x, places, x)"),
    (7, 18, "y = AveragePool <kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1]> (x)"),
    (10, 18, "y = AveragePool <kernel_shape: ints = [3, 3], strides: ints = [2, 2], ceil_mode: int = 1> (x)"),
    (7, 18, "y = LRN <size: int = 3, alpha: float = 0.5> (x)"),
    (7, 19, "y = InstanceNormalization (x, scale, bias)"),
    (9, 19, "y = MeanVarianceNormalization (x)"),
    (7, 19, "y = PRelu (x, column)"),
    (7, 19, "y = Gather <axis: int = 1> (x, places1)"),
    (7, 17, "y = LpPool <kernel_shape: ints = [2, 2]> (x)"),
    (10, 15, "y = RoiAlign <output_height: int = 2, output_width: int = 2> (x, rois, images)"),
    (16, 19, 'y = GridSample <mode: string = "bilinear", padding_mode: string = "border"> (x, grid)'),
    (16, 19, 'y = GridSample <mode: string = "nearest"> (x, grid)'),
    (9, 19, "o = ArgMax <axis: int = 1, keepdims: int = 0> (x) y = OneHot <axis: int = 1> (o, six, onoff)"),
    (7, 19, "y = SpaceToDepth <blocksize: int = 2> (x)"),
    (10, 19, "y = QuantizeLinear (x, step)"),
    (10, 19, "q = QuantizeLinear (x, step) y = DequantizeLinear (q, step)"),
    (11, 19, "y = CumSum (x, first)"),
    (11, 19, "y = Clip (x, , step)"),
    (11, 19, "p = Abs (x) y = Mod <fmod: int = 1> (p, step)"),
    (
        7,
        12,
        "f = Flatten (x) t = Unsqueeze <axes: ints = [0]> (f) y, h = RNN <hidden_size: int = 2> (t, rw, rr)",
    ),
    (7, 12, "y = Concat <axis: int = 2> (x, x)"),
    (7, 20, "y = Reshape (x, rows)"),
)

_RANDOM = np.random.default_rng(2)
_PLACES = _RANDOM.permuted(np.broadcast_to(np.arange(6)[:, None, None], SHAPE).copy(), axis=1)
_OLD_CONSTANTS: tuple[tuple[str, Any], ...] = (
    ("scales", np.array([1, 1, 2, 1.5], np.float32)),
    ("whole", np.zeros(8, np.float32)),
    ("places", _PLACES),
    ("places1", np.array([[4, 0], [1, 1]])),
    ("rois", np.array([[0, 0, 3, 3], [1.5, 0.5, 2.5, 4]], np.float32)),
    ("images", np.array([1, 0])),
    ("grid", _RANDOM.uniform(-1.2, 1.2, (2, 3, 5, 2)).astype(np.float32)),
    ("six", np.array(6)),
    ("onoff", np.array([-1, 2], np.float32)),
    ("step", np.array(0.25, np.float32)),
    ("first", np.array(1)),
    ("rw", _RANDOM.uniform(-1, 1, (1, 2, 96)).astype(np.float32)),
    ("rr", _RANDOM.uniform(-1, 1, (1, 2, 2)).astype(np.float32)),
    ("rows", np.array([0, -1, 8])),
)


@st.composite
def old_operators(draw: st.DrawFn) -> Case:
    """Operators in the forms that they had in older opsets."""
    opset = draw(st.integers(7, 19))
    *_, text = draw(st.sampled_from([o for o in _OLD if o[0] <= opset <= o[1]]))
    outputs = ("y", "z") if "z =" in text else ("y",)
    return Case(opset, (text,), outputs, _OLD_CONSTANTS)
