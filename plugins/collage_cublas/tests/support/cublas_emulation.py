"""The plugin on an emulated device and library, in the place of the real ones."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest
from collage_cublas import library
from collage_cublas.backend import CublasBackend
from collage_cublas.kernel import ProductKernel
from cublas_emulated_device import EmulatedDevice
from cublas_emulated_library import ComputeType, EmulatedBindings, Operation

from collage_core.backend import Variant
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import check_group, make_group

__all__ = ["ROUNDING", "TARGET", "Emulation", "emulate"]

TARGET = Target("cpu", 2, accelerators=("cuda",))
ROUNDING = Target("cpu", 2, ("bfloat16", "float16"), ("cuda",))
_TOLERANCES = {"float32": 1e-6, "float64": 1e-13}


@dataclass(frozen=True)
class Emulation:
    """The device and the bindings that the plugin finds, and what it has kept on disk."""

    device: EmulatedDevice
    bindings: EmulatedBindings
    kept: dict[str, bytes]

    def check(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        target: Target = TARGET,
    ) -> dict[Variant, ProductKernel]:
        """Checks every variant offered for the nodes as one group, closer than core does. The kernels."""
        return self.check_group(make_group(nodes, inputs, constants), inputs, target)

    def check_group(
        self,
        group: Subgraph,
        inputs: Mapping[str, Array],
        target: Target = TARGET,
        expected: Mapping[str, Array] | None = None,
    ) -> dict[Variant, ProductKernel]:
        """The same of a group."""
        kernels = check_group(
            CublasBackend(), group, inputs, target, tolerances=_TOLERANCES, expected=expected
        )
        return {v: k for v, k in kernels.items() if isinstance(k, ProductKernel)}


def emulate(monkeypatch: pytest.MonkeyPatch) -> Emulation:
    """Until the test ends."""
    device = EmulatedDevice("cuda")
    bindings = EmulatedBindings(device.queue_of)
    modules: dict[str, Any] = {name: ModuleType(name) for name in ("nvmath", "nvmath.bindings")}
    modules["nvmath.bindings"].cublasLt = bindings
    modules["nvmath.bindings"].cublas = SimpleNamespace(ComputeType=ComputeType, Operation=Operation)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.setattr("collage_cuda.device.DEVICE", device)
    monkeypatch.setattr("collage_cuda.constants.upload", device.constant)
    kept: dict[str, bytes] = {}
    choices = SimpleNamespace(known=kept.get, keep=kept.__setitem__, forget=kept.pop)
    monkeypatch.setattr("collage_cuda.choices.Choices", lambda about: choices)
    registry = SimpleNamespace(device=lambda name: {"cuda": device}[name])
    monkeypatch.setattr("collage_core.testing.default_registry", lambda: registry)
    return Emulation(device, bindings, kept)
