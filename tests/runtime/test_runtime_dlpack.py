"""Arrays of devices for libraries that take DLPack. NumPy stands for these; it reads the host's memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
from collage_run.devices import dlpack

from collage_core.devices import DeviceArray
from collage_core.formats import Format, plain

_SHAPE = (2, 3, 5)


@pytest.mark.parametrize("layout", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int8", "uint8", "int64", "bool", "complex64"]
)
def test_elements_are_lent_where_they_are(dtype: str, layout: tuple[int, ...]) -> None:
    memory = (np.arange(30) % 2 if dtype == "bool" else np.arange(30)).astype(dtype)
    array = DeviceArray.of(memory.ctypes.data, _SHAPE, Format(dtype, layout, "lazy"), dlpack.CPU_DEVICE)
    lent = np.from_dlpack(array)
    assert (lent.dtype.name, lent.shape, lent.strides) == (dtype, _SHAPE, array.strides)
    assert np.array_equal(lent.transpose(layout).reshape(-1), memory)
    memory[:] = 0
    assert not lent.any(), "it is no copy"


def test_scalars_and_what_is_empty() -> None:
    memory = np.full(1, 7.0, np.float32)
    scalar = DeviceArray.of(memory.ctypes.data, (), plain("float32", (), "lazy"), dlpack.CPU_DEVICE)
    assert np.from_dlpack(scalar) == 7.0
    empty = DeviceArray.of(memory.ctypes.data, (0, 3), plain("float32", (0, 3), "lazy"), dlpack.CPU_DEVICE)
    assert np.from_dlpack(empty).shape == (0, 3)


class _Owner:
    pass


def test_who_owns_the_elements_lives_as_long_as_they_are_held() -> None:
    memory, owner = np.zeros(4, np.float32), _Owner()
    gone = weakref.ref(owner)
    format = plain("float32", (4,), "lazy")
    array = DeviceArray.of(memory.ctypes.data, (4,), format, dlpack.CPU_DEVICE, owner)
    held = np.from_dlpack(array)
    del array, owner
    gc.collect()
    assert gone() is not None
    del held
    gc.collect()
    assert gone() is None


def test_a_capsule_that_nobody_takes_is_let_go_of() -> None:
    owner = _Owner()
    gone = weakref.ref(owner)
    capsule = dlpack.capsule(dlpack.CPU_DEVICE, 4096, (4,), (4,), "float32", owner)
    del capsule, owner
    gc.collect()
    assert gone() is None
    assert not dlpack._lent


def test_what_cannot_be_lent_is_refused() -> None:
    array = DeviceArray.of(4096, _SHAPE, plain("float32", _SHAPE, "lazy"))
    with pytest.raises(BufferError, match="lazy is no device that DLPack knows"):
        np.from_dlpack(array)
    known = DeviceArray.of(4096, _SHAPE, plain("float32", _SHAPE, "lazy"), (2, 0))
    with pytest.raises(BufferError, match="are lent where they are"):
        known.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="are lent where they are"):
        known.__dlpack__(dl_device=(1, 0))
    for dtype in ("float8_e4m3fn", "int4", "string"):
        with pytest.raises(BufferError, match=f"DLPack has no {dtype}"):
            dlpack.capsule((2, 0), 4096, (1,), (1,), dtype, None)
    with pytest.raises(BufferError, match="not of whole elements"):
        dlpack.capsule((2, 0), 4096, (2,), (6,), "float32", None)


def test_what_is_held_when_the_interpreter_ends_is_let_go_of() -> None:
    """Consumers call back when modules are gone: what lies in a cycle, or in a module's attribute."""
    program = """
import sys
import numpy as np
from collage_run.devices import dlpack

memory = np.zeros(4, np.float32)

class Lender:
    def __dlpack__(self, **_):
        return dlpack.capsule(dlpack.CPU_DEVICE, memory.ctypes.data, (4,), (4,), "float32", memory)

    def __dlpack_device__(self):
        return dlpack.CPU_DEVICE

cycle = [np.from_dlpack(Lender())]
cycle.append(cycle)
np.kept = np.from_dlpack(Lender())
sys.kept = Lender().__dlpack__()
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
