"""What a kernel asks of cuDNN, written down: tensors and typed steps of a graph, or one call of the older
interface. Nothing here loads the library, so that plans are tested without it.

Steps are named after the methods of `cudnn.pygraph`
(https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Pointwise.html and its neighbours).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collage_core.formats import Array

__all__ = ["Builder", "Call", "Description", "Step", "Tensor"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """What lies in memory: sizes and strides (in elements) of the dimensions as cuDNN counts them, and the
    type of the elements.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Step:
    """One operation. inputs, output: numbers of tensors. dims: sizes of its result."""

    kind: str
    inputs: tuple[int, ...]
    output: int
    dims: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Description:
    """One graph of cuDNN's.

    tensors: by number, those that lie in memory; what else steps name is computed on the way, in float32.
    inputs: by number which of the group's inputs it is. constants: the elements of others, in the order
    in which they lie in memory. numbers: float32 values that the host passes. multiplies: it sums products,
    for which cuDNN has kernels of several precisions. at_risk: a kernel of it may drop what is no number.
    """

    tensors: Mapping[int, Tensor]
    steps: tuple[Step, ...]
    inputs: Mapping[int, int]
    output: int
    constants: Mapping[int, Array]
    numbers: Mapping[int, float]
    multiplies: bool = False
    at_risk: bool = False

    @property
    def is_float32(self) -> bool:
        """Whether its result is stored so."""
        return self.tensors[self.output].dtype == "float32"


@dataclass(frozen=True, slots=True)
class Call:
    """One function of cuDNN's older interface, from `source` to `result`.

    kind: "pooling", "softmax", "reduction" or "transform". settings: what its descriptor wants beside.
    """

    kind: str
    source: Tensor
    result: Tensor
    settings: Mapping[str, Any]


_KEEP_NAN = frozenset(
    ["add", "conv_dgrad", "conv_fprop", "div", "identity", "layernorm", "matmul", "mul", "neg", "sdpa", "sub"]
)
"""Kinds of steps that are sums and products, whoever computes them."""


class Builder:
    """Numbers tensors from 1 on, and collects steps."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}
        self.constants: dict[int, Array] = {}
        self.numbers: dict[int, float] = {}
        self.steps: list[Step] = []
        self._last = 0

    def tensor(self, tensor: Tensor) -> int:
        self._last += 1
        self.tensors[self._last] = tensor
        return self._last

    def constant(self, elements: Array, tensor: Tensor) -> int:
        """elements: in the order in which they are to lie in memory."""
        number = self.tensor(tensor)
        self.constants[number] = elements
        return number

    def number(self, value: float, rank: int) -> int:
        number = self.tensor(Tensor((1,) * rank, (1,) * rank, "float32"))
        self.numbers[number] = value
        return number

    def step(self, kind: str, inputs: Sequence[int], dims: Sequence[int], **attributes: Any) -> int:
        self._last += 1
        self.steps.append(Step(kind, tuple(inputs), self._last, tuple(dims), attributes))
        return self._last

    def finish(self, output: int, tensor: Tensor, inputs: Mapping[int, int], multiplies: bool) -> Description:
        """The graph whose last result is `output`, which is stored as `tensor`."""
        self.tensors[output] = tensor
        at_risk = any(s.kind not in _KEEP_NAN for s in self.steps)
        return Description(
            self.tensors,
            tuple(self.steps),
            dict(inputs),
            output,
            self.constants,
            self.numbers,
            multiplies,
            at_risk,
        )
