"""Built kernels that another process finds on disk."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage_core import Group, Placement, Target, build, plain_variant
from collage_core.backend import Backend, BackendInfo, BackendKind, Bound, Kernel, StoredKernel, Variant
from collage_core.devices import Queue
from collage_core.errors import BackendUnavailableError, Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.plugins import Registry
from collage_core.runtime import kept
from collage_core.runtime.kept import KernelStore
from collage_core.testing import make_group, node

_X = np.linspace(-1, 1, 100, dtype=np.float32)
_W = np.linspace(1, 2, 100, dtype=np.float32)
_MANY = np.arange(50_000, dtype=np.float32)
_KEY = "a" * 64


class _Packed(Kernel):
    def __init__(self, factor: Array, code: bytes) -> None:
        self.factor, self.code = factor, code

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any, queue: Queue) -> Bound:
        def call() -> None:
            np.multiply(inputs[0], self.factor, out=outputs[0])

        return call

    def stored(self) -> StoredKernel:
        return StoredKernel("packed", {"rank": 1}, self.code, (np.arange(3, dtype=np.int8), self.factor))


class _Packer(Backend):
    name = "packer"
    stores_kernels = True
    built = 0
    version = "1"

    def info(self) -> BackendInfo:
        return BackendInfo(self.name, BackendKind.OPERATOR, self.version, None)

    def variants(self, subgraph: Subgraph, target: Target) -> Sequence[Variant] | Refusal:
        return [plain_variant(subgraph)]

    def build(self, subgraph: Subgraph, variant: Variant, target: Target) -> Kernel:
        self.built += 1
        return _Packed(subgraph.graph.constants["w"].copy(), b"code")


@pytest.fixture(autouse=True)
def restorer(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(stored: StoredKernel) -> Kernel:
        assert stored.kind == "packed"
        assert stored.facts == {"rank": 1}
        assert stored.arrays[0].tolist() == [0, 1, 2]
        return _Packed(stored.arrays[1], stored.code)

    monkeypatch.setattr(kept, "restore", restore)


def _run(backend: _Packer, store: KernelStore | None, w: Array = _W, threads: int = 1) -> Array:
    group = make_group([node("Mul", ["x", "w"], ["o"])], {"x": _X}, {"w": w})
    registry = Registry(entry_points=False)
    registry.backends[backend.name] = backend
    nodes = tuple(n.id for n in group.nodes)
    groups = (Group(backend.name, nodes, plain_variant(group), 1.0, 0.1),)
    placement = Placement(groups, (), Target("cpu", threads))
    executable = build(group.graph, placement, registry, kept=store)
    return executable({"x": _X})["o"]


def test_what_was_built_is_restored(tmp_path: Path) -> None:
    backend = _Packer()
    first = _run(backend, KernelStore(tmp_path))
    again = _run(backend, KernelStore(tmp_path))
    assert backend.built == 1
    np.testing.assert_array_equal(first, _X * _W)
    np.testing.assert_array_equal(again, first)
    _run(backend, None)
    assert backend.built == 2


@pytest.mark.parametrize("factor", [_W, _MANY, _W[:0], np.float32(3), _W.astype("bfloat16"), _W > 1.5])
def test_constants_come_back_as_they_were(factor: Any, tmp_path: Path) -> None:
    store = KernelStore(tmp_path)
    store.keep(_KEY, _Packed(np.asarray(factor), b"x" * 13))
    kernel = store.restored(_KEY)
    assert isinstance(kernel, _Packed)
    assert kernel.code == b"x" * 13
    assert kernel.factor.ctypes.data % 64 == 0
    assert not kernel.factor.flags.writeable
    assert (kernel.factor.dtype, kernel.factor.shape) == (np.asarray(factor).dtype, np.shape(factor))
    np.testing.assert_array_equal(kernel.factor, factor)


def test_large_constants_are_mapped_as_long_as_they_are_used(tmp_path: Path) -> None:
    """No descriptor is kept for that, of which a process may have few; and the file may go meanwhile."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    store = KernelStore(tmp_path)
    store.keep(_KEY, _Packed(_MANY, b""))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    kernels = [store.restored(_KEY) for _ in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert mapped() == 20
    next(tmp_path.glob("*.kernel")).unlink()
    assert isinstance(kernels[7], _Packed)
    part = kernels[7].factor[1:]
    kernels.clear()
    gc.collect()
    assert mapped() == 1
    np.testing.assert_array_equal(part, _MANY[1:])
    del part
    gc.collect()
    assert mapped() == 0


def test_what_cannot_be_kept_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = _Packer()
    monkeypatch.setattr(_Packed, "stored", lambda self: StoredKernel("packed", {"rank": object()}))
    for _ in range(2):
        np.testing.assert_array_equal(_run(backend, KernelStore(tmp_path)), _X * _W)
    assert backend.built == 2
    assert not list(tmp_path.iterdir())


def test_a_store_keeps_no_more_than_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST_AT_ONCE_BYTES", 3 * _W.nbytes)
    store, backend = KernelStore(tmp_path), _Packer()
    for i in range(5):
        _run(backend, store, _W + i)
    assert len(list(tmp_path.glob("*.kernel"))) == 2


@pytest.mark.parametrize("what", ["constant", "threads", "version", "processor"])
def test_another_kernel_is_built(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = _Packer()
    _run(backend, KernelStore(tmp_path))
    w = _W.copy()
    if what == "constant":
        w[50] = np.nextafter(w[50], np.float32(9))
    elif what == "version":
        backend.version = "2"
    elif what == "processor":
        monkeypatch.setattr(kept, "runs_code_of", lambda: "another one")
    result = _run(backend, KernelStore(tmp_path), w, threads=2 if what == "threads" else 1)
    assert backend.built == 2
    np.testing.assert_array_equal(result, _X * w)


@pytest.mark.parametrize("damage", [*range(0, 160, 7), "short", "shorter", "empty", "huge", "renamed"])
def test_a_damaged_kernel_is_built_anew(damage: int | str, tmp_path: Path) -> None:
    backend = _Packer()
    expected = _run(backend, KernelStore(tmp_path))
    (path,) = tmp_path.glob("*.kernel")
    data = bytearray(path.read_bytes())
    if isinstance(damage, int):
        data[damage] ^= 1
    elif damage == "renamed":
        _run(backend, KernelStore(tmp_path), 2 * _W)
        (other,) = set(tmp_path.glob("*.kernel")) - {path}
        data = bytearray(other.read_bytes())
    else:
        data = data[: {"short": -1, "shorter": 60, "empty": 0, "huge": None}[damage]]
    path.write_bytes(data)
    if damage == "huge":
        os.truncate(path, 1 << 40)  # nobody reads that to the end
    built = backend.built
    np.testing.assert_array_equal(_run(backend, KernelStore(tmp_path)), expected)
    assert backend.built == built + 1
    np.testing.assert_array_equal(_run(backend, KernelStore(tmp_path)), expected)
    assert backend.built == built + 1, "what was built anew is kept"


def test_constants_of_what_is_never_restored_are_not_looked_at(tmp_path: Path) -> None:
    class Plain(_Packer):
        stores_kernels = False

    group = make_group([node("Mul", ["x", "w"], ["o"])], {"x": _X}, {"w": _W})
    store = KernelStore(tmp_path)
    assert store.key_of(Plain(), group, plain_variant(group), Target("cpu", 1)) is None
    assert not store._digests


def test_devices_that_are_not_here_are_no_matter_to_others_kernels(tmp_path: Path) -> None:
    """A bundle names those that might have taken part. Kernels on them are not kept."""
    group = make_group([node("Mul", ["x", "w"], ["o"])], {"x": _X}, {"w": _W})
    store, target, variant = KernelStore(tmp_path), Target("cpu", 1, (), ("elsewhere",)), plain_variant(group)
    assert store.key_of(_Packer(), group, variant, target) is not None
    inputs, outputs = (tuple(f.on("elsewhere") for f in fs) for fs in (variant.inputs, variant.outputs))
    there = Variant(inputs, outputs)
    assert store.key_of(_Packer(), group, there, target) is None


@pytest.mark.parametrize("error", [RuntimeError("another library"), BackendUnavailableError("nobody can")])
def test_what_cannot_be_restored_is_built(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restore(stored: StoredKernel) -> Kernel:
        raise error

    backend = _Packer()
    _run(backend, KernelStore(tmp_path))
    monkeypatch.setattr(kept, "restore", restore)
    np.testing.assert_array_equal(_run(backend, KernelStore(tmp_path)), _X * _W)
    assert backend.built == 2


def test_without_a_folder_kernels_are_built(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    backend = _Packer()
    for _ in range(2):
        np.testing.assert_array_equal(_run(backend, KernelStore(tmp_path / "file" / "folder")), _X * _W)
    assert backend.built == 2
