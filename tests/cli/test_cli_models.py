"""Models that are no models, or not good ones: one line that names what is wrong, from the command and from
Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from bad_models import BAD_MODELS
from collage_command import Collage
from onnx import TensorProto, helper, numpy_helper
from small_models import relu_model, tensor, vector

from collage_core import CollageError, ModelError, Target, load_model, normalise, optimize, require_static
from collage_core.formats import Array
from collage_core.ir import from_model
from collage_core.reference import evaluate

if TYPE_CHECKING:
    from tests.cli.conftest import Mistake, Refused

_FUZZED = Path(__file__).parents[1] / "support" / "fuzzed_files.py"


@pytest.mark.parametrize("what", BAD_MODELS)
def test_bad_models(what: str, tmp_path: Path, mistake: Mistake) -> None:
    make, said = BAD_MODELS[what]
    path = tmp_path / "bad.onnx"
    path.write_bytes(make().SerializeToString())
    line = mistake("optimize", path, "--backends", "reference", "--threads", "1", "--rounds", "4")
    assert said in line
    assert "collage_core" not in line, "a person is told of the model, not of the program"
    with pytest.raises(CollageError) as caught:
        optimize(path, backends=["reference"], target=Target("cpu", 1))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.ci
def test_as_processes(collage: Collage, refused: Refused) -> None:
    bundle = collage.folder / "m.collage"
    bundle.write_bytes(b"PK\x03\x04 what was there before")
    for what in (
        "operator that does not exist",
        "open dimension",
        "weight too short",
        "channels that do not fit",
    ):
        make, said = BAD_MODELS[what]
        path = collage.folder / "bad.onnx"
        path.write_bytes(make().SerializeToString())
        assert said in refused("optimize", path, "-o", bundle, "--backends", "reference")
    assert bundle.read_bytes() == b"PK\x03\x04 what was there before"


@pytest.mark.ci
def test_no_model_at_all(collage: Collage, refused: Refused) -> None:
    whole = relu_model().SerializeToString()
    path = collage.folder / "m.onnx"
    assert refused("optimize", path) == f"collage: {path}: no such file"
    for content in (b"", b"PK\3\4", b"\x89PNG\r\n", b"junk" * 100, whole[:-20], whole[:10]):
        path.write_bytes(content)
        said = refused("optimize", path)
        assert str(path) in said or "does not say which opset" in said
        with pytest.raises(ModelError):
            require_static(load_model(path))
    assert refused("optimize", collage.folder) == f"collage: {collage.folder}: no regular file"


def _external(rows: int = 2, **entries: object) -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(rows, 3))
    weight.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        weight.external_data.add(key=key, value=str(value))
    node = helper.make_node("Add", ["x", "w"], ["y"], name="sum")
    graph = helper.make_graph([node], "g", [vector("x")], [vector("y", None)], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_external_data(collage: Collage, refused: Refused, mistake: Mistake) -> None:
    path = collage.folder / "m.onnx"
    (collage.folder / "w.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())

    def store(**entries: object) -> Path:
        path.write_bytes(_external(**entries).SerializeToString())  # type: ignore[arg-type]
        return path

    assert "constant 'w': external data file" in refused("optimize", store(location="v.bin"))
    assert "v.bin is missing" in mistake("optimize", store(location="v.bin"))
    assert "w.bin is too short" in mistake("optimize", store(location="w.bin", offset=4))
    assert "w.bin is too short" in mistake("optimize", store(location="w.bin", length=20))
    assert "outside the model's folder" in mistake("optimize", store(location="../w.bin"))
    assert "outside the model's folder" in mistake("optimize", store(location="/etc/passwd"))
    assert "constant 'w'" in mistake("optimize", store(location="w.bin", offset="many"))
    assert "constant 'w'" in mistake("optimize", store(location="w.bin", offset=-8))
    assert "constant 'w'" in mistake("optimize", store())
    assert "is missing" in mistake("optimize", store(location="."))
    x = np.ones((2, 3), np.float32)
    found = evaluate(load_model(store(location="w.bin", offset=0, length=24)), {"x": x})["y"]
    np.testing.assert_array_equal(found, x + np.arange(6, dtype=np.float32).reshape(2, 3))
    with pytest.raises(ModelError, match="was not read from a file"):
        optimize(_external(location="w.bin"), backends=["reference"])


def test_external_data_stays_in_the_models_folder(tmp_path: Path) -> None:
    """Whatever a location is made of. A link inside the folder is followed to what is inside as well."""
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    numbers = np.arange(6, dtype=np.float32)
    for file in (tmp_path / "secret", folder / "data" / "w.bin", tmp_path / "model.bin"):
        file.write_bytes(numbers.tobytes())
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    (folder / "in").symlink_to("data/w.bin")
    (folder / "round").symlink_to("round")
    os.mkfifo(folder / "pipe")
    path = folder / "m.onnx"

    def read(location: str) -> Array:
        path.write_bytes(_external(location=location).SerializeToString())
        return load_model(path).constants["w"]

    for inside in ("data/w.bin", "in", "data/../in", str(folder / "in"), "../model/in"):
        np.testing.assert_array_equal(read(inside).ravel(), numbers)
    for outside in ("../secret", str(tmp_path / "secret"), "out", "up/secret", "../model.bin", "/dev/zero"):
        with pytest.raises(ModelError, match=r"constant 'w': .* lies outside the model's folder"):
            read(outside)
    for nothing in ("round", "pipe", "data", "w.bin\0", "x" * 5000):
        with pytest.raises(ModelError, match=r"constant 'w': .* is missing"):
            read(nothing)


def test_external_data_that_shrinks_or_lies_badly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, weights, path = np.arange(6, dtype=np.float32), tmp_path / "w.bin", tmp_path / "m.onnx"
    weights.write_bytes(b"\0" + numbers.tobytes())
    path.write_bytes(_external(location="w.bin", offset=1).SerializeToString())
    graph = load_model(path)
    os.truncate(weights, 0)
    assert graph.constants["w"].flags.aligned
    np.testing.assert_array_equal(graph.constants["w"].ravel(), numbers)

    weights.write_bytes(b"\0" + numbers.tobytes())
    facts = os.fstat

    def before_it_shrinks(descriptor: int) -> os.stat_result:
        found = facts(descriptor)
        if os.path.samestat(found, weights.stat()):
            os.truncate(weights, 9)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("collage_core.ir.onnx_tensors.os.fstat", before_it_shrinks)
        with pytest.raises(ModelError, match="it has only 9 of 25 bytes"):
            load_model(path)

    weights.write_bytes(b"\0" + numbers.tobytes())
    model = _external(location="w.bin", offset=1)
    for k in range(9):
        again = model.graph.initializer.add()
        again.CopyFrom(model.graph.initializer[0])
        again.name = f"w{k}"
    path.write_bytes(model.SerializeToString())
    shared = load_model(path).constants
    assert len(shared) == 10
    assert all(np.shares_memory(shared["w"], array) for array in shared.values())
    model.graph.initializer[1].dims[:] = [1]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="lie one over the other"):
        load_model(path)


def _run(collage: Collage, bundle: Path, x: Array) -> Array:
    """The bundle's output y for its input x, by the command."""
    x_file, y_file = collage.folder / "x.npy", collage.folder / "y.npy"
    np.save(x_file, x)
    collage.run("run", bundle, "--input", f"x={x_file}", "--output", f"y={y_file}")
    y: Array = np.load(y_file)
    return y


@pytest.mark.ci
def test_element_types_of_less_than_a_byte(collage: Collage) -> None:
    """Two of them to the byte, inside, in external data, in a bundle, and to a worker."""
    values = np.random.default_rng(0).integers(-8, 8, (65, 64))
    packed = numpy_helper.from_array(values.astype(ml_dtypes.int4), "w")
    nodes = [
        helper.make_node("Cast", ["w"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [vector("x", (65, 64))], [vector("y", None)], [packed])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path, bundle = collage.folder / "m.onnx", collage.folder / "m.collage"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (collage.folder / "w.bin").stat().st_size == 65 * 32
    options = ("--backends", "reference", "--skip-pass", "fold-constants", "-o", bundle)
    collage.run("optimize", path, *options)
    np.save(collage.folder / "x.npy", np.ones((65, 64), np.float32))
    collage.run(
        "run", bundle, "--input", f"x={collage.folder}/x.npy", "--output", f"y={collage.folder}/y.npy"
    )
    np.testing.assert_array_equal(np.load(collage.folder / "y.npy"), values.astype(np.float32))


@pytest.mark.ci
def test_inputs_of_types_that_numpy_has_not(collage: Collage) -> None:
    node = helper.make_node("Relu", ["x\0"], ["y"])  # the name is no text that numpy could keep either
    graph = helper.make_graph([node], "g", [vector("x\0", (2, 3), TensorProto.BFLOAT16)], [vector("y", None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path, bundle = collage.folder / "m.onnx", collage.folder / "m.collage"
    onnx.save(model, path)
    collage.run("optimize", path, "--backends", "reference", "-o", bundle)
    report = collage.json("explain", bundle)
    assert report["groups"][0]["formats"]["inputs"] == ["bfloat16:plain"]


@pytest.mark.ci
def test_bfloat16_from_and_to_files(collage: Collage) -> None:
    model = relu_model()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    path, bundle = collage.folder / "m.onnx", collage.folder / "m.collage"
    onnx.save(model, path)
    collage.run("optimize", path, "--backends", "reference", "-o", bundle)
    x = np.array([[-1, 2, 3], [4, -5, 6]], ml_dtypes.bfloat16)
    np.save(collage.folder / "x.npy", x)
    collage.run(
        "run", bundle, "--input", f"x={collage.folder}/x.npy", "--output", f"y={collage.folder}/y.npy"
    )
    found = np.load(collage.folder / "y.npy").view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype(np.float32), np.maximum(x.astype(np.float32), 0))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("x=2,4", "the model declares x=batch,3"),
        ("x=2", "the model declares x=batch,3"),
        ("x=2,3,1", "the model declares x=batch,3"),
        ("x=-2,3", "--shape x=-2,3: dimensions cannot be negative"),
        ("x=two,3", "dimensions are whole numbers"),
        ("x=2.5,3", "dimensions are whole numbers"),
        ("x=2,", "dimensions are whole numbers"),
        ("x=", "expected NAME=VALUE"),
        ("x", "expected NAME=VALUE"),
        ("q=2,3", "no such input; its inputs: x, z, free"),
        ("x=10000000000,3", "more than this machine's memory"),
        ("x=99999999999999999999,3", "dimensions are less than 2**63"),
    ],
)
def test_wrong_shapes(option: str, said: str, open_model: Path, mistake: Mistake) -> None:
    rest = ("--shape", "free=2,3")
    assert said in mistake("optimize", open_model, "--shape", option, *rest)


@pytest.fixture
def open_model(tmp_path: Path) -> Path:
    """Three inputs: a dimension `batch` that two of them have, and one without a shape."""
    nodes = [helper.make_node("Add", ["x", "free"], ["s"]), helper.make_node("Relu", ["z"], ["t"])]
    inputs = [vector("x", ("batch", 3)), vector("z", ("batch",)), vector("free", None)]
    graph = helper.make_graph(nodes, "g", inputs, [vector("s", None), vector("t", None)])
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_shapes_that_contradict(open_model: Path, mistake: Mistake, refused: Refused) -> None:
    both = ("--shape", "x=2,3", "--shape", "z=4")
    assert "dimension 'batch' is both 2 and 4" in refused("optimize", open_model, *both)
    twice = ("--shape", "x=2,3", "--shape", "x=2,3")
    assert "profiles 1 and 2 have the same shapes: x=2,3" in mistake("optimize", open_model, *twice)
    assert "shape of input 'free'; give it with --shape free=" in mistake(
        "optimize", open_model, "--shape", "x=2,3"
    )
    assert "open dimension 'batch'" in mistake("optimize", open_model)


def test_shapes_are_those_that_were_given(open_model: Path) -> None:
    graph = load_model(open_model, {"x": (0, 3), "free": (0, 3)})
    require_static(graph)
    assert {v: graph.shape_of(v) for v in (*graph.inputs, *graph.outputs)} == {
        "x": (0, 3),
        "z": (0,),
        "free": (0, 3),
        "s": (0, 3),
        "t": (0,),
    }


@pytest.mark.ci
def test_a_dimension_of_size_zero(collage: Collage) -> None:
    model, bundle = collage.folder / "m.onnx", collage.folder / "m.collage"
    spoilt = relu_model()
    spoilt.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    spoilt.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 0
    onnx.save(spoilt, model)
    collage.run("optimize", model, "--threads", "1", "--rounds", "4", "-o", bundle)
    np.save(collage.folder / "x.npy", np.zeros((0, 3), np.float32))
    collage.run(
        "run", bundle, "--input", f"x={collage.folder}/x.npy", "--output", f"y={collage.folder}/y.npy"
    )
    assert np.load(collage.folder / "y.npy").shape == (0, 3)


def test_a_function_of_another_opset_is_inlined() -> None:
    model = relu_model()
    model.graph.node[0].op_type, model.graph.node[0].domain = "Twice", "com.acme"
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    model.functions.append(
        helper.make_function("com.acme", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    )
    x = np.ones((2, 3), np.float32)
    graph = normalise(from_model(model))
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], 2 * x)


_OLD = """<ir_version: 8, opset_import: ["" : 11, "me" : 1]>
g (float[1,3,8,8] x, int64[2] ids) => (float[1,4] y, z) <float[4,3,3,3] w, float[4] b, float[10,6] table> {
  [conv] c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w, b)
  [norm] n = BatchNormalization <epsilon=0.00001> (c, b, b, b, b)
  [pool] p = MaxPool <kernel_shape=[2,2], strides=[2,2]> (n)
  [mean] a = ReduceMean <axes=[2,3], keepdims=1> (p)
  [shape] s = Shape(x)
  [zero] zero = Constant <value = int64[1] {0}> ()
  [one] one = Constant <value = int64[1] {1}> ()
  [cut] batch = Slice(s, zero, one)
  [minus] minus = Constant <value = int64[1] {-1}> ()
  [cat] target = Concat <axis=0> (batch, minus)
  [flat] f = Reshape(a, target)
  [soft] y = Softmax <axis=1> (f)
  [gather] e = Gather <axis=0> (table, ids)
  [unsqueeze] u = Unsqueeze <axes=[0]> (e)
  [split] s1, s2 = Split <axis=2, split=[2,4]> (u)
  [clip] z0 = Clip(s1)
  [twice] z = me.Twice(z0)
}
<domain: "me", opset_import: ["" : 11]> Twice (a) => (b) { b = Add(a, a) }
"""
"""What makes the reader call much of `onnx`: functions, old opsets, shapes computed in the graph."""


def test_damaged_models_are_read_or_refused(tmp_path: Path) -> None:
    """In one process that must not end: `onnx` is written in C++."""
    model = onnx.parser.parse_model(_OLD)
    random = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,)), ("table", (10, 6))):
        data = random.random(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    path = tmp_path / "old.onnx"
    path.write_bytes(model.SerializeToString())
    require_static(normalise(load_model(path)))
    result = subprocess.run(
        [sys.executable, str(_FUZZED), "model", str(path), "300", "0"], capture_output=True, text=True
    )
    assert result.returncode == 0, (result.stdout[-20:], result.stderr[-2000:])
    good = int(result.stdout.split()[-1])
    assert 10 < good < 200, "some of the damage must matter, and some must not"


@pytest.mark.parametrize("name", ["Softsign", "middle", "com.acme", "first", "last", "batch", "weight"])
def test_names_that_are_no_utf_8(name: str, tmp_path: Path) -> None:
    model = relu_model()
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    node = helper.make_node("Softsign", ["first"], ["last"], name="middle")
    model.graph.node[0].CopyFrom(node)
    model.graph.input[0].CopyFrom(vector("first", ("batch", 3)))
    model.graph.output[0].name = "last"
    model.graph.initializer.append(tensor("weight"))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    normalise(load_model(path))
    path.write_bytes(model.SerializeToString().replace(name.encode(), b"\xff" * len(name)))
    with pytest.raises(ModelError, match="is not UTF-8"):
        load_model(path)


def test_a_constant_of_the_right_length_is_read() -> None:
    """So that what is said of those in BAD_MODELS is about their length."""
    model = relu_model()
    model.graph.node[0].CopyFrom(helper.make_node("Add", ["x", "w"], ["y"]))
    model.graph.initializer.append(tensor("w"))
    require_static(from_model(model))


@pytest.mark.ci
def test_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    model = relu_model()
    model.graph.node[0].name = "größe"
    onnx.save(model, tmp_path / "m.onnx")
    collage = Collage(tmp_path, {"PYTHONIOENCODING": "ascii"})
    collage.run("optimize", "m.onnx", "--backends", "reference", "--rounds", "1", "-o", "m.collage")
    assert r"gr\xf6\xdfe" in collage.run("explain", "m.collage")
