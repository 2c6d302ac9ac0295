"""What the tests of this plugin share: a group is planned in every variant that is offered, NumPy does what
is asked of cuDNN, and the answer is compared with the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import pytest

from collage_core.backend import Variant
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.testing import make_group

sys.path.append(str(Path(__file__).parent / "support"))

from collage_cudnn.backend import CudnnBackend
from collage_cudnn.description import Call, Description
from collage_cudnn.planning.planner import plan
from cudnn_checks import ROUNDING, RunGroup, check


@pytest.fixture(scope="session")
def backend() -> CudnnBackend:
    return CudnnBackend()


@pytest.fixture(scope="session")
def run_group(backend: CudnnBackend) -> RunGroup:
    """What is asked in each variant; all of it is right."""

    def run(
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        opset: int = 20,
    ) -> dict[Variant, tuple[Call | Description, ...]]:
        group = make_group(nodes, inputs, constants, opset=opset)
        offered = backend.variants(group, ROUNDING)
        assert not isinstance(offered, Refusal), str(offered)
        planned = {variant: plan(group, variant) for variant in offered}
        for variant, ways in planned.items():
            for asked in ways:
                check(group, variant, asked, inputs)
        return planned

    return run
