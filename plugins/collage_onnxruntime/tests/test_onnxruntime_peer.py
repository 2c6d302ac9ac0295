"""ONNX Runtime as a peer: right answers, fixed buffers, exactly the threads it is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from collage_benchmarks.networks import NETWORKS
from collage_onnxruntime import plugin, session
from collage_onnxruntime.peer import OnnxRuntimePeer, OnnxRuntimeSession
from collage_onnxruntime.session import Setting
from onnx import TensorProto, helper

from collage_core.errors import BackendError, InputError
from collage_core.ir import load_model
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.target import Target


@pytest.fixture(params=["tiny_conv", "mnist"])
def network(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(network: str, tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(NETWORKS[network].build(), path)
    return path


def test_answers_are_the_references(network: str, path: Path) -> None:
    session = OnnxRuntimePeer().load(path, Target(threads=1))
    graph = load_model(path)
    for seed in (0, 1):
        inputs = NETWORKS[network].inputs(seed)
        session.set_inputs(inputs)
        session.run()
        expected = evaluate(graph, inputs)
        assert session.outputs().keys() == expected.keys()
        for name, array in session.outputs().items():
            np.testing.assert_allclose(array, expected[name], atol=1e-4 * np.abs(expected[name]).max())


def test_outputs_are_copies(network: str, path: Path) -> None:
    session = OnnxRuntimePeer().load(path, Target(threads=1))
    session.set_inputs(NETWORKS[network].inputs(0))
    session.run()
    first = session.outputs()
    kept = {k: v.copy() for k, v in first.items()}
    session.set_inputs(NETWORKS[network].inputs(1))
    session.run()
    for name in first:
        np.testing.assert_array_equal(first[name], kept[name])
        assert not np.array_equal(session.outputs()[name], kept[name])


@pytest.mark.parametrize("threads", [1, 3])
def test_it_starts_exactly_its_threads(path: Path, threads: int) -> None:
    code = f"""
import os
from pathlib import Path
from typing import Any
import onnxruntime
from collage_core.target import Target
from collage_onnxruntime.peer import OnnxRuntimePeer
before = len(os.listdir("/proc/self/task"))
session = OnnxRuntimePeer().load(Path({str(path)!r}), Target(threads={threads}))
session.run()
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == threads - 1


def test_discovery_loads_no_library() -> None:
    code = """
import sys
from collage_onnxruntime import plugin, session
(peer,) = plugin.collage_peers()
assert peer.info().available, peer.info().reason
assert not [m for m in sys.modules if m.startswith("onnxruntime")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_registry_finds_it() -> None:
    peer = Registry([plugin], entry_points=False).peer("ONNXRuntime")
    assert isinstance(peer, OnnxRuntimePeer)
    info = peer.info()
    assert info.library_version == pytest.importorskip("onnxruntime").__version__
    assert info.settings["session.intra_op.allow_spinning"] == "1"


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
def test_wrong_inputs_are_named(path: Path, change: dict[str, np.ndarray | None], message: str) -> None:
    session = OnnxRuntimePeer().load(path, Target(threads=1))
    with pytest.raises(InputError, match=message):
        session.set_inputs({k: v for k, v in change.items() if v is not None})


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(BackendError, match=r"cannot load broken\.onnx: onnxruntime: .*"):
        OnnxRuntimePeer().load(path, Target(threads=1))


def test_open_dimensions_are_named(tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(BackendError, match="dimension 'batch' of 'x'"):
        OnnxRuntimeSession(path, Target(threads=1))


@pytest.mark.parametrize("network", ["tiny_conv"])
def test_other_settings_are_the_librarys(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    made = session._session

    def spy(model: Path, options: Any, constants: Any) -> Any:
        seen.append(options)
        return made(model, options, constants)

    monkeypatch.setattr(session, "_session", spy)
    spinning = "session.intra_op.allow_spinning"
    OnnxRuntimeSession(path, Target(threads=1))
    settings: dict[str, Setting] = {
        spinning: "0",
        "execution_mode": "ORT_PARALLEL",
        "enable_cpu_mem_arena": False,
    }
    OnnxRuntimeSession(path, Target(threads=1), settings)
    usual, other = seen
    assert (usual.get_session_config_entry(spinning), other.get_session_config_entry(spinning)) == ("1", "0")
    assert (usual.execution_mode.name, other.execution_mode.name) == ("ORT_SEQUENTIAL", "ORT_PARALLEL")
    assert (usual.enable_cpu_mem_arena, other.enable_cpu_mem_arena) == (True, False)
    OnnxRuntimeSession(path, Target(threads=1), {spinning: None})
    with pytest.raises(RuntimeError, match="does not have configuration"):
        seen[-1].get_session_config_entry(spinning)
    with pytest.raises(BackendError, match="no_such_option"):
        OnnxRuntimeSession(path, Target(threads=1), {"no_such_option": 1})
