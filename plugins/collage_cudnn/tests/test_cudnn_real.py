"""The real cuDNN, asked for a GPU that is not here: every plan that is offered is validated and built."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(importlib.util.find_spec("cudnn") is None, reason="cuDNN is not installed"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler for the driver's stand-in"),
]

_SUPPORT = Path(__file__).parent / "support"
_OTHER_PRECISION = "cuDNN's plans multiply in another precision than float32"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """In which cuDNN finds a driver without a GPU."""
    folder = tmp_path_factory.mktemp("driver")
    for name in ("libcuda.so.1", "libcudart.so.12", "libcudart.so.13"):
        command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([*command, str(_SUPPORT / "no_driver.c")], check=True)
    found = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(_SUPPORT)}
    return {**os.environ, **found, "COLLAGE_CUDNN_DESCRIPTION": str(_SUPPORT / "h200.json")}


def _asked(environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(_SUPPORT / "cudnn_asked.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_cases(environment: dict[str, str]) -> None:
    found = _asked(environment)
    for name, said in found.items():
        for variant, reason in said["declined"]:
            # Of these there is nothing in float32 that is float32 all the way.
            assert name == "MatMul" or (name == "conv, Gelu" and "float32:plain" in variant), (name, reason)
        assert said["accepted"], name
    assert found["MatMul"]["declined"] == [[found["MatMul"]["declined"][0][0], _OTHER_PRECISION]]


def test_network(environment: dict[str, str], tmp_path: Path) -> None:
    networks = pytest.importorskip("collage_benchmarks.networks")
    onnx.save(networks.tiny_conv(), tmp_path / "model.onnx")
    (said,) = _asked(environment, str(tmp_path / "model.onnx")).values()
    assert len(said["accepted"]) > 10
    assert said["declined"] == []
