"""A primitive described in plain values: what a planner returns and the kernel builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from collage_run.formats import Array, Layout

from collage_dnnl.enums import Alg
from collage_dnnl.tensor import FP32, Tensor

__all__ = [
    "AnyFormat",
    "Argument",
    "BinaryPostOp",
    "Constant",
    "Eltwise",
    "Input",
    "Int64",
    "Output",
    "Packed",
    "Plan",
    "Source",
    "packed_weights",
]


@dataclass(frozen=True, slots=True)
class Eltwise:
    """d = alg(s; alpha, beta)."""

    alg: Alg
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Input:
    """The kernel's input of that index."""

    index: int


@dataclass(frozen=True, slots=True)
class Output:
    """The kernel's output."""


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Data known at build time: `data` stored in the order of `layout`, multiplied by `factor`.

    is_own: whether it is the kernel's already, as it is to lie in memory. dtype: of its elements there.
    """

    data: Array
    layout: Layout
    factor: float = 1.0
    is_own: bool = False
    dtype: str = FP32

    def stored(self) -> Array:
        """The elements as they lie in memory, 1-D."""
        flat = np.ascontiguousarray(np.asarray(self.data, self.dtype).transpose(self.layout)).reshape(-1)
        return flat if self.factor == 1.0 else flat * np.float32(self.factor)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A constant as implementations want it: uint8 each, by what `kernel` calls the implementation."""

    forms: Mapping[str, Array]


Source = Input | Output | Constant | Packed


@dataclass(frozen=True, slots=True)
class Int64:
    """A parameter of 64 bits."""

    value: int


@dataclass(frozen=True, slots=True)
class AnyFormat:
    """A parameter whose format the implementation chooses (packed weights), of these elements."""

    dims: tuple[int, ...]
    dtype: str = FP32


def packed_weights(weights: Tensor, beside: Tensor) -> AnyFormat:
    """Constant weights as an implementation wants them: whole numbers as they are, floats as the data is."""
    return AnyFormat(weights.dims, beside.dtype if weights.dtype == FP32 else weights.dtype)


@dataclass(frozen=True, slots=True)
class Argument:
    """An operand of the primitive. packed: the implementation's own format is asked for and the data
    reordered into it.
    """

    arg: int
    tensor: Tensor
    source: Source
    packed: bool = False


@dataclass(frozen=True, slots=True)
class BinaryPostOp:
    """residual: whether it adds a value of the destination's shape and format, so that a sum with the
    destination can take its place.
    """

    alg: Alg
    tensor: Tensor
    source: Source
    residual: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One primitive.

    function: of dnnl_<function>_primitive_desc_create; parameters: its arguments after the engine, before the
    attributes (Tensor and AnyFormat stand for descriptors, see also `Library.primitive_descriptor`).
    may_alias: as `Kernel.may_alias`, for calls in place. masks: of the arguments that are scales and zero
    points, see `Library.attributes`.
    """

    function: str
    parameters: tuple[object, ...]
    arguments: tuple[Argument, ...]
    post_ops: tuple[Eltwise | BinaryPostOp, ...] = ()
    may_alias: Mapping[int, int] = field(default_factory=dict)
    masks: Mapping[int, int] = field(default_factory=dict)
