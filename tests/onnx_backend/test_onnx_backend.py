"""`collage_core.onnx_backend`: what it places where, what a failure costs, and how it is used."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import collage_core.onnx_backend as onnx_backend
from collage_core.errors import BackendError, InputError, ModelError, UnknownBackendError
from collage_core.formats import Array
from collage_core.onnx_backend import OnnxBackend, PreparedModel
from collage_core.plugins import Registry
from collage_core.worker import WorkerCrash

sys.path.append(str(Path(__file__).parents[1] / "costs" / "plugins"))

import costs_faulty_backends

_MODEL = onnx.parser.parse_model(
    """<ir_version: 10, opset_import: ["" : 21]>
    network (float[2,3] x, float[3,2] w) => (float[2,2] top, float[2,3] kept) {
        kept = Relu(x)
        m = MatMul(kept, w)
        top = Exp(m)
    }"""
)
_X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32) / 8
_W = np.arange(6, dtype=np.float32).reshape(3, 2) / 8
_KEPT = np.maximum(_X, 0)
_TOP = np.exp(_KEPT @ _W)


@pytest.fixture
def backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, hanging_clock: None
) -> Iterator[type[OnnxBackend]]:
    """`bad` and then `good`, both of which take Relu, MatMul and Add; what is wrong with `bad` is the
    parameter.
    """
    monkeypatch.setenv(costs_faulty_backends.FAULT, getattr(request, "param", ""))
    monkeypatch.setenv("COLLAGE_CANDIDATE_LIMIT_S", "77")
    kind = OnnxBackend.for_backends("bad", "good", registry=Registry([costs_faulty_backends]))
    yield kind
    kind.close()


def _owners(model: PreparedModel) -> list[dict[str, str]]:
    """By op type, who runs it, for each specialisation."""
    return [
        {g.node(i).op_type: group.backend for group in placement.groups for i in group.nodes}
        for g, placement in model.placements
    ]


def _check(outputs: Sequence[Array]) -> None:
    np.testing.assert_allclose(outputs[0], _TOP, rtol=1e-6)
    np.testing.assert_array_equal(outputs[1], _KEPT)


def _check_often(model: PreparedModel) -> None:
    """More often than `bad` goes well "in the whole"."""
    for _ in range(60):
        _check(model.run([_X, _W]))


def test_operators_go_to_who_takes_them_first(backend: type[OnnxBackend]) -> None:
    model = backend.prepare(_MODEL, threads=1)
    assert _owners(model) == [{"Relu": "bad", "MatMul": "bad", "Exp": "reference"}]
    assert model.placements[0][1].predicted_ms is None
    _check(model.run([_X, _W]))
    _check(model.run({"w": _W, "x": _X}))
    assert model.run([_X, _W]).kept.shape == (2, 3)  # type: ignore[attr-defined]  # a named tuple
    assert model.notes == []
    reverse = backend.for_backends("good", "bad")
    assert _owners(reverse.prepare(_MODEL, threads=1))[0]["Relu"] == "good"
    reverse.close()


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("raise", "no kernel for this shape"),
        ("crash at build", "SIGSEGV"),
        ("hang at build", "no answer within"),
    ],
    indirect=["backend"],
)
def test_what_cannot_be_built_runs_elsewhere_and_is_told(backend: type[OnnxBackend], said: str) -> None:
    with pytest.warns(RuntimeWarning, match=said) as told:
        model = backend.prepare(_MODEL, threads=1)
    assert _owners(model) == [{"Relu": "good", "MatMul": "good", "Exp": "reference"}]
    assert model.notes == [str(w.message) for w in told]
    assert len(model.notes) == 2
    assert model.notes[0].startswith("bad failed at ")
    _check(model.run([_X, _W]))


@pytest.mark.parametrize("backend", ["crash in supported"], indirect=True)
def test_a_library_that_dies_when_it_is_asked_takes_nothing(backend: type[OnnxBackend]) -> None:
    model = backend.prepare(_MODEL, threads=1)
    assert set(_owners(model)[0].values()) == {"good", "reference"}
    assert all("crashed" in r.reason for r in model.refusals["bad"])
    assert {r.node for r in model.refusals["bad"]} == {n.name for n in model.placements[0][0].nodes[:2]}
    _check(model.run([_X, _W]))


@pytest.mark.parametrize("backend", ["in the whole: raise"], indirect=True)
def test_what_fails_when_it_runs_runs_elsewhere(backend: type[OnnxBackend]) -> None:
    model = backend.prepare(_MODEL, threads=1)
    with pytest.warns(RuntimeWarning, match="no more runs today"):
        _check_often(model)
    assert "good" in _owners(model)[0].values()


@pytest.mark.parametrize("backend", ["in the whole: raise", "crash at build"], indirect=True)
def test_what_fails_behind_a_view_is_found(backend: type[OnnxBackend]) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        viewed (float[2,3] x) => (float[6] y) {
            shape = Constant <value_ints: ints = [6]> ()
            flat = Reshape(x, shape)
            kept = Relu(flat)
            bent = Sin(kept)
            y = Relu(bent)
        }"""
    )
    y = np.sin(np.maximum(_X.reshape(6), 0))

    def run_often() -> PreparedModel:
        prepared = backend.prepare(model, threads=1)
        for _ in range(60):
            np.testing.assert_allclose(prepared.run(_X)[0], y, rtol=1e-6)
        return prepared

    with pytest.warns(RuntimeWarning, match=r"bad failed at '\S+' \(Relu\), which now runs elsewhere"):
        prepared = run_often()
    assert {"good", "view"} <= {group.backend for group in prepared.placements[0][1].groups}


@pytest.mark.parametrize("backend", ["in the whole: crash"], indirect=True)
def test_a_crash_costs_one_run(backend: type[OnnxBackend]) -> None:
    model, other = (backend.prepare(_MODEL, threads=1) for _ in range(2))
    with pytest.raises(WorkerCrash, match="SIGSEGV"):
        _check_often(model)
    _check(other.run([_X, _W]))
    _check(model.run([_X, _W]))


def test_a_closed_backend_starts_again(backend: type[OnnxBackend]) -> None:
    model = backend.prepare(_MODEL, threads=1)
    backend.close()
    _check(model.run([_X, _W]))


def test_open_dimensions_are_those_of_the_inputs(backend: type[OnnxBackend]) -> None:
    model = backend.prepare(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 21]> open (float[N,3] x) => (float[N,3] y) { y = Relu(x) }'
        )
    )
    assert model.placements == ()
    for rows in (2, 5, 2):
        x = np.linspace(-1, 1, rows * 3, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(model.run(x)[0], np.maximum(x, 0))
    assert len(model.placements) == 2
    with pytest.raises(ModelError, match="the model declares x=N,3"):
        model.run([np.zeros((2, 4), np.float32)])
    with pytest.raises(InputError, match="input 'x' has dtype float64"):
        model.run([np.zeros((2, 3))])
    with pytest.raises(InputError, match=r"input 'x' .*is missing"):
        model.run({})


def test_an_input_without_a_shape_has_that_of_what_is_given(backend: type[OnnxBackend]) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(_MODEL)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    prepared = backend.prepare(model, threads=1)
    _check(prepared.run([_X, _W]))
    assert prepared.run([_X[:1], _W])[0].shape == (1, 2)
    with pytest.raises(InputError, match="input 'w' has dtype int32"):
        prepared.run([_X, _W.astype(np.int32)])


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([_X], "1 inputs given; the model has 2: x, w"),
        ({"x": _X}, "input 'w'.*is missing"),
        ({"x": _X, "w": _W, "v": _W}, "no input 'v'; its inputs: x, w"),
        ([_X, _W.T], "input 'w' has shape"),
        ([_X.astype(np.float64), _W], "input 'x' has dtype float64"),
    ],
)
def test_mistakes_are_named(
    backend: type[OnnxBackend], inputs: Mapping[str, Array] | Sequence[Array], said: str
) -> None:
    model = backend.prepare(_MODEL, threads=1)
    with pytest.raises(InputError, match=said):
        model.run(inputs)


def test_it_is_used_as_any_onnx_backend() -> None:
    """As functions of the module, on whatever is installed."""
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA:1")
    with pytest.raises(BackendError, match="CUDA"):
        onnx_backend.prepare(_MODEL, "CUDA")
    _check(onnx_backend.run_model(_MODEL, [_X, _W]))
    node = helper.make_node("Clip", ["x", "", "max"], ["y"])
    (clipped,) = onnx_backend.run_node(node, [_X, np.array(0.25, np.float32)], opset_version=13)
    np.testing.assert_array_equal(clipped, np.minimum(_X, 0.25))
    OnnxBackend.close()


def test_what_is_no_model_for_it() -> None:
    texts = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> t (string[2] x) => (string[2] y) { y = Identity(x) }'
    )
    assert not OnnxBackend.is_compatible(texts)
    with pytest.raises(UnknownBackendError, match="unknown backend 'nobody'"):
        OnnxBackend.for_backends("nobody").prepare(_MODEL)
