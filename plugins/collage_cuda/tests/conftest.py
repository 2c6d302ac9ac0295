"""What the tests of this plugin share: a driver that needs no GPU, and the device wherever there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import collage_cuda.support
import pytest
from collage_cuda.device import DEVICE, CudaDevice

_FAKE = "COLLAGE_TEST_FAKE_DRIVER"
if os.environ.get(_FAKE):  # in the process that `fake_driver` is for
    collage_cuda.support._CONTROL = ("/dev/null",)


@pytest.fixture
def device() -> CudaDevice:
    """A real GPU, or the fake driver's where this process was started with it."""
    if reason := DEVICE.info().reason:
        pytest.skip(reason)
    return DEVICE


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds it in the place of NVIDIA's."""
    pytest.importorskip("cuda.bindings", reason="pip install 'collage-cuda[gpu]'")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is here")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parent / "support" / "fake_driver.c"
    library = folder / "libcuda.so.1"
    flags = ("-shared", "-fPIC", "-w", "-O1", "-Wl,-soname,libcuda.so.1")
    subprocess.run([compiler, *flags, str(source), "-o", str(library), "-ldl"], check=True)
    home = {"COLLAGE_HOME": str(folder / "home")}
    return {**os.environ, **home, "LD_LIBRARY_PATH": str(folder), _FAKE: "1"}
