"""The example is not installed: its plugin is named where it is wanted. Folders of the tests' own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnx.parser
import pytest

from collage_core.plugins import PLUGINS_VARIABLE, default_registry

_HERE = Path(__file__).parent
sys.path += [str(_HERE.parent), str(_HERE / "plugins"), str(_HERE / "support")]

Parse = Callable[[str], onnx.ModelProto]


@pytest.fixture(scope="session")
def parse() -> Parse:
    """`parse("(float[3] x) => (float y) { y = Neg(x) }")`: a model."""
    return lambda text: onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}')


@pytest.fixture(scope="package", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("simulator")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLAGE_HOME", str(folder))
        patch.setenv("COLLAGE_LOCK", str(folder / "lock"))
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("COLLAGE_CALIBRATION", "off")
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(autouse=True)
def _plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(PLUGINS_VARIABLE, "collage_simulator.plugin")
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()
