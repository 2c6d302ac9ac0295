"""A backend that is right or wrong as a test wants it, and a sum to ask it for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from collage_core.backend import Bound, Kernel, Variant, plain_variant
from collage_core.devices import Queue
from collage_core.errors import Refusal
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph
from collage_core.reference import ReferenceBackend
from collage_core.target import Target
from collage_core.testing import make_group, node

__all__ = [
    "COLUMNS",
    "INPUTS",
    "OTHERS",
    "SHAPE",
    "SUM",
    "TARGET",
    "Call",
    "CarelessBackend",
    "CarelessKernel",
    "Offer",
    "add_in_place",
    "array",
    "copy_input",
]

Call = Callable[[Sequence[Array], Array, Array], object]
"""What a kernel does with its inputs, its output and its workspace."""
Offer = Callable[[Variant], Sequence[Variant] | Refusal]
"""What is offered in place of the plain variant."""

TARGET = Target("cpu", 1)
"""What kernels are built for."""
SHAPE = (3, 5)
"""Of both inputs of the sum."""
COLUMNS = Format.of("float32", SHAPE, (1, 0))
"""Such an array stored column by column."""


def array(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers in float32, the same for a seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


INPUTS = {"x": array(*SHAPE), "z": array(*SHAPE, seed=1)}
"""What the sum is checked with."""
OTHERS = {name: a[::-1].copy() for name, a in INPUTS.items()}
"""The same rows in another order."""
SUM = make_group([node("Add", ["x", "z"], "y")], INPUTS)
"""y = x + z."""


class CarelessKernel(Kernel):
    """Does what it is told to, with a workspace of 64 bytes."""

    workspace_bytes = 64

    def __init__(self, call: Call, may_alias: Mapping[int, int]) -> None:
        self._call = call
        self.may_alias = may_alias

    def bind(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array, queue: Queue
    ) -> Bound:
        return lambda: self._call(inputs, outputs[0], workspace)


class CarelessBackend(ReferenceBackend):
    """Offers, declines and computes what it is told to."""

    name = "careless"

    def __init__(
        self,
        call: Call,
        may_alias: Mapping[int, int] | None = None,
        offer: Offer = lambda plain: [plain],
        declined: Refusal | None = None,
    ) -> None:
        self._kernel = CarelessKernel(call, may_alias or {})
        self._offer = offer
        self._declined = declined

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return self._offer(plain_variant(subgraph))

    def supported(self, subgraphs: Sequence[Subgraph], target: Target) -> Sequence[Refusal | None]:
        return [self._declined] * len(subgraphs)

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        return self._kernel


def add_in_place(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    """Right, in place of either input, too."""
    np.add(inputs[0], inputs[1], out=output)


def copy_input(inputs: Sequence[Array], output: Array, workspace: Array) -> None:
    """Right where the output is the first input."""
    output[...] = inputs[0]
