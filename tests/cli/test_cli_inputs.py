"""What is given to a bundle: arrays however they lie, wrong ones, and files of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from small_models import relu_model
from weighted_bundle import bundle_of, weighted_graph

from collage_core import InputError, load, save
from collage_core.formats import Array
from collage_core.ir import from_model
from collage_core.runtime import read

if TYPE_CHECKING:
    from collage_command import Collage

    from tests.cli.conftest import Mistake, Refused


def test_what_was_loaded_stays_whatever_becomes_of_the_file(bundle: Path) -> None:
    x = np.ones((2, 3), np.float32)
    whole, mapped = read(bundle, check_weights=True), read(bundle)
    executable = load(bundle)
    assert isinstance(mapped.graph.constants["w"], np.memmap)
    assert not isinstance(whole.graph.constants["w"], np.memmap)
    assert not whole.graph.constants["w"].flags.writeable
    os.truncate(bundle, 10)
    expected = 1 + np.arange(600, dtype=np.float32).reshape(100, 2, 3)
    np.testing.assert_array_equal(executable(x)["y"], expected)
    np.testing.assert_array_equal(whole.graph.constants["w"] + 1, expected)


def _arrays() -> dict[str, Array]:
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    padded = np.zeros((4, 7), np.float32)
    padded[::2, 1::2] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    return {
        "plain": x,
        "column-major": np.asfortranarray(x),
        "strided": padded[::2, 1::2],
        "backwards": x[::-1, ::-1].copy()[::-1, ::-1],
        "read-only": frozen,
        "big-endian": x.astype(">f4"),
        "repeated": np.broadcast_to(x[:1], (2, 3)),
    }


@pytest.mark.parametrize("kind", _arrays())
def test_arrays_however_they_lie(kind: str, bundle: Path, collage: Collage) -> None:
    x = _arrays()[kind]
    expected = np.maximum(x, 0) + weighted_graph().constants["w"]
    executable = load(bundle)
    np.testing.assert_array_equal(executable(x)["y"], expected)
    outputs = {"y": np.zeros((3, 2, 200), np.float32).T[::2]}  # neither dense nor row-major
    executable.run({"x": x}, outputs)
    np.testing.assert_array_equal(outputs["y"], expected)
    if kind in ("column-major", "big-endian"):  # what a file can keep
        np.save(collage.folder / "x.npy", x)
        y = collage.folder / "y.npy"
        collage.run("run", bundle, "--input", f"x={collage.folder}/x.npy", "--output", f"y={y}")
        np.testing.assert_array_equal(np.load(y), expected)


def test_wrong_inputs_from_python(bundle: Path) -> None:
    executable = load(bundle)
    x, y = np.zeros((2, 3), np.float32), np.zeros((100, 2, 3), np.float32)
    wrong: list[tuple[Any, str]] = [
        ({}, "input 'x' (float32[2,3]) is missing"),
        ([], "0 inputs given; the model has 1: x"),
        (None, "inputs are a NoneType, neither arrays by name nor in order; the model has 1: x"),
        ([x, x], "2 inputs given; the model has 1: x"),
        ({"x": x, "q": x}, "the model has no input 'q'; its inputs: x"),
        ({"x": x.astype(np.float64)}, "input 'x' has dtype float64; the model's is float32"),
        ({"x": x.astype(object)}, "input 'x' has dtype object; the model's is float32"),
        ({"x": x[0]}, "input 'x' has shape [3]; the model's is [2, 3]"),
        ({"x": x[0, 0]}, "input 'x' is a float32, not a numpy array"),
        ({"x": x.tolist()}, "input 'x' is a list, not a numpy array"),
    ]
    for inputs, said in wrong:
        with pytest.raises(InputError) as caught:
            executable.run(inputs, {"y": y})
        assert said in str(caught.value)
    frozen = y.copy()
    frozen.flags.writeable = False
    wrong_outputs: list[tuple[Any, str]] = [
        ({"q": y}, "the model has no output 'q'; its outputs: y"),
        ({"y": y[0]}, "output 'y' has shape [2, 3]"),
        ({"y": y.astype(np.float64)}, "output 'y' has dtype float64"),
        ({"y": frozen}, "output 'y' is read-only"),
    ]
    for outputs, said in wrong_outputs:
        with pytest.raises(InputError) as caught:
            executable.run({"x": x}, outputs)
        assert said in str(caught.value)
    assert not y.any(), "nothing may have run"


def test_wrong_input_files(bundle: Path, collage: Collage, refused: Refused, mistake: Mistake) -> None:
    folder = collage.folder
    np.save(folder / "long.npy", np.zeros((2, 4), np.float32))
    np.save(folder / "double.npy", np.zeros((2, 3)))
    np.save(folder / "scalar.npy", np.float32(1))
    np.save(folder / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.savez(folder / "many.npz", x=np.zeros((2, 3), np.float32))
    whole = (folder / "x.npy").read_bytes()
    (folder / "short.npy").write_bytes(whole[:-4])
    (folder / "header.npy").write_bytes(whole[:40])
    (folder / "empty.npy").touch()
    (folder / "zip.npy").write_bytes(b"PK\3\4junk")
    (folder / "unclosed.npy").write_bytes(b"\x93NUMPY\1\0\x60\0" + b"{" * 0x60)
    with (folder / "huge.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 10)}
        np.lib.format.write_array_header_1_0(file, header)
    right, output = f"x={folder}/x.npy", folder / "y.npy"
    output.write_bytes(b"what was there before")

    def run(check: Mistake, *arguments: str) -> str:
        return check("run", bundle, "--output", f"y={output}", *arguments)

    shape = "input 'x' has shape [2, 4]; the model's is [2, 3]"
    assert shape in run(refused, "--input", f"x={folder}/long.npy")
    assert "dtype float64; the model's is float32" in run(refused, "--input", f"x={folder}/double.npy")
    assert "no input 'q'; its inputs: x" in run(refused, "--input", right, "--input", f"q={folder}/x.npy")
    assert "no such file" in run(refused, "--input", f"x={folder}/none.npy")
    assert "input 'x' (float32[2,3]) is missing" in run(mistake)
    assert "given twice" in run(mistake, "--input", right, "--input", right)
    assert "has shape []" in run(mistake, "--input", f"x={folder}/scalar.npy")
    for name in ("objects", "short", "header", "empty", "zip", "unclosed", "huge"):
        assert "not a .npy file (" in run(mistake, "--input", f"x={folder}/{name}.npy")
    assert "not a .npy file (" in run(mistake, "--input", f"x={folder}/many.npz")
    assert output.read_bytes() == b"what was there before"
    assert not list(folder.rglob("*.partial"))


def test_scalars_and_unusual_names_of_files(collage: Collage) -> None:
    model = relu_model()
    for value in (model.graph.input[0], model.graph.output[0]):
        del value.type.tensor_type.shape.dim[:]
    save(bundle_of(from_model(model)), collage.folder / "m.collage")
    np.save(collage.folder / "x.npy", np.float32(-1))
    y = collage.folder / "y"  # numpy would make y.npy of it
    collage.run(
        "run", collage.folder / "m.collage", "--input", f"x={collage.folder}/x.npy", "--output", f"y={y}"
    )
    assert np.load(y) == 0
    assert np.load(y).shape == ()
