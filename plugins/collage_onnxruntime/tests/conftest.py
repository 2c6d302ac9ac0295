"""What the tests of this plugin share: groups run through the Backend interface in every variant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from collage_onnxruntime.backend import OnnxRuntimeBackend

from collage_core.backend import Variant
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import check_group

sys.path.append(str(Path(__file__).parent / "support"))

TARGET = Target("cpu", 2)

RunGroup = Callable[[Subgraph, Mapping[str, Array]], Sequence[Variant]]


@pytest.fixture(scope="session")
def backend() -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend()


@pytest.fixture(scope="session")
def target() -> Target:
    return TARGET


@pytest.fixture(scope="session")
def run(backend: OnnxRuntimeBackend) -> RunGroup:
    """Checks every variant offered. The variants."""

    def run_group(subgraph: Subgraph, inputs: Mapping[str, Array]) -> Sequence[Variant]:
        kernels = check_group(backend, subgraph, inputs, TARGET, repeatable=False)
        assert not any(kernel.workspace_bytes for kernel in kernels.values())
        return list(kernels)

    return run_group
