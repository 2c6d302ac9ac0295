"""Executables of hand-made placements: wrong inputs, steps that fail, and placements that are refused."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from numpy_backend import FLOAT, TARGET, graph_of, placement_of, x_for
from onnx import helper

from collage_core.backend import Variant
from collage_core.errors import BackendError, BundleError, InputError, PlacementError
from collage_core.formats import Format, channels_last, plain
from collage_core.ir import from_model
from collage_core.ir.digests import structure_digest
from collage_core.ir.passes import normalise
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.plugins import Registry
from collage_core.runtime import Bundle, build, load, read, save
from collage_core.target import Target


def test_constant_outputs_cannot_be_written_into(registry: Registry) -> None:
    """They are the graph's own, and every context's."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]>
        g (float[2] x) => (float[2] y, float[2] c) <float[2] c = {1, 2}> { y = Relu(x) }"""
    )
    graph = normalise(from_model(model))
    context = build(graph, placement_of(graph, ["numpy"]), registry).context()
    assert context.outputs["c"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        context.outputs["c"][0] = 3
    context.outputs["y"][0] = 3


def test_a_view_stands_for_no_conversion(registry: Registry) -> None:
    """Nothing would be computed, and nobody would notice."""
    graph = graph_of([("Relu", ["x"], "y")], ["y"], shape=(2, 3))
    here, turned = (Format("float32", layout) for layout in ((0, 1), (1, 0)))
    group = Group("numpy", (graph.nodes[0].id,), Variant((turned,), (here,)))
    placement = Placement((group,), (Conversion("x", here, turned, VIEW),), Target("cpu", 1))
    with pytest.raises(PlacementError, match="a view is to convert 'x' to float32:10: it moves no byte"):
        build(graph, placement, registry)


def test_odd_but_right_inputs_work(registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], "y")], ["y"])
    executable = build(graph, placement_of(graph, ["numpy"]), registry)
    x = x_for(graph)
    strided = np.repeat(x, 2, axis=3)[..., ::2]
    assert not strided.flags.c_contiguous
    read_only = x.copy()
    read_only.flags.writeable = False
    for odd in (strided, read_only, np.asfortranarray(x)):
        np.testing.assert_array_equal(executable({"x": odd})["y"], np.maximum(x, 0))


def test_wrong_inputs_are_named(registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], "y")], ["y"])
    executable = build(graph, placement_of(graph, ["numpy"]), registry)
    x = x_for(graph)
    with pytest.raises(InputError, match="no input 'z'; its inputs: x"):
        executable({"x": x, "z": x})
    with pytest.raises(InputError, match=r"input 'x' .* is missing"):
        executable({})
    with pytest.raises(InputError, match=r"input 'x' has shape \[2\]; the model's is \[2, 3, 4, 5\]"):
        executable(np.zeros(2, np.float32))
    with pytest.raises(InputError, match="input 'x' has dtype float64; the model's is float32"):
        executable(x.astype(np.float64))
    with pytest.raises(InputError, match="2 inputs given; the model has 1: x"):
        executable([x, x])
    with pytest.raises(InputError, match="no output 'q'; its outputs: y"):
        executable.run(x, {"q": x})
    with pytest.raises(InputError, match="outputs are a list, and not arrays by name"):
        executable.run(x, [x])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_leaves_the_context_free(registry: Registry, kind: type[BaseException]) -> None:
    """Whenever it comes: as Ctrl-C in a notebook, or a limit of time by a signal. It is no step's failure."""
    graph = graph_of([("Relu", ["x"], "y")], ["y"])
    context, ones = (
        build(graph, placement_of(graph, ["numpy"]), registry).context(),
        np.ones_like(x_for(graph)),
    )

    def interrupt(number: int, frame: object) -> None:
        raise kind

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupts = 0
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                for _ in range(2000):  # not for ever: NumPy swallows one now and then
                    context(ones)
            except kind:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 250
    np.testing.assert_array_equal(context(ones)["y"], ones)


def test_a_failing_step_is_named(registry: Registry) -> None:
    graph = graph_of([("Neg", ["x"], "y")], ["y"])
    executable = build(graph, placement_of(graph, ["numpy"]), registry)
    with pytest.raises(BackendError, match="numpy: nodes 0 failed with status 7"):
        executable(x_for(graph))
    graph = graph_of([("Abs", ["x"], "y")], ["y"])
    with pytest.raises(BackendError, match="numpy: nodes 0: ValueError: no such kernel"):
        build(graph, placement_of(graph, ["numpy"]), registry)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("Neg", " with status 7"),
        ("Exp", ": OverflowError: out of range"),
        ("Log", ": numpy: below zero"),
    ],
)
def test_whatever_a_step_raises_is_a_backends_error(registry: Registry, op: str, said: str) -> None:
    """However the executable is run; its context runs again afterwards."""
    graph = graph_of([("Relu", ["x"], "a"), (op, ["a"], "b"), ("Relu", ["b"], "y")], ["y"])
    context = build(graph, placement_of(graph, ["numpy"] * 3), registry).context()
    x = x_for(graph)
    runs = (lambda: context(x), lambda: context.run(x), context.execute, context.execute_timed)
    for run in runs:
        with pytest.raises(BackendError) as failure:
            run()
        assert str(failure.value) == f"step numpy: nodes 1 failed{said}"


def test_a_placement_that_does_not_fit_says_why(registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], "a"), ("Relu", ["a"], "b")], ["b"])
    whole = placement_of(graph, ["numpy", "numpy"])
    with pytest.raises(PlacementError, match="no group covers b \\(Relu\\)"):
        build(graph, Placement(whole.groups[:1], (), TARGET), registry)
    with pytest.raises(PlacementError, match="covers a node that another group covers already"):
        build(graph, Placement((*whole.groups, whole.groups[1]), (), TARGET), registry)
    with pytest.raises(PlacementError, match="reads 'a' as float32:plain, which nothing before it provides"):
        build(graph, Placement(whole.groups[::-1], (), TARGET), registry)


def test_a_placement_says_of_which_graph_it_is(registry: Registry) -> None:
    """Another graph may have nodes of the same ids, and none of what they compute."""
    graph = graph_of([("Relu", ["x"], "a"), ("Sin", ["a"], "b")], ["b"])
    other = graph_of([("Sin", ["x"], "a"), ("Relu", ["a"], "b")], ["b"])
    placement = replace(placement_of(graph, ["numpy", "reference"]), graph=structure_digest(graph))
    assert build(graph, placement, registry)
    with pytest.raises(PlacementError, match="made for another graph: its nodes or values are others"):
        build(other, placement, registry)
    assert build(other, replace(placement, graph=""), registry), "made by hand, for any"


def test_a_bundle_gives_the_same_numbers_and_is_checked(registry: Registry, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((3, 40, 30)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [3, 5, 40])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [helper.make_tensor("w", FLOAT, weights.shape, weights.tobytes(), raw=True)],
    )
    graph = from_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    placement = placement_of(graph, ["reference"])
    path = tmp_path / "m.collage"
    save(Bundle(graph, placement, {"made": "here"}), path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.collage"]
    bundle = read(path)
    assert bundle.placement == placement
    assert bundle.report == {"made": "here"}
    np.testing.assert_array_equal(bundle.graph.constants["w"], weights)
    x = x_for(graph)
    np.testing.assert_array_equal(load(path, registry)(x)["y"], x @ weights)
    (tmp_path / "no.collage").write_bytes(b"PK nothing")
    with pytest.raises(BundleError, match="not a bundle"):
        read(tmp_path / "no.collage")
    with pytest.raises(BundleError, match="no such file"):
        read(tmp_path / "none.collage")


def test_an_edited_placement_is_checked(registry: Registry) -> None:
    graph = graph_of([("Relu", ["x"], "a"), ("Identity", ["a"], "b")], ["b"])
    shape = graph.shape_of("x")
    row, last = plain("float32", shape), channels_last("float32", shape)
    relu, identity = Group("numpy", (0,), Variant((row,), (row,))), Group(VIEW, (1,), Variant((row,), (row,)))

    def refused(*groups: Group) -> str:
        with pytest.raises(PlacementError) as caught:
            build(graph, Placement(groups, (), TARGET), registry)
        return str(caught.value)

    build(graph, Placement((relu, identity), (), TARGET), registry)
    assert "computes something" in refused(Group(VIEW, (0,), relu.variant), identity)
    assert "no view of float32:plain is float32:0231" in refused(
        relu, Group(VIEW, (1,), Variant((row,), (last,)))
    )
    assert "formats for (0, 1) inputs and outputs; it needs (1, 1)" in refused(
        Group("numpy", (0,), Variant((), (row,))), identity
    )
    wrong = Format("float32", (0, 1))
    assert "cannot be stored as float32:plain" in refused(
        Group("numpy", (0,), Variant((wrong,), (row,))), identity
    )
    assert "it does not offer (float32:plain) -> (float32:plain) by=magic" in refused(
        Group("numpy", (0,), Variant((row,), (row,), (("by", "magic"),))), identity
    )
    assert "nodes that the graph has not" in refused(relu, Group(VIEW, (7,), identity.variant))
