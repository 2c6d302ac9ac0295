"""How compiled functions are launched: over which addresses, in which order. The driver is a stand-in."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from collage_core.devices import DeviceArray, Queue
from collage_core.formats import plain

pytest.importorskip("collage_cuda")
pytest.importorskip("cuda.bindings.driver")

from collage_tvm.cuda import kernel as module  # what it imports may be missing

pytestmark = pytest.mark.ci
_FAILED = 700


class _Driver:
    """What is loaded, uploaded and launched."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.status = 0

    def module(self, cubin: bytes) -> Any:
        return self

    def function(self, entry: str) -> str:
        return entry

    def upload(self, constant: Any) -> Any:
        return DeviceArray.of(int(constant[0]), (1,), plain("float32", (1,), "cuda"))

    def launcher(self, function: str, shape: Any, address: int, stream: int) -> Any:
        def call() -> int:
            pointers = (ctypes.c_uint64 * 4).from_address(address)
            values = [ctypes.c_uint64.from_address(p).value for p in pointers]
            self.launched.append((function, shape, values, stream))
            return self.status

        return call

    def current(self) -> None:
        pass


class _Stream(Queue):
    handle = 77

    def synchronize(self) -> None:
        raise AssertionError("a bound call must not wait")

    def mark(self) -> Any:
        raise AssertionError("a bound call must not be timed")

    def elapsed_ms(self, first: Any, last: Any) -> float:
        raise AssertionError("a bound call must not be timed")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    made = _Driver()
    monkeypatch.setattr(module, "Module", made.module)
    monkeypatch.setattr(module, "launcher", made.launcher)
    monkeypatch.setattr(module, "upload", made.upload)
    monkeypatch.setattr(module, "DEVICE", made)
    return made


def _array(address: int) -> DeviceArray:
    return DeviceArray.of(address, (4,), plain("float32", (4,), "cuda"))


def _bound(entries: int) -> Any:
    shapes = [(k + 1, 1, 128) for k in range(entries)]
    names = [f"f{k}" for k in range(entries)]
    made = module.CudaKernel(b"", names, shapes, [np.full(1, 300.0, np.float32)])
    return made.bind([_array(100), _array(200)], [_array(400)], None, _Stream())


def test_inputs_come_first_then_constants_then_outputs(driver: _Driver) -> None:
    call = _bound(1)
    assert not call()
    assert driver.launched == [("f0", (1, 1, 128), [100, 200, 300, 400], 77)]


def test_functions_are_launched_in_their_order_until_one_fails(driver: _Driver) -> None:
    call = _bound(3)
    assert not call()
    assert [function for function, *_ in driver.launched] == ["f0", "f1", "f2"]
    driver.launched.clear()
    driver.status = _FAILED
    assert call() == _FAILED
    assert [function for function, *_ in driver.launched] == ["f0"]
