"""Several shapes of one model on the command line: how they are said, and what commands make of them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import model_of, vector

from collage_core import (
    Bundle,
    CollageError,
    Group,
    Placement,
    Subgraph,
    Target,
    plain_variant,
    read_profiles,
    save,
)
from collage_core.cli.main import main
from collage_core.cli.shapes import profiles_of
from collage_core.ir import Graph, from_model

if TYPE_CHECKING:
    from collage_command import Collage

    from tests.cli.conftest import Mistake


@pytest.mark.parametrize(
    ("texts", "profiles"),
    [
        ([], [{}]),
        (["x=1,3"], [{"x": (1, 3)}]),
        (["x=1x3"], [{"x": (1, 3)}]),
        (["x=10x0x3"], [{"x": (10, 0, 3)}]),
        (["x=1,3", "x=8,3"], [{"x": (1, 3)}, {"x": (8, 3)}]),
        (["x={1,8},3"], [{"x": (1, 3)}, {"x": (8, 3)}]),
        (["x={1,8}x3"], [{"x": (1, 3)}, {"x": (8, 3)}]),
        (["x={1,8},{3,4}"], [{"x": (1, 3)}, {"x": (8, 4)}]),
        (["x={1,8},{3}"], [{"x": (1, 3)}, {"x": (8, 3)}]),
        (["batch={1,8}", "z=2"], [{"batch": (1,), "z": (2,)}, {"batch": (8,), "z": (2,)}]),
        (
            ["x={1,2},3", "x=4,3", "y={5,6,7}"],
            [{"x": (n, 3), "y": (m,)} for n, m in ((1, 5), (2, 6), (4, 7))],
        ),
        (["a=b=1"], [{"a=b": (1,)}]),
    ],
)
def test_which_shapes_belong_together(texts: list[str], profiles: list[object]) -> None:
    assert profiles_of(argparse.Namespace(shape=texts)) == profiles


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            ["x={1,2}", "y={1,2,3}"],
            r"--shape: 2 of x, 3 of y: give as many shapes of each, or one that is for all",
        ),
        (["x={1,2},{1,2,3}"], r"--shape x=\{1,2\},\{1,2,3\}: braces of one shape list as many sizes each"),
        (["x={1,1}"], "profiles 1 and 2 have the same shapes: x=1"),
        (["x=2", "x={1,3}", "x=2"], "profiles 1 and 4 have the same shapes: x=2"),
        (["x={" + ",".join(map(str, range(65))) + "}"], "65 profiles of shapes; there may be 1 to 64"),
        (["x={1,2"], "dimensions are whole numbers"),
        (["x=1,2}"], "dimensions are whole numbers"),
        (["x={}"], "dimensions are whole numbers"),
        (["x={1,{2,3}}"], "dimensions are whole numbers"),
        (["x={1,b}"], "dimensions are whole numbers"),
        (["x=1{2,3}"], "dimensions are whole numbers"),
        (["={1}"], "expected NAME=VALUE"),
        (["x=0x4"], "--shape x=0x4: 0x reads as hexadecimal: write 0,4"),
        (["x=1,0x10"], "--shape x=1,0x10: 0x reads as hexadecimal"),
    ],
)
def test_shapes_that_do_not(texts: list[str], said: str) -> None:
    with pytest.raises(CollageError, match=said):
        profiles_of(argparse.Namespace(shape=texts))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = model_of(
        helper.make_node("Softmax", ["x"], ["s"], name="soft"),
        helper.make_node("Relu", ["s"], ["y"], name="relu"),
        outputs=[vector("y", ("n", 3))],
    )
    made.graph.input[0].CopyFrom(vector("x", ("n", 3)))
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _on_reference(graph: Graph) -> Bundle:
    groups = [Group("reference", (n.id,), plain_variant(Subgraph(graph, (n.id,)))) for n in graph.nodes]
    return Bundle(graph, Placement(tuple(groups), (), Target("cpu", 1)))


@pytest.fixture
def bundle(model: Path, tmp_path: Path) -> Path:
    bundles = []
    for count in (1, 4):
        bundles.append(_on_reference(from_model(onnx.load(model), {"n": (count,)})))
    save(bundles, tmp_path / "m.collage")
    return tmp_path / "m.collage"


_THERE = "x=1,3; x=4,3"


def test_mistakes_about_shapes(model: Path, bundle: Path, tmp_path: Path, mistake: Mistake) -> None:
    two = ("--shape", "n={1,4}")
    assert "2 profiles are given, and tuning takes one" in mistake("tune", model, *two)
    assert "2 profiles are given, and this command takes one" in mistake("bench", model, *two)
    known = "--shape b: the model has no such input; its inputs: x; its open dimensions: n"
    assert known in mistake("optimize", model, "--shape", "b=2")
    assert "a dimension of the model has one size, as in n=8" in mistake(
        "optimize", model, "--shape", "n=2,3"
    )
    assert "dimensions cannot be negative" in mistake("optimize", model, "--shape", "n=-2")
    for huge in (f"n={2**63}", f"x={2**63},3"):
        said = f"--shape {huge}: dimensions are less than 2**63"
        assert said in mistake("optimize", model, "--shape", huge)
    both = ("--shape", "n=2", "--shape", "x=4,3")
    assert "dimension 'n' is both 2 and 4" in mistake("optimize", model, *both)
    assert "no dimension 'rows' to pad" in mistake("optimize", model, *two, "--pad", "rows")
    assert "at node soft (Softmax): it works along axis 1" in mistake(
        "optimize", model, "--shape", "n=2", "--pad", "x:1"
    )
    which = f"it has 2 profiles, say which by its shapes: {_THERE}"
    for options in (
        ("export", bundle, "-o", tmp_path / "e"),
        ("explain", bundle, "--placement", tmp_path / "p.yaml"),
        ("bench", bundle),
    ):
        assert which in mistake(*options)
    assert f"no profile has the shapes x=2,3; there are: {_THERE}" in mistake(
        "check", bundle, "--shape", "x=2,3"
    )
    assert "the model has no input 'n'; its inputs: x" in mistake("check", bundle, "--shape", "n=4")


def test_another_bundle_is_compared_with_in_the_same_shapes(
    bundle: Path, tmp_path: Path, mistake: Mistake, capsys: pytest.CaptureFixture[str]
) -> None:
    for count, profile in zip((1, 4), read_profiles(bundle), strict=True):
        save(profile, tmp_path / f"{count}.collage")
    shape = ("--shape", "x=4,3")
    four = str(tmp_path / "4.collage")
    for here, there in ((str(bundle), str(bundle)), (str(bundle), four), (four, str(bundle))):
        assert main(["explain", here, *shape, "--beside", there, "--json"]) == 0
        beside = json.loads(capsys.readouterr().out)["beside"]
        assert (beside["other"], beside["is_same_model"], beside["moved"]) == (there, True, [])
    assert main(["explain", str(bundle), *shape, "--beside", str(tmp_path / "1.collage"), "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["beside"]["is_same_model"], "one profile is as it is"
    assert main(["explain", four, "--beside", str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["beside"]["is_same_model"], "its shapes say which"


def test_it_is_the_chosen_profiles_shapes_that_choose_in_another_bundle(
    tmp_path: Path, mistake: Mistake, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `--shape` says may be enough in one bundle, and not in the other, or say something else there."""

    def saved(name: str, *sizes: tuple[int, int]) -> str:
        made = model_of(*(helper.make_node("Relu", [v], [f"{v}_out"], name=v) for v in "xy"))
        bundles = []
        for size in sizes:
            del made.graph.input[:], made.graph.output[:]
            made.graph.input.extend(vector(v, (n,)) for v, n in zip("xy", size, strict=True))
            made.graph.output.extend(vector(f"{v}_out", (n,)) for v, n in zip("xy", size, strict=True))
            bundles.append(_on_reference(from_model(made)))
        save(bundles, tmp_path / name)
        return str(tmp_path / name)

    here, other = saved("here", (4, 8), (2, 8)), saved("other", (4, 8), (4, 16))
    assert main(["explain", here, "--shape", "x=4", "--beside", other, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["beside"]["is_same_model"]
    longer = saved("longer", (4, 16), (2, 16))
    for shape, sizes in (("x=4", "x=4 y=8"), ("x=2", "x=2 y=8")):
        said = mistake("explain", here, "--shape", shape, "--beside", longer)
        assert f"{longer}: no profile has the shapes {sizes}; there are: x=4 y=16; x=2 y=16" in said


def test_all_are_explained(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(bundle)]) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("profile ")] == [
        "profile x=1,3",
        "profile x=4,3",
    ]
    assert main(["explain", str(bundle), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["profiles"]
    assert [one["shapes"] for one in told] == ["x=1,3", "x=4,3"]
    assert main(["explain", str(bundle), "--shape", "x=4,3", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["groups"] == told[1]["groups"]


@pytest.mark.parametrize("count", [1, 4])
def test_the_inputs_say_which_one_runs(
    count: int, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", str(bundle), "--input", f"x={tmp_path}/x.npy", "--output", f"y={tmp_path}/y.npy"]
    assert main(arguments) == 0
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-5)


def test_no_profile_has_the_inputs_shape(bundle: Path, tmp_path: Path, mistake: Mistake) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    said = mistake("run", bundle, "--input", f"x={tmp_path}/x.npy")
    assert f"no profile has the shapes x=2,3; there are: {_THERE}" in said
    said = mistake("run", bundle, "--input", f"y={tmp_path}/x.npy")
    assert said == f"collage: {bundle}: the model has no input 'y'; its inputs: x"
    assert (
        "--input x: nowhere.npy: no such file" in mistake("run", bundle, "--input", "x=nowhere.npy").lower()
    )


@pytest.mark.ci
def test_a_model_is_placed_for_two_shapes_checked_and_placed_again(collage: Collage, model: Path) -> None:
    path = collage.folder / "two.collage"
    options = ("--threads", "1", "--rounds", "2", "--backends", "dnnl", "--effort", "quick")
    place = ("optimize", model, "--shape", "n={1,4}", "--pad", "n", "-o", path, *options)
    first = collage.json(*place)["profiles"]
    assert [one["shapes"] for one in first] == ["x=1,3", "x=4,3"]
    assert [p.rows and p.rows.count for p in read_profiles(path)] == [None, 4]
    written = path.read_bytes()
    again = collage.json(*place)["profiles"]
    assert [one["search"]["measured"] for one in again] == [0, 0]
    assert path.read_bytes() == written, "what was found before stays as it is"
    checked = collage.json("check", path, "--budget", "2s")["profiles"]
    assert [one["shapes"] for one in checked] == ["x=1,3", "x=4,3"]
    collage.run("export", path, "--shape", "x=4,3", "-o", collage.folder / "e.collage")
