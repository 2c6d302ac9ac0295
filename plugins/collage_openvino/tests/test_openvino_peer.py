"""OpenVINO as a peer: right answers, fixed buffers, errors that name what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from collage_benchmarks.networks import NETWORKS
from collage_openvino import peer as module
from collage_openvino import plugin
from collage_openvino.peer import OpenvinoPeer, OpenvinoSession
from collage_openvino.settings import properties
from onnx import TensorProto, helper

from collage_core.errors import BackendError, InputError
from collage_core.formats import Array
from collage_core.ir import load_model
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.target import Target


@pytest.fixture(params=["tiny_conv", "tiny_encoder", "mnist"])
def network(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(network: str, tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(NETWORKS[network].build(), path)
    return path


def test_answers_are_the_references_and_copies(network: str, path: Path) -> None:
    session, graph = OpenvinoPeer().load(path, Target(threads=2)), load_model(path)
    answers: list[dict[str, Array]] = []
    for seed in (0, 1):
        inputs = NETWORKS[network].inputs(seed)
        session.set_inputs(inputs)
        session.run()
        answers.append(session.outputs())
        expected = evaluate(graph, inputs)
        assert list(answers[-1]) == list(graph.outputs)
    for seed in (0, 1):
        expected = evaluate(graph, NETWORKS[network].inputs(seed))
        for name, array in answers[seed].items():
            np.testing.assert_allclose(array, expected[name], atol=1e-4 * np.abs(expected[name]).max())


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Those of a model over 2 GiB must be."""
    path, model = tmp_path / "model.onnx", NETWORKS["tiny_conv"].build()
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    inputs = NETWORKS["tiny_conv"].inputs(0)
    session = OpenvinoPeer().load(path, Target(threads=1))
    session.set_inputs(inputs)
    session.run()
    for name, expected in evaluate(load_model(path), inputs).items():
        np.testing.assert_allclose(session.outputs()[name], expected, atol=1e-4 * np.abs(expected).max())


def test_registry_finds_it() -> None:
    peer = Registry([plugin], entry_points=False).peer("OpenVINO")
    info = peer.info()
    assert info.available
    assert info.library_version == "2026.4.1"
    assert info.settings["INFERENCE_PRECISION_HINT"] == "f32"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_library", lambda: None)
    assert OpenvinoPeer().info().reason == "openvino is not installed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": None}, r"must be \['image'\]"),
        (
            {"image": np.zeros((1, 3, 16, 15), np.float32)},
            r"float32\[1, 3, 16, 16\], not float32\[1, 3, 16, 15\]",
        ),
        ({"image": np.zeros((1, 3, 16, 16))}, "not float64"),
    ],
)
@pytest.mark.parametrize("network", ["tiny_conv"])
def test_wrong_inputs_are_named(path: Path, change: dict[str, Array | None], message: str) -> None:
    session = OpenvinoPeer().load(path, Target(threads=1))
    with pytest.raises(InputError, match=message):
        session.set_inputs({k: v for k, v in change.items() if v is not None})


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(BackendError, match=r"cannot load broken\.onnx"):
        OpenvinoPeer().load(path, Target(threads=1))


def test_open_dimensions_are_named(tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(
        BackendError, match=r"cannot load open\.onnx: OpenVINO knows no static shape of input 0"
    ):
        OpenvinoPeer().load(path, Target(threads=1))


@pytest.mark.parametrize("network", ["tiny_conv"])
def test_other_settings_are_the_librarys(path: Path) -> None:
    """It refuses a value that it does not know, and runs with one that it does."""
    session = OpenvinoSession(
        path, Target(threads=2), {"ENABLE_CPU_PINNING": "YES", "PERFORMANCE_HINT": None}
    )
    session.set_inputs(NETWORKS["tiny_conv"].inputs())
    session.run()
    with pytest.raises(BackendError, match="PERFORMANCE_HINT"):
        OpenvinoSession(path, Target(threads=2), {"PERFORMANCE_HINT": "SOMEHOW"})
    assert "PERFORMANCE_HINT" not in properties(2, {"PERFORMANCE_HINT": None})


def test_sessions_beside_each_other_have_their_own_buffers(network: str, path: Path) -> None:
    graph = load_model(path)
    first, second = OpenvinoPeer().load_beside(path, Target(threads=2), 2)
    for seed, session in enumerate((first, second)):
        session.set_inputs(NETWORKS[network].inputs(seed))
    for session in (first, second):
        session.run()
    for seed, session in enumerate((first, second)):
        expected = evaluate(graph, NETWORKS[network].inputs(seed))
        for name, array in session.outputs().items():
            np.testing.assert_allclose(array, expected[name], atol=1e-4 * np.abs(expected[name]).max())
