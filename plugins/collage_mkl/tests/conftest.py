"""What the tests of this plugin share: a product is built from an ONNX node and run through the Backend
interface in every variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import onnx
import pytest
from collage_mkl.backend import MklBackend

from collage_core.backend import Kernel
from collage_core.formats import Array
from collage_core.target import Target
from collage_core.testing import check_group, make_group

TOLERANCES = {"float32": 1e-5, "float64": 1e-13}
TARGET = Target("cpu", 2)


class RunProduct(Protocol):
    def __call__(
        self,
        node: onnx.NodeProto,
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
    ) -> list[Kernel]: ...


@pytest.fixture(scope="session")
def backend() -> MklBackend:
    return MklBackend()


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def run_product(backend: MklBackend) -> RunProduct:
    """Checks every variant offered for the node alone, closer than core does. The kernels."""

    def run(
        node: onnx.NodeProto, inputs: Mapping[str, Array], constants: Mapping[str, Array] | None = None
    ) -> list[Kernel]:
        group = make_group([node], inputs, constants)
        return list(check_group(backend, group, inputs, TARGET, tolerances=TOLERANCES).values())

    return run
