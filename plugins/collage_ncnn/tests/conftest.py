"""What the tests of this plugin share: a convolution is built from ONNX nodes and run through the Backend
interface in every variant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx
import pytest
from collage_ncnn.backend import NcnnBackend

from collage_core.backend import Kernel, Variant
from collage_core.formats import Array
from collage_core.target import Target
from collage_core.testing import check_group, make_group

TARGET = Target("cpu", 2)


class RunConvolution(Protocol):
    def __call__(
        self, nodes: Sequence[onnx.NodeProto], x: Array, constants: Mapping[str, Array]
    ) -> dict[Variant, Kernel]: ...


@pytest.fixture(scope="session")
def backend() -> NcnnBackend:
    return NcnnBackend()


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def run_convolution(backend: NcnnBackend) -> RunConvolution:
    """Checks every variant offered for the nodes as one group. The kernels."""

    def run(
        nodes: Sequence[onnx.NodeProto], x: Array, constants: Mapping[str, Array]
    ) -> dict[Variant, Kernel]:
        group = make_group(nodes, {"x": x}, constants)
        return check_group(backend, group, {"x": x}, TARGET, other_inputs={"x": -x})

    return run
