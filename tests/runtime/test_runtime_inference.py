"""A bundle in the shape of ONNX Runtime's `InferenceSession`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage_core import Bundle, Context, Executable, InputError, Placement, Session, save
from collage_core.backend import plain_variant
from collage_core.errors import BackendError, CollageError
from collage_core.ir import Subgraph, from_model
from collage_core.placement import Group
from collage_core.target import Target

_TYPES = {
    "x": (TensorProto.FLOAT, [2, 3]),
    "d": (TensorProto.DOUBLE, [4]),
    "i": (TensorProto.INT64, []),
    "b": (TensorProto.BOOL, [0, 2]),
}


def _bundle(folder: Path) -> Path:
    """Each input is an output as well, through one operator."""
    values = [helper.make_tensor_value_info(n, t, shape) for n, (t, shape) in _TYPES.items()]
    ops = {"x": "Neg", "d": "Exp", "i": "Neg", "b": "Not"}
    nodes = [helper.make_node(op, [n], [f"{n}_out"], name=n) for n, op in ops.items()]
    outputs = [helper.make_tensor_value_info(f"{n}_out", t, shape) for n, (t, shape) in _TYPES.items()]
    graph = helper.make_graph(nodes, "g", values, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    read = from_model(model)
    groups = [Group("reference", (n.id,), plain_variant(Subgraph(read, (n.id,)))) for n in read.nodes]
    path = folder / "m.collage"
    save(Bundle(read, Placement(tuple(groups), (), Target("cpu", 1))), path)
    return path


_FEED: dict[str, Any] = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "d": np.linspace(0, 1, 4),
    "i": np.array(7),
    "b": np.zeros((0, 2), bool),
}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(_bundle(tmp_path)) as opened:
        yield opened


def test_what_it_says_of_itself(session: Session) -> None:
    told = [(a.name, a.shape, a.type) for a in session.get_inputs()]
    assert told == [
        ("x", [2, 3], "tensor(float)"),
        ("d", [4], "tensor(double)"),
        ("i", [], "tensor(int64)"),
        ("b", [0, 2], "tensor(bool)"),
    ]
    assert [a.name for a in session.get_outputs()] == ["x_out", "d_out", "i_out", "b_out"]
    assert session.get_providers() == ["reference"]
    assert "x" in repr(session.get_inputs()[0])


def test_run(session: Session) -> None:
    x, d, i, b = session.run(None, _FEED)
    np.testing.assert_array_equal(x, -_FEED["x"])
    np.testing.assert_allclose(d, np.exp(_FEED["d"]))
    assert i == -7
    assert b.shape == (0, 2)
    assert [a.shape for a in session.run([], _FEED)] == [(2, 3), (4,), (), (0, 2)]
    again = session.run(["i_out", "x_out", "i_out"], _FEED)
    assert [a.shape for a in again] == [(), (2, 3), ()]
    session.run(None, {**_FEED, "x": _FEED["x"] + 1})
    np.testing.assert_array_equal(x, -_FEED["x"])


@pytest.mark.parametrize(
    ("names", "feed", "said"),
    [
        (["z"], {}, "the model has no output 'z'; its outputs: x_out, d_out, i_out, b_out"),
        (None, {"x": _FEED["x"].astype(np.float64)}, "'x'"),
        (None, {"x": np.zeros((3, 2), np.float32)}, "'x'"),
        (None, {"z": np.zeros(1)}, "the model has no input 'z'"),
        (None, {"x": None}, "'x'"),
        ("x_out", {}, "output_names is 'x_out', and not a list of names"),
    ],
)
def test_mistakes(session: Session, names: list[str] | None, feed: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        session.run(names, {**_FEED, **feed})
    assert session.run(["i_out"], _FEED)[0] == -7, "it goes on"


def test_inputs_without_names(session: Session) -> None:
    with pytest.raises(InputError, match="input_feed is a list, and not arrays by name"):
        session.run(None, [_FEED["x"]])  # type: ignore[arg-type]  # the mistake
    with pytest.raises(InputError, match="'x' is float32"):
        session.io_binding().bind_input("x", "cpu", 0, np.float32, 6, 0)  # type: ignore[arg-type]


def test_an_input_is_missing(session: Session) -> None:
    with pytest.raises(InputError, match="'d'"):
        session.run(None, {"x": _FEED["x"]})


def test_several_threads(session: Session) -> None:
    together = threading.Barrier(4)

    def one(k: int) -> bool:
        together.wait()
        for n in range(50):
            x = np.full((2, 3), 100 * k + n, np.float32)
            if not (session.run(["x_out"], {**_FEED, "x": x})[0] == -x).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(one, range(4)))


def test_bound_memory(session: Session) -> None:
    binding = session.io_binding()
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_input("d", "cpu", 0, np.float64, [4], _FEED["d"].ctypes.data)
    binding.bind_cpu_input("i", _FEED["i"])
    binding.bind_input("b", "cpu", 0, bool, (0, 2), 0)
    binding.bind_output("x_out", "cpu", 0, np.float32, (2, 3), y.ctypes.data)
    binding.bind_output("d_out")
    binding.bind_output("b_out", buffer_ptr=0)
    for value in (1.0, 2.0):
        x[...] = value
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y, -x)
    copied, d, b = binding.copy_outputs_to_cpu()
    assert copied is not y
    np.testing.assert_allclose(d, np.exp(_FEED["d"]))
    assert b.shape == (0, 2)
    binding.bind_output("d_out", "cpu", 0, np.float64, [4])
    binding.outputs["d_out"][...] = 7.0
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], np.full(4, 7.0))
    binding.clear_binding_outputs()
    session.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    with pytest.raises(InputError):
        session.run_with_iobinding(binding)


def test_memory_that_does_not_fit(session: Session) -> None:
    binding = session.io_binding()
    with pytest.raises(InputError, match="the model has no input 'y'; its inputs: x, d, i, b"):
        binding.bind_cpu_input("y", _FEED["x"])
    with pytest.raises(InputError, match=r"'x' is float32\[2,3\], and was bound as float32\[3, 2\]"):
        binding.bind_input("x", "cpu", 0, np.float32, [3, 2], _FEED["x"].ctypes.data)
    with pytest.raises(InputError, match="was bound as float64"):
        binding.bind_output("x_out", "cpu", 0, np.float64, [2, 3], _FEED["x"].ctypes.data)
    with pytest.raises(InputError, match=r"'x_out' is float32\[2,3\], and was bound as float16\[99\]"):
        binding.bind_output("x_out", "cpu", 0, np.float16, [99])
    with pytest.raises(InputError, match="'x' is bound at address 0"):
        binding.bind_input("x", "cpu", 0, np.float32, [2, 3], 0)
    with pytest.raises(CollageError, match="'x_out' is bound on 'nonsense'"):
        binding.bind_output("x_out", "nonsense")
    with pytest.raises(CollageError, match="'x' is bound on 'cuda'; inputs and outputs lie on 'cpu'"):
        binding.bind_input("x", "cuda", 0, np.float32, [2, 3], _FEED["x"].ctypes.data)


def test_options_of_onnx_runtime(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path)
    with Session(bundle, SimpleNamespace(intra_op_num_threads=0), providers=["CPUExecutionProvider"]) as one:
        assert one.run(["i_out"], _FEED)[0] == -7
    with (
        pytest.warns(UserWarning, match="measured on another number of threads: 1, not 2"),
        Session(bundle, SimpleNamespace(intra_op_num_threads=2)) as two,
    ):
        assert two.run(["i_out"], _FEED)[0] == -7


def test_closed(session: Session) -> None:
    session.close()
    with pytest.raises(CollageError, match="closed"):
        session.run(None, _FEED)


def test_closed_while_it_runs(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Context.run

    def slow(*arguments: Any) -> None:
        run(*arguments)
        session.close()

    monkeypatch.setattr(Context, "run", slow)
    assert session.run(["i_out"], _FEED)[0] == -7, "what runs ends well"
    with pytest.raises(CollageError, match="this session is closed"):
        session.run(None, _FEED)


def test_the_first_request_finds_its_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Executable] = []
    context = Executable.context

    def counted(executable: Executable) -> Context:
        made.append(executable)
        return context(executable)

    monkeypatch.setattr(Executable, "context", counted)
    with Session(_bundle(tmp_path)) as session:
        for _ in range(3):
            session.run(None, _FEED)
    assert len(made) == 1


def test_a_model_is_no_bundle(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x0a")
    with pytest.raises((BackendError, CollageError), match=r"m\.onnx"):
        Session(path)
