"""Where there is no GPU; and the device's tests once more, on a driver that needs none."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from collage_cuda import facts, support
from collage_cuda.clocks import Clocks
from collage_cuda.device import CudaDevice
from collage_cuda.support import missing

from collage_core.errors import CollageError

_HERE = Path(__file__).parent


def test_a_machine_without_one_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "_CONTROL", ("/nowhere",))
    info = CudaDevice().info()
    assert info.reason == "no NVIDIA GPU is here (there is no /nowhere)"
    assert CudaDevice().fingerprint() == {}


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "_CONTROL", ("/dev/null",))
    told = missing(["nothing_of_that_name", "nor.this"], "collage-cublas")
    assert told is not None
    assert told.endswith("nothing_of_that_name, nor.this is not installed: pip install 'collage-cublas[gpu]'")


class _Told:
    """The management library, which says these, one after the other."""

    def __init__(self, *reasons: int) -> None:
        self._reasons = iter(reasons)
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetHandleByPciBusId = lambda bus: bus
        self.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: next(self._reasons)


def test_a_clock_that_is_lowered_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, capped, settings, hot = 0x1, 0x4, 0x2, 0x40
    monkeypatch.setitem(sys.modules, "pynvml", _Told(0, idle, capped, settings, hot | idle))  # then no more
    now_s = iter([0.0, 0.2, 0.25, 0.4, 0.6, 0.8])
    monkeypatch.setattr(time, "monotonic", lambda: next(now_s))
    clocks = Clocks("0000:01:00.0")
    # While it was slowed at the last look, every run is one that was disturbed.
    assert [clocks.slowed() for _ in range(6)] == [0, 1, 2, 2, 3, 3]


def test_without_the_management_library_nothing_is_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Clocks("0000:01:00.0").slowed() == 0


def test_a_driver_that_does_not_answer_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="pip install 'collage-cuda[gpu]'")
    monkeypatch.setattr(support, "_CONTROL", ("/dev/null",))
    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path))
    monkeypatch.setattr(facts, "_ask", _no_driver)
    facts._found.cache_clear()
    try:
        assert CudaDevice().info().reason == "the NVIDIA driver does not answer: it is on holiday"
        assert missing([]) == CudaDevice().info().reason
        assert CudaDevice().fingerprint() == {}
    finally:
        facts._found.cache_clear()


def _no_driver() -> bytes:
    raise CollageError("it is on holiday")


def test_importing_loads_no_driver() -> None:
    code = "import sys, collage_cuda.device as d; d.DEVICE.info(); print('cuda.bindings' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_the_contract_holds_on_a_driver_without_a_gpu(fake_driver: dict[str, str]) -> None:
    tests = str(_HERE / "test_cuda_device.py")
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", tests],
        env=fake_driver,
        capture_output=True,
        text=True,
        cwd=_HERE.parent,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "skipped" not in told.stdout
    assert "passed" in told.stdout


def test_a_driver_that_fails_is_told(fake_driver: dict[str, str]) -> None:
    code = "from collage_cuda.device import DEVICE\nDEVICE.allocate(4096)"
    environment = {**fake_driver, "FAKE_CUDA_BYTES": "1024"}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "the GPU has no 0.0 MiB left: the CUDA driver: CUDA_ERROR_OUT_OF_MEMORY" in told.stderr
