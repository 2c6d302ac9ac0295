"""Kernels built, chosen, bound and called, on the host's memory, by a cuDNN that is NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import collage_cuda.constants
import collage_cuda.device
import numpy as np
import onnx
import pytest
from collage_cuda import choices
from collage_cudnn import building
from collage_cudnn.backend import CudnnBackend
from collage_cudnn.choosing import built_plans
from collage_cudnn.stream_handles import StreamHandles
from cudnn_checks import ROUNDING, TARGET, in_memory
from cudnn_on_host import HostCall, HostDevice, HostGraph, HostLibrary

from collage_core.backend import Kernel
from collage_core.errors import DeclinedError, Refusal
from collage_core.formats import Array, Format
from collage_core.ir import Subgraph, TensorType
from collage_core.reference import evaluate
from collage_core.testing import make_group, node

_RNG = np.random.default_rng(0)


def _random(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    device = HostDevice()
    monkeypatch.setattr(collage_cuda.device, "DEVICE", device)
    monkeypatch.setattr(collage_cuda.constants, "upload", device.keep)
    return device


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, device: HostDevice, tmp_path: Path) -> Iterator[HostLibrary]:
    library = HostLibrary()
    monkeypatch.setattr(building, "load", lambda: library)
    monkeypatch.setattr(choices, "facts", dict)
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path))
    choices._files.cache_clear()
    yield library
    choices._files.cache_clear()


def _call(kernel: Kernel, device: HostDevice, given: Sequence[Array], formats: Sequence[Format]) -> Array:
    """The output's memory. The last of the formats is its."""
    queue = device.queue()
    memory = [
        device.keep(a.transpose(f.layout).astype(f.dtype)) for a, f in zip(given, formats, strict=False)
    ]
    shape = given[0].shape
    arrays = [m.array(0, a.shape, f) for m, a, f in zip(memory, given, formats, strict=False)]
    out = device.allocate(formats[-1].size_bytes(shape))
    workspace = device.allocate(kernel.workspace_bytes).array(0, (kernel.workspace_bytes,), _BYTES)
    call = kernel.bind(arrays, [out.array(0, shape, formats[-1])], workspace, queue)
    assert not call()
    return out.data.view(np.dtype(formats[-1].dtype)).astype(np.float64)


_BYTES = Format("uint8", (0,), "cuda")

_CONV: list[onnx.NodeProto] = [
    node("Conv", ["x", "w", "b"], "c", pads=[1, 1, 1, 1]),
    node("Add", ["c", "r"], "s"),
    node("Relu", ["s"], "y"),
]


def test_convolution(backend: CudnnBackend, device: HostDevice, library: HostLibrary) -> None:
    inputs = {"x": _random(2, 6, 7, 5), "r": _random(2, 6, 7, 5)}
    group = make_group(_CONV, inputs, {"w": _random(6, 6, 3, 3), "b": _random(6)})
    offered = backend.variants(group, ROUNDING)
    assert not isinstance(offered, Refusal)
    expected = evaluate(group.graph, inputs, keep=["y"])["y"]
    for variant in offered:
        kernel = backend.build(group, variant, ROUNDING)
        assert library.graphs[-1].chosen == 2  # the first cannot be built, the second loses NaN
        assert kernel.workspace_bytes == 128
        formats = [*variant.inputs, *variant.outputs]
        found = _call(kernel, device, [inputs[v] for v in group.inputs], formats)
        allowed = 1e-4 if formats[-1].dtype == "float32" else 0.5
        np.testing.assert_allclose(found, in_memory(expected, formats[-1]), rtol=0, atol=allowed)


def test_numbers_of_the_host(backend: CudnnBackend, device: HostDevice, library: HostLibrary) -> None:
    x = _random(3, 8)
    nodes = [node("LayerNormalization", ["x", "s"], "y", epsilon=1e-3)]
    group = make_group(nodes, {"x": x}, {"s": _random(8)})
    offered = backend.variants(group, TARGET)
    assert not isinstance(offered, Refusal)
    kernel = backend.build(group, offered[0], TARGET)
    found = _call(kernel, device, [x], [*offered[0].inputs, *offered[0].outputs])
    expected = evaluate(group.graph, {"x": x}, keep=["y"])["y"]
    np.testing.assert_allclose(found.reshape(3, 8), expected, atol=1e-5)


def test_call_of_the_older_interface(backend: CudnnBackend, device: HostDevice, library: HostLibrary) -> None:
    x = _random(2, 3, 4)
    source, destination = (Format.of("float32", x.shape, o, "cuda") for o in ((0, 1, 2), (0, 2, 1)))
    kernel = backend.build_conversion(TensorType("float32", x.shape), source, destination, TARGET)
    found = _call(kernel, device, [x], [source, destination])
    np.testing.assert_array_equal(found, in_memory(x, destination))


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("bfloat16", "float32"), ("float16", "bfloat16")])
def test_type_and_layout(
    backend: CudnnBackend, device: HostDevice, library: HostLibrary, dtypes: tuple[str, str]
) -> None:
    x = np.round(_random(2, 3, 4, 5) * 8)
    layouts = ((0, 1, 2, 3), (0, 2, 3, 1))
    source, destination = (Format.of(d, x.shape, o, "cuda") for d, o in zip(dtypes, layouts, strict=True))
    kernel = backend.build_conversion(TensorType("float32", x.shape), source, destination, TARGET)
    assert kernel.workspace_bytes >= x.size * 2
    found = _call(kernel, device, [x], [source, destination])
    np.testing.assert_array_equal(found, in_memory(x, destination))


def test_the_plan_that_was_taken_is_taken_again(
    backend: CudnnBackend, device: HostDevice, library: HostLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"x": _random(2, 6, 7, 5), "r": _random(2, 6, 7, 5)}
    kernels = []
    for seed in (1, 2):  # of layers that differ in their weights alone
        weights = np.random.default_rng(seed).standard_normal((6, 6, 3, 3)).astype(np.float32)
        group = make_group(_CONV, inputs, {"w": weights, "b": _random(6)})
        offered = backend.variants(group, TARGET)
        assert not isinstance(offered, Refusal)
        kernels.append(backend.build(group, offered[0], TARGET))
        monkeypatch.setattr(building, "in_order", None)  # nothing is timed any more
        formats = [*offered[0].inputs, *offered[0].outputs]
        found = _call(kernels[-1], device, [inputs[v] for v in group.inputs], formats)
        expected = in_memory(evaluate(group.graph, inputs, keep=["y"])["y"], formats[-1])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert [graph.chosen for graph in library.graphs][-1] == 2


def _built(backend: CudnnBackend, group: Subgraph) -> Kernel:
    """The kernel of the first variant that is offered."""
    offered = backend.variants(group, TARGET)
    assert not isinstance(offered, Refusal)
    return backend.build(group, offered[0], TARGET)


def test_a_plan_that_is_gone_is_chosen_anew(
    backend: CudnnBackend, device: HostDevice, library: HostLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group([node("Exp", ["x"], "y")], {"x": _random(3, 8)})
    _built(backend, group)
    monkeypatch.setattr(HostGraph, "plan_name", lambda self, index: f"new {index}")
    _built(backend, group)
    monkeypatch.setattr(building, "in_order", None)
    _built(backend, group)


def test_no_plan_keeps_nan(
    backend: CudnnBackend, device: HostDevice, library: HostLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostGraph, "count", 2)
    group = make_group([node("Relu", ["x"], "y")], {"x": _random(3, 8)})
    with pytest.raises(DeclinedError, match="what is none"):
        _built(backend, group)


def test_no_plan_is_built(
    backend: CudnnBackend, device: HostDevice, library: HostLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostGraph, "count", 1)
    group = make_group([node("Exp", ["x"], "y")], {"x": _random(3, 8)})
    with pytest.raises(DeclinedError, match="builds none"):
        _built(backend, group)


def test_call_that_the_library_refuses(
    backend: CudnnBackend, device: HostDevice, library: HostLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group([node("Softmax", ["x"], "y")], {"x": _random(3, 8)})
    monkeypatch.setattr(HostCall, "runner", lambda *arguments: lambda: 3000)
    with pytest.raises(DeclinedError, match="softmax returns 3000"):
        _built(backend, group)
    monkeypatch.setattr(HostCall, "runner", lambda *arguments: lambda: 0)
    with pytest.raises(DeclinedError, match="makes a number"):
        _built(backend, group)


class _Counted:
    """Plans, every other one of which can be built, and one of which wants more memory than there is."""

    count = 40

    def __init__(self) -> None:
        self.asked: list[int] = []

    def build(self, index: int) -> bool:
        self.asked.append(index)
        return index % 2 == 1

    def workspace_bytes(self, index: int) -> int:
        return 1 << 40 if index == 3 else 0


def test_so_many_plans_are_built() -> None:
    plans = _Counted()
    assert built_plans(plans, 3, clock=lambda: 0.0) == [1, 5, 7]  # type: ignore[arg-type]


def test_no_more_plans_than_there_is_time_for() -> None:
    clock = iter([0.0, 5.0, 5.0, 5.0, 5.0])
    plans = _Counted()
    assert built_plans(plans, 3, clock=lambda: next(clock)) == [1]  # type: ignore[arg-type]


def test_handles() -> None:
    made: list[list[int]] = []

    def make() -> list[int]:
        made.append([])
        return made[-1]

    handles = StreamHandles(make, lambda handle, stream: handle.append(stream))
    first, second = handles.of(1), handles.of(2)
    assert handles.of(1) is first
    assert made == [[1], [2]]
    del second
    third = handles.of(3)
    assert third.handle is made[1]
    assert made == [[1], [2, 3]]
