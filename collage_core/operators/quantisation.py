"""QuantizeLinear to whole numbers: what is beyond their range is saturated, infinities too."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference.ops._quant_utils import reshape_input
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_25

from collage_core.operators.windows import Tensor

__all__ = ["QuantizeLinear"]


class QuantizeLinear(QuantizeLinear_25):
    def _run(  # type: ignore[override]  # as every operator's: its attributes by name
        self,
        x: Tensor,
        y_scale: Tensor,
        zero_point: Tensor | None = None,
        axis: int = 1,
        saturate: int = 1,
        block_size: int = 0,
        output_dtype: int | None = None,
        precision: int | None = None,
    ) -> tuple[Tensor]:
        stated = helper.tensor_dtype_to_np_dtype(output_dtype or TensorProto.UINT8)
        dtype: np.dtype[Any] = stated if zero_point is None else zero_point.dtype
        if "int" not in dtype.name:
            results: tuple[Tensor] = super()._run(
                x,
                y_scale,
                *(() if zero_point is None else (zero_point,)),
                axis=axis,
                saturate=bool(saturate),
                block_size=block_size,
                output_dtype=output_dtype,
                precision=precision,
            )
            return results
        scale = reshape_input(y_scale, x.shape, axis, block_size)
        if precision:
            wide = helper.tensor_dtype_to_np_dtype(precision)
            x, scale = x.astype(wide), scale.astype(wide)
        # In float64 every number of the range is exact, and infinities stay until they saturate.
        result = np.rint(x / scale).astype(np.float64)
        if zero_point is not None:
            result += reshape_input(zero_point, x.shape, axis, block_size).astype(np.float64)
        numbers = np.nan_to_num(result, nan=0.0, posinf=np.inf, neginf=-np.inf)
        return (np.clip(numbers, *_range(dtype)).astype(dtype),)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Of integers of 2 bits or more, which NumPy itself may not know."""
    name = dtype.name.removeprefix("u")
    bits, signed = int(name.removeprefix("int")), name == dtype.name
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
