"""What a kernel on the GPU is handed: buffers as on the CPU, and floats of 16 bits."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from collage_core.formats import Format
from collage_tvm.output import Output
from collage_tvm.parameters import Parameters, argument_of, buffer_of, rounded
from collage_tvm.tensor import ARITHMETIC, Index, Scope, Tensor, make

__all__ = ["FROM_HALF", "TO_HALF", "CudaParameters"]

FROM_HALF, TO_HALF = "collage_from_half", "collage_to_half"
"""Of the bits of a float16, to a float32 and from one: instructions that TVM does not write."""
_BITS = "uint16"


class CudaParameters(Parameters):
    """The flat buffers of a kernel."""

    def input(self, name: str, shape: tuple[int, ...], format: Format) -> Tensor:
        if format.dtype != "float16":
            return super().input(name, shape, format)
        buffer = buffer_of(f"in{len(self.inputs)}", shape, _BITS)
        self.inputs.append(buffer)
        bits = argument_of(buffer, shape, _BITS, format.layout)

        def element(s: Scope, i: Index) -> Any:
            return tirx.call_pure_extern("float32", FROM_HALF, s.value(bits, i))

        return make(shape, "float32", [bits], element, weight=ARITHMETIC)

    def output(self, tensor: Tensor, format: Format) -> Output:
        stored = {"bfloat16": rounded, "float16": _halved}.get(format.dtype, lambda t: t)(tensor)
        buffer = buffer_of(f"out{len(self.outputs)}", tensor.shape, stored.dtype)
        self.outputs.append(buffer)
        return Output(stored, buffer, format.layout, streams=False)


def _halved(tensor: Tensor) -> Tensor:
    """The bits of a float32 value in float16."""

    def element(s: Scope, i: Index) -> Any:
        return tirx.call_pure_extern(_BITS, TO_HALF, s.value(tensor, i))

    digits = {"factors": tensor.factors, "cuts": tensor.cuts}
    return make(tensor.shape, _BITS, [tensor], element, weight=ARITHMETIC, **digits)
