"""One bundle for several shapes: one file, one set of weights, and a session that finds the right one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from bundle_edits import members_of, packed
from onnx.reference import ReferenceEvaluator

from collage_core import (
    Bundle,
    BundleError,
    CollageError,
    Group,
    InputError,
    Placement,
    RowAxes,
    Session,
    Subgraph,
    Target,
    export,
    load,
    plain_variant,
    read,
    read_profiles,
    save,
)
from collage_core.errors import StepError
from collage_core.ir import from_model
from collage_core.ir.passes import normalise
from collage_core.runtime.bundle import holds

_WEIGHTS = np.random.default_rng(0).standard_normal((6, 400)).astype(np.float32)


def _model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[n,t,6] x, float[1,6] p) => (float y, float q) {
            a = Add(x, p) y = MatMul(a, w) q = Neg(p)
        }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(_WEIGHTS, "w"))
    return model


def _bundle(rows: int, tokens: int = 2, *, pad: bool = False, target: Target | None = None) -> Bundle:
    graph = from_model(_model(), {"n": (rows,), "t": (tokens,)})
    groups = [Group("reference", (n.id,), plain_variant(Subgraph(graph, (n.id,)))) for n in graph.nodes]
    placement = Placement(tuple(groups), (), target or Target("cpu", 1))
    axes = RowAxes(rows, {"x": 0}, {"y": (0, 1)}) if pad else None
    return Bundle(graph, placement, {"of": rows}, singles={"reference": placement}, rows=axes)


def _feed(rows: int, tokens: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {
        "x": rng.standard_normal((rows, tokens, 6)).astype(np.float32),
        "p": rng.standard_normal((1, 6)).astype(np.float32),
    }


def _check(session: Session, rows: int, tokens: int = 2) -> None:
    feed = _feed(rows, tokens)
    for found, expected in zip(
        session.run(None, feed), ReferenceEvaluator(_model()).run(None, feed), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def several(tmp_path: Path) -> Path:
    save([_bundle(1), _bundle(4), _bundle(4, 3)], tmp_path / "m.collage")
    return tmp_path / "m.collage"


def test_several_come_back_as_they_were(several: Path) -> None:
    profiles = read_profiles(several, check_weights=True)
    assert [p.shapes for p in profiles] == [
        {"x": shape, "p": (1, 6)} for shape in ((1, 2, 6), (4, 2, 6), (4, 3, 6))
    ]
    assert [p.report for p in profiles] == [{"of": 1}, {"of": 4}, {"of": 4}]
    assert [p.placement.digest for p in profiles] == [
        _bundle(*s).placement.digest for s in ((1,), (4,), (4, 3))
    ]
    assert all(p.singles["reference"].digest == p.placement.digest for p in profiles)
    assert len({json.dumps(dict(p.origin), sort_keys=True) for p in profiles}) == 1


def test_weights_are_there_once(several: Path) -> None:
    with zipfile.ZipFile(several) as archive:
        assert archive.getinfo("weights.bin").file_size == _WEIGHTS.nbytes
    arrays = [profile.graph.constants["w"] for profile in read_profiles(several, check_weights=True)]
    np.testing.assert_array_equal(arrays[0], _WEIGHTS)
    assert all(np.shares_memory(arrays[0], array) for array in arrays[1:])


def test_weights_that_differ_are_all_there(tmp_path: Path) -> None:
    other = _bundle(4)
    constants = {"w": _WEIGHTS + 1}
    save([_bundle(1), Bundle(other.graph.replace(constants=constants), other.placement)], tmp_path / "m")
    first, second = read_profiles(tmp_path / "m", check_weights=True)
    np.testing.assert_array_equal(first.graph.constants["w"], _WEIGHTS)
    np.testing.assert_array_equal(second.graph.constants["w"], _WEIGHTS + 1)


def test_only_several_are_of_the_new_format(several: Path, tmp_path: Path) -> None:
    """An older release looks for these members first, and then says that it has to be updated."""
    save(_bundle(1), tmp_path / "one")
    save([_bundle(1)], tmp_path / "list")
    assert holds(tmp_path / "list", read(tmp_path / "one"))
    for path, version in ((several, 2), (tmp_path / "one", 1), (tmp_path / "list", 1)):
        with zipfile.ZipFile(path) as archive:
            assert json.loads(archive.read("manifest.json"))["version"] == version
            assert {"placement.json", "model.onnx", "weights.bin"} <= {*archive.namelist()}


def test_which_one_is_meant(several: Path) -> None:
    there = "x=1,2,6 p=1,6; x=4,2,6 p=1,6; x=4,3,6 p=1,6"
    for ask in (read, load):
        with pytest.raises(BundleError, match=f"it has 3 profiles, say which by its shapes: {there}"):
            ask(several)
        with pytest.raises(BundleError, match=f"no profile has the shapes x=2,2,6; there are: {there}"):
            ask(several, shapes={"x": (2, 2, 6)})
        with pytest.raises(BundleError, match="the shape of 'x' is 3, and no list of sizes"):
            ask(several, shapes={"x": 3})  # type: ignore[dict-item]
    assert read(several, shapes={"x": (4, 3, 6)}).shapes["x"] == (4, 3, 6)
    executable = load(several, shapes={"x": (4, 3, 6)})
    assert executable(_feed(4, 3))["y"].shape == (4, 3, 400)


@pytest.mark.parametrize(
    ("profiles", "said"),
    [
        ([], "0 profiles of shapes; there may be 1 to 64"),
        ([_bundle(n) for n in (1, 4, 1)], "profiles 1 and 3 have the same shapes: x=1,2,6 p=1,6"),
        ([_bundle(n) for n in range(1, 66)], "65 profiles of shapes; there may be 1 to 64"),
        ([_bundle(1), _bundle(2, target=Target("cpu", 2))], "profiles of one bundle are for one target"),
    ],
)
def test_profiles_that_are_none(profiles: list[Bundle], said: str, tmp_path: Path) -> None:
    with pytest.raises(CollageError, match=said):
        save(profiles, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_whether_a_file_has_several_already(several: Path) -> None:
    profiles = [_bundle(1), _bundle(4), _bundle(4, 3)]
    assert holds(several, profiles)
    assert not holds(several, profiles[:2])
    assert not holds(several, profiles[0])
    assert not holds(several, [profiles[1], profiles[0], profiles[2]])
    assert not holds(several, [*profiles[:2], _bundle(4, 3, pad=True)])


def test_a_session_finds_the_shape(several: Path) -> None:
    with Session(several) as session:
        assert [(a.name, a.shape) for a in session.get_inputs()] == [("x", [None, None, 6]), ("p", [1, 6])]
        assert [(a.name, a.shape) for a in session.get_outputs()] == [("y", [None, None, 400]), ("q", [1, 6])]
        for shape in ((1, 2), (4, 2), (4, 3), (1, 2)):
            _check(session, *shape)
        with pytest.raises(
            InputError, match=r"no profile has the shapes x=3,2,6 p=1,6; there are: x=1,2,6 p"
        ):
            session.run(None, _feed(3))
        with pytest.raises(InputError, match=r"input 'p'.*missing"):
            session.run(None, {"x": _feed(1)["x"]})
        with pytest.raises(InputError, match="no input 'z'"):
            session.run(None, {**_feed(1), "z": np.zeros(1)})
        assert session.run(["q"], _feed(4))[0].shape == (1, 6)


def test_memory_is_bound_for_one_shape(several: Path) -> None:
    with Session(several) as session:
        with pytest.raises(InputError, match="say by the shapes of inputs which profile is meant"):
            session.io_binding()
        binding = session.io_binding(shapes={"x": (4, 3, 6)})
        feed = _feed(4, 3)
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        expected: Any = ReferenceEvaluator(_model()).run(["y"], feed)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected[0], rtol=1e-4, atol=1e-5)


def test_fewer_rows_are_served_by_the_next_larger_profile(tmp_path: Path) -> None:
    path = tmp_path / "m.collage"
    save([_bundle(8, pad=True), _bundle(1), _bundle(4, pad=True), _bundle(4, 3)], path)
    assert [p.rows and p.rows.count for p in read_profiles(path)] == [8, None, 4, None]
    with Session(path) as session:
        assert session.get_inputs()[0].shape == [None, None, 6]
        for rows in (5, 8, 1, 2, 3, 4, 7, 0, 5):
            _check(session, rows)
        _check(session, 4, 3)
        there = r"x=8,2,6 p=1,6 or fewer rows; x=1,2,6 p=1,6; x=4,2,6 p=1,6 or fewer rows; x=4,3,6 p=1,6"
        for shape in ((9, 2), (3, 3)):
            with pytest.raises(InputError, match=there):
                session.run(None, _feed(*shape))
        wrong = {**_feed(3), "x": _feed(3)["x"].astype(np.float64)}
        with pytest.raises(InputError, match=r"'x' has (type|dtype) float64"):
            session.run(None, wrong)
        with pytest.raises(InputError, match="no profile has the shapes"):
            session.run(None, {"x": np.zeros(3, np.float32), "p": _feed(1)["p"]})


def test_one_profile_may_be_padded_to(tmp_path: Path) -> None:
    save(_bundle(4, pad=True), tmp_path / "m")
    with Session(tmp_path / "m") as session:
        assert session.get_outputs()[0].shape == [None, 2, 400]
        for rows in (4, 3, 1):
            _check(session, rows)


@pytest.mark.parametrize(
    "rows",
    [
        {"count": 4, "inputs": {"x": 1}, "outputs": {"y": [0, 1]}},
        {"count": 4, "inputs": {"x": 0}, "outputs": {"y": [0, 2]}},
        {"count": 4, "inputs": {"z": 0}, "outputs": {}},
        {"count": 4, "inputs": {}, "outputs": {}},
        {"count": 4, "inputs": {"x": 0}, "outputs": {"y": 0}},
        {"count": 4},
        [4],
    ],
)
def test_rows_that_somebody_has_edited(rows: object, tmp_path: Path) -> None:
    save(_bundle(4, pad=True), tmp_path / "m")
    members = members_of(tmp_path / "m")
    manifest = {**json.loads(members["manifest.json"]), "rows": rows}
    (tmp_path / "m").write_bytes(packed({**members, "manifest.json": json.dumps(manifest).encode()}))
    with pytest.raises(BundleError, match=r"/m: "):
        read(tmp_path / "m")


@pytest.mark.parametrize("part", ["further", "placement", "model"])
def test_a_profile_is_damaged(part: str, several: Path) -> None:
    members = members_of(several)
    if part == "further":
        manifest = json.loads(members["manifest.json"])
        manifest["further"] = [*manifest["further"], *manifest["further"]]
        members["manifest.json"] = json.dumps(manifest).encode()
    else:
        name = {"placement": "placement.2.json", "model": "model.1.onnx"}[part]
        members[name] = members[name][: len(members[name]) // 2]
    several.write_bytes(packed(members))
    with pytest.raises(BundleError, match=r"m\.collage: "):
        read(several)


def test_steps_on_the_reference_are_not_exported(several: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be stored"):
        export(read(several, check_weights=True, shapes={"x": (4, 3, 6)}), tmp_path / "m.deploy")


def test_what_is_padded_may_have_outputs_whose_shapes_hang_on_values(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n,4] x, float[6] p) => (float[n,4] y, int64[1,k] q) { y = Relu(x) q = NonZero(p) }"""
    )
    graph = normalise(from_model(model, {"n": (4,)}))
    groups = [Group("reference", (n.id,), plain_variant(Subgraph(graph, (n.id,)))) for n in graph.nodes]
    placement = Placement(tuple(groups), (), Target("cpu", 1))
    save(Bundle(graph, placement, rows=RowAxes(4, {"x": 0}, {"y": (0, 1)})), tmp_path / "m.collage")
    p = np.array([0, 1, 1, 0, 0, 2], np.float32)
    with Session(tmp_path / "m.collage") as session:
        for rows in (4, 3, 1):
            x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) - 3
            y, q = session.run(None, {"x": x, "p": p})
            np.testing.assert_array_equal(y, np.maximum(x, 0))
            np.testing.assert_array_equal(q, [[1, 2, 5]])


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Rows of three numbers from 10 to 14, each the number of a row in a table of five: no other is valid."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (int64[n,3] x) => (float y)
        <int64 ten = {10}, float[5] table = {0, 1, 2, 3, 4}> { a = Sub(x, ten) y = Gather(table, a) }"""
    )
    graph = from_model(model, {"n": (4,)})
    groups = [Group("reference", (n.id,), plain_variant(Subgraph(graph, (n.id,)))) for n in graph.nodes]
    placement = Placement(tuple(groups), (), Target("cpu", 1))
    save(Bundle(graph, placement, rows=RowAxes(4, {"x": 0}, {"y": (0, 1)})), tmp_path / "m.collage")
    return tmp_path / "m.collage"


def test_rows_that_nobody_asked_for_make_no_request_fail(words: Path) -> None:
    x = np.array([[10, 11, 12], [12, 13, 14], [14, 10, 11], [13, 12, 10]])
    with Session(words) as session:
        for rows in (4, 3, 1, 2):
            np.testing.assert_array_equal(session.run(None, {"x": x[:rows]})[0], x[:rows] - 10)
        with pytest.raises(StepError, match="Gather"):
            session.run(None, {"x": x[:2] - 10})
        np.testing.assert_array_equal(session.run(None, {"x": x[:2]})[0], x[:2] - 10)


def test_what_zeros_are_no_input_of_may_be_warmed_up(words: Path) -> None:
    executable = load(words)
    executable.warm_up()
    x = np.full((4, 3), 11)
    np.testing.assert_array_equal(executable({"x": x})["y"], x - 10)


def test_a_padded_request_is_looked_at_as_a_whole_one_is(tmp_path: Path) -> None:
    save(_bundle(4, pad=True), tmp_path / "m.collage")
    with Session(tmp_path / "m.collage") as session:
        for rows in (4, 2):
            with pytest.raises(InputError, match="the model has no input 'z'"):
                session.run(None, {**_feed(rows), "z": np.zeros(1, np.float32)})


def test_an_input_without_the_axis_of_the_rows_is_none(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[n] y) { y = Relu(x) }"""
    )
    graph = from_model(model, {"n": (4,)})
    groups = [Group("reference", (n.id,), plain_variant(Subgraph(graph, (n.id,)))) for n in graph.nodes]
    placement = Placement(tuple(groups), (), Target("cpu", 1))
    save(Bundle(graph, placement, rows=RowAxes(4, {"x": 0}, {"y": (0, 1)})), tmp_path / "m.collage")
    with (
        Session(tmp_path / "m.collage") as session,
        pytest.raises(InputError, match="no profile has the shapes x="),
    ):
        session.run(None, {"x": np.array(1, np.float32)})


def test_profiles_are_of_one_model(tmp_path: Path) -> None:
    other = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[8] z) => (float[8] y) { y = Relu(z) }"""
    )
    graph = from_model(other)
    groups = [Group("reference", (n.id,), plain_variant(Subgraph(graph, (n.id,)))) for n in graph.nodes]
    bundle = Bundle(graph, Placement(tuple(groups), (), Target("cpu", 1)))
    with pytest.raises(CollageError, match="the same inputs and outputs, but for their sizes"):
        save([_bundle(1), bundle], tmp_path / "m.collage")


@pytest.mark.parametrize("bundles", [[_bundle(1), _bundle(4)], [_bundle(4, pad=True)]])
def test_several_shapes_are_not_optimised_in_the_background(tmp_path: Path, bundles: list[Bundle]) -> None:
    save(bundles if len(bundles) > 1 else bundles[0], tmp_path / "m.collage")
    with pytest.raises(CollageError, match="is for several shapes; in the background one is optimised"):
        Session(tmp_path / "m.collage", optimize="background")
