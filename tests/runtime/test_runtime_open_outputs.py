"""Outputs whose shapes are known only after a run: delivered as large as they turned out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import collage_run
import numpy as np
import pytest
from collage_run.__main__ import main
from control_flow_answers import assert_same, onnxruntime_answers
from open_shape_models import open_inputs, open_shape_model, placed_on

from collage_core import (
    Bundle,
    Executable,
    InputError,
    Session,
    build,
    export,
    save,
)
from collage_core.formats import Array

_MODEL = open_shape_model("detector")


_placed = partial(placed_on, _MODEL)


@pytest.fixture(scope="module", params=["onnxruntime", "reference"])
def executable(request: pytest.FixtureRequest) -> Executable:
    return build(*_placed(request.param))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph, placement = _placed("onnxruntime")
    path = tmp_path_factory.mktemp("open") / "m.collage"
    save(Bundle(graph, placement), path)
    return path


def _checked(run: Callable[[dict[str, Array]], Mapping[str, Array]]) -> None:
    counts = set()
    for inputs in open_inputs(_MODEL):
        expected = onnxruntime_answers(_MODEL, inputs)
        assert_same(run(inputs), expected)
        counts.add(len(expected[0]))
    assert len(counts) > 2
    assert 0 in counts


def test_a_call_delivers_what_is_valid(executable: Executable) -> None:
    _checked(executable)
    _checked(executable.context())
    assert [str(t) for t in executable.outputs.values()] == ["float32[n,4]", "float32[n]"]


def test_what_a_call_returns_no_later_one_touches(executable: Executable) -> None:
    first, second, *_ = open_inputs(_MODEL)
    found = executable(first)
    kept = {name: array.copy() for name, array in found.items()}
    executable(second)
    assert all(np.array_equal(found[v], kept[v]) and found[v].flags.c_contiguous for v in kept)


def test_buffers_of_the_largest_shapes_are_filled(executable: Executable) -> None:
    assert [str(t) for t in executable.buffers.values()] == ["float32[10,4]", "float32[10]"]
    buffers = {v: np.full(t.static_shape, 9, t.dtype) for v, t in executable.buffers.items()}

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        executable.run(inputs, buffers)
        valid = executable.valid(buffers)
        assert all(np.shares_memory(a, buffers[v]) for v, a in valid.items() if a.size)
        assert not any(buffers[v][len(a) :].any() for v, a in valid.items())
        return valid

    _checked(run)
    assert [*executable.valid({"their": buffers["their"]})] == ["their"]


def test_another_shape_is_refused_before_anything_runs(executable: Executable) -> None:
    inputs = next(open_inputs(_MODEL))
    small = {"kept": np.empty((3, 4), np.float32)}
    with pytest.raises(InputError, match=r"'kept' has shape \[3, 4\], and may become \[10, 4\]: give it"):
        executable.run(inputs, small)
    with pytest.raises(InputError, match=r"no output 'kept.sizes'; its outputs: kept, their"):
        executable.run(inputs, {"kept.sizes": np.empty(2, np.int64)})


def test_a_session_is_as_onnx_runtimes(bundle: Path) -> None:
    with Session(bundle) as session:
        assert [(o.name, o.shape) for o in session.get_outputs()] == [("kept", ["n", 4]), ("their", ["n"])]
        _checked(lambda inputs: dict(zip(("kept", "their"), session.run(None, inputs), strict=True)))
        inputs = next(open_inputs(_MODEL))
        (alone,) = session.run(["their"], inputs)
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("their")
        session.run_with_iobinding(binding)
        (bound,) = binding.copy_outputs_to_cpu()
        np.testing.assert_array_equal(bound, alone)


def test_an_exported_bundle_cuts_as_well(tmp_path: Path) -> None:
    graph, placement = _placed("onnxruntime")
    path = tmp_path / "m.deploy"
    export(Bundle(graph, placement), path)
    executable = collage_run.load(path, allow_code=True)
    assert {v: t.shape for v, t in executable.outputs.items()} == {"kept": ("n", 4), "their": ("n",)}
    _checked(executable)


def test_the_command_saves_what_is_valid(bundle: Path, tmp_path: Path, capsys: Any) -> None:
    graph, placement = _placed("onnxruntime")
    export(Bundle(graph, placement), tmp_path / "m.deploy")
    inputs = next(open_inputs(_MODEL))
    arguments = [str(tmp_path / "m.deploy"), "--allow-code", "--output", f"kept={tmp_path / 'kept.npy'}"]
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        arguments += ["--input", f"{name}={tmp_path / name}.npy"]
    assert main(arguments) == 0, capsys.readouterr().err
    np.testing.assert_array_equal(np.load(tmp_path / "kept.npy"), onnxruntime_answers(_MODEL, inputs)[0])
