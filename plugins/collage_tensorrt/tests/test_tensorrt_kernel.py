"""What a kernel asks of an engine, and which engine is taken."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from collage_tensorrt import variants as offers
from collage_tensorrt.building import opened
from collage_tensorrt.kernel import EngineKernel
from collage_tensorrt.library import Tensor
from tensorrt_recorded import Kept, RecordedEngine, RecordedGpu, RecordedQueue

from collage_core.backend import Variant
from collage_core.devices import DeviceArray
from collage_core.errors import BackendError, DeclinedError, Refusal
from collage_core.formats import plain
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import make_group, node

_X = np.ones((2, 3), np.float32)
_GIVEN = {"x": _X, "z": _X}


def _group() -> Subgraph:
    return make_group([node("Add", ["x", "z"], "s"), node("Relu", ["s"], "y")], _GIVEN)


def _array(address: int) -> DeviceArray:
    return DeviceArray.of(address, (2, 3), plain("float32", (2, 3)))


def test_each_binding_has_a_context_on_its_own_addresses() -> None:
    group, engine = _group(), RecordedEngine(1000)
    gpu = RecordedGpu()
    kernel = EngineKernel(engine, gpu, group)
    assert kernel.workspace_bytes == 1256
    calls = []
    for k, stream in enumerate((7, 8)):
        inputs = [_array(4096 + 8192 * k), _array(5120 + 8192 * k)]
        workspace = DeviceArray.of(64 + 4096 * k, (1256,), plain("uint8", (1256,)))
        calls.append(kernel.bind(inputs, [_array(6144 + 8192 * k)], workspace, RecordedQueue(stream)))
    assert not any(call() for call in (*calls, calls[0]))
    first, second = engine.contexts
    assert first.placed == dict(zip((*group.inputs, "y"), (4096, 5120, 6144), strict=True))
    assert second.placed == {name: at + 8192 for name, at in first.placed.items()}
    assert (first.streams, second.streams) == ([7, 7], [8])
    # Scratch memory begins at the first multiple of 256 in what core has given.
    assert (first.memory_address, second.memory_address) == (256, 4096 + 256)
    assert gpu.currents == 2
    assert not gpu.released
    del calls
    gc.collect()
    assert sorted(c.memory_address for c in gpu.released) == [256, 4096 + 256]


def test_an_engine_without_scratch_memory_asks_for_none() -> None:
    engine = RecordedEngine(0)
    kernel = EngineKernel(engine, RecordedGpu(), _group())
    assert kernel.workspace_bytes == 0
    kernel.bind([_array(4096), _array(5120)], [_array(6144)], None, RecordedQueue(1))
    assert engine.contexts[0].memory_address == 0


class _Network:
    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self._ends = [*inputs], [*outputs]

    def inputs(self) -> list[Tensor]:
        return self._ends[0]

    def outputs(self) -> list[Tensor]:
        return self._ends[1]


class _Library:
    """Builds engines called after how many it has built; opens those that it is told to."""

    def __init__(self, refused: Sequence[bytes] = (), dtype: str = "float32") -> None:
        self.refused, self.dtype = refused, dtype
        self.built: list[bytes] = []
        self.declines = False

    def parsed(self, model: bytes) -> _Network:
        if self.declines:
            raise BackendError("no such operator")
        ends = [Tensor(v, self.dtype, (2, 3)) for v in ("x", "z", "y")]
        return _Network(ends[:2], ends[2:])

    def engine(self, parsed: _Network, capability: str | None) -> bytes:
        assert capability is None
        self.built.append(b"engine %d" % len(self.built))
        return self.built[-1]

    def opened(self, engine: bytes) -> bytes:
        if engine in self.refused:
            raise BackendError("of another version")
        return engine


def _library(refused: Sequence[bytes] = (), dtype: str = "float32") -> Any:
    return _Library(refused, dtype)


def _variant(group: Subgraph, target: Target) -> Variant:
    offered = offers.variants(group, target)
    assert not isinstance(offered, Refusal), str(offered)
    return offered[0]


def test_an_engine_is_built_once(target: Target) -> None:
    group, library, kept = _group(), _library(), Kept()
    variant = _variant(group, target)
    found: list[object] = [opened(library, group, variant, kept) for _ in range(2)]
    assert found == [b"engine 0"] * 2
    assert library.built == [b"engine 0"]


def test_an_engine_of_another_version_is_built_anew(target: Target) -> None:
    group, kept = _group(), Kept()
    variant = _variant(group, target)
    opened(_library(), group, variant, kept)
    (key,) = kept
    kept[key] = b"old"
    library = _library(refused=[b"old"])
    found: object = opened(library, group, variant, kept)
    assert found == b"engine 0"
    assert kept == {key: b"engine 0"}


def test_what_the_parser_declines_is_declined(target: Target) -> None:
    group, library, kept = _group(), _library(), Kept()
    variant = _variant(group, target)
    library.declines = True
    with pytest.raises(DeclinedError, match="no such operator"):
        opened(library, group, variant, kept)
    library = _library(dtype="float16")
    with pytest.raises(DeclinedError, match=r"takes input 'x' for float16\[2, 3\], which is float32\[2, 3\]"):
        opened(library, group, variant, kept)
    assert not kept


def test_other_weights_are_another_engine(target: Target) -> None:
    library, kept = _library(), Kept()
    for number in (1.0, 2.0):
        weights = _X * np.float32(number)
        nodes = [node("Add", ["x", "z"], "s"), node("Mul", ["s", "w"], "y")]
        group = make_group(nodes, _GIVEN, {"w": weights})
        opened(library, group, _variant(group, target), kept)
    assert len(library.built) == 2
