"""Models written as text, folders of the tests' own, and plugins that only these tests have."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.plugins import PLUGINS_VARIABLE, default_registry
from collage_core.registration import clear_registered

sys.path.append(str(Path(__file__).parent / "plugins"))

Parse = Callable[..., onnx.ModelProto]
Answer = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]


@pytest.fixture(scope="package", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Costs, temporary files and a measuring lock of the tests' own."""
    folder = tmp_path_factory.mktemp("pipeline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLLAGE_HOME", str(folder))
        patch.setenv("COLLAGE_LOCK", str(folder / "lock"))
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="session")
def parse() -> Parse:
    """`parse("(float[3] x) => (float y) { [n] y = Add(x, w) }", w=(3,))`: a model.

    Keywords are the shapes of random constants, or arrays.
    """

    def make(text: str, **constants: tuple[int, ...] | Array) -> onnx.ModelProto:
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}')
        rng = np.random.default_rng(0)
        for name, given in constants.items():
            data = rng.standard_normal(given, dtype=np.float32) if isinstance(given, tuple) else given
            model.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
        return model

    return make


@pytest.fixture(scope="session")
def answer() -> Answer:
    """What ONNX's own evaluator says, by output name."""

    def run(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = ReferenceEvaluator(model).run(None, dict(inputs))
        return dict(zip((v.name for v in model.graph.output), map(np.asarray, found), strict=True))

    return run


@pytest.fixture
def graph(parse: Parse) -> Graph:
    """A chain of three operators."""
    return from_model(parse("(float[8] x) => (float y) { [a] p = Relu(x) [b] q = Neg(p) [c] y = Abs(q) }"))


@pytest.fixture
def grudges(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backends of plugins/ are installed, here and in workers."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "pipeline_grudge_backends")
    default_registry.cache_clear()
    yield
    clear_registered()
    default_registry.cache_clear()


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend of plugins/ that stores float16 is installed, here and in workers."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "pipeline_halves_backend")
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The libraries of plugins/ are installed, ten times as fast, here and in workers."""
    monkeypatch.setenv(PLUGINS_VARIABLE, "pipeline_library_backends")
    monkeypatch.setenv("PIPELINE_PACE", "0.1")
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()
