"""What the tests of this plugin share: groups are built from ONNX nodes and run through the Backend interface
in every variant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx
import pytest
from collage_dnnl.backend import DnnlBackend
from collage_dnnl.kernels.kernel import PrimitiveKernel
from collage_dnnl.kernels.planner import plan
from collage_dnnl.library import load

from collage_core.backend import Kernel, Variant, rounded_to
from collage_core.errors import DeclinedError
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import check_group, make_group

TARGET = Target("cpu", 2)
ROUNDING = Target("cpu", 2, ("bfloat16",))


@dataclass(frozen=True)
class Outcome:
    """kernels: by variant, all of them right; bfloat16 apart. declined: the variants that the backend
    declines for being slow.
    """

    subgraph: Subgraph
    kernels: Mapping[Variant, Kernel]
    rounded: Mapping[Variant, Kernel]
    declined: Sequence[Variant]


class _Undeclining(DnnlBackend):
    """Builds what the backend declines for being slow, too, and tells which that were."""

    def __init__(self) -> None:
        super().__init__()
        self.declined: list[Variant] = []

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        try:
            return super().build(subgraph, variant, target)
        except DeclinedError:
            if rounded_to(subgraph, variant):
                raise
            self.declined.append(variant)
            return PrimitiveKernel(load(), plan(subgraph, variant), target.threads)


class RunGroup(Protocol):
    def __call__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
        expected: Array | None = None,
    ) -> Outcome: ...


@pytest.fixture(scope="session")
def backend() -> DnnlBackend:
    return DnnlBackend()


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def run_group() -> RunGroup:
    """Checks every variant offered for the whole graph, against the reference (or `expected`), in bfloat16,
    too, where the processor has units for it.

    What the backend declines because oneDNN has only a slow implementation for it is built past the backend:
    its numbers must be right all the same.
    """

    def run(
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
        expected: Array | None = None,
    ) -> Outcome:
        group = make_group(nodes, inputs, constants, opset=opset)
        answers = None if expected is None else {group.outputs[0]: expected}
        undeclining = _Undeclining()
        kernels = check_group(undeclining, group, inputs, ROUNDING, expected=answers)
        rounded = {v: k for v, k in kernels.items() if rounded_to(group, v)}
        return Outcome(
            group, {v: k for v, k in kernels.items() if v not in rounded}, rounded, undeclining.declined
        )

    return run
