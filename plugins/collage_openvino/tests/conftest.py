"""Models of a few nodes, run through the backend in every variant and compared with the reference
evaluator."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx
import pytest
from collage_openvino.backend import OpenvinoBackend

from collage_core.backend import Variant, rounded_to
from collage_core.formats import Array
from collage_core.target import Target
from collage_core.testing import check_group, make_group

sys.path.append(str(Path(__file__).parent / "support"))


class CheckGroup(Protocol):
    def __call__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = ("o",),
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
        threads: int = 2,
    ) -> list[Variant]: ...


@pytest.fixture(scope="session")
def check() -> CheckGroup:
    """Checks every variant, also with other numbers in its buffers. In bfloat16, too, where the processor has
    units for it; but not where whole numbers come out, which rounding may decide. The variants that round
    nothing.
    """

    def run(
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = ("o",),
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
        threads: int = 2,
    ) -> list[Variant]:
        group = make_group(nodes, inputs, constants, outputs, opset=opset)
        others = {v: np.asarray(np.roll(a, 1)) for v, a in inputs.items()}
        types = [group.graph.type_of(v).dtype for v in group.outputs]
        target = Target("cpu", threads, ("bfloat16",) if set(types) == {"float32"} else ())
        kernels = check_group(OpenvinoBackend(), group, inputs, target, other_inputs=others, repeatable=False)
        return [v for v in kernels if not rounded_to(group, v)]

    return run
