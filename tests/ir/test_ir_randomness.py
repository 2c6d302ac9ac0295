"""Which values are random, what is legal for them, and the seeds that they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from collage_core.formats import Array
from collage_core.ir import Graph
from collage_core.ir.passes import normalise
from collage_core.ir.randomness import Drawn, drawing_nodes, random_values, seed_of
from collage_core.ir.static import require_static
from collage_core.reference import evaluate
from collage_core.testing import make_graph, node

X = np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3)

DRAWING: list[tuple[str, list[str], dict[str, Any], Drawn]] = [
    ("RandomUniform", [], {"shape": [2, 3], "low": -1.0, "high": 4.0}, Drawn(-1, 4)),
    ("RandomUniformLike", ["x"], {}, Drawn(0, 1)),
    ("RandomUniformLike", ["x"], {"dtype": 11, "low": 5.0, "high": 6.0}, Drawn(5, 6)),
    ("RandomNormal", [], {"shape": [2, 3]}, Drawn()),
    ("RandomNormalLike", ["x"], {"mean": 3.0}, Drawn()),
    ("Bernoulli", ["x"], {}, Drawn(0, 1, is_whole=True)),
    ("Bernoulli", ["x"], {"dtype": 9}, Drawn(0, 1, is_whole=True)),
    ("Multinomial", ["x"], {"sample_size": 5}, Drawn(0, 2, is_whole=True)),
    ("Multinomial", ["x"], {"sample_size": 5, "dtype": 7}, Drawn(0, 2, is_whole=True)),
    ("Dropout", ["x", "ratio", "training"], {}, Drawn()),
]


def graph_of(op: str, reads: list[str], attributes: dict[str, Any], opset: int = 20) -> Graph:
    """The operator alone, named r, and beside it what does not depend on it."""
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    nodes = [node(op, reads, "r", **attributes), node("Relu", ["x"], "z")]
    return make_graph(
        nodes, {"x": X}, {v: a for v, a in constants.items() if v in reads}, ["r", "z"], opset=opset
    )


@pytest.mark.parametrize(("op", "reads", "attributes", "legal"), DRAWING)
@pytest.mark.parametrize("opset", [15, 20, 22])
def test_each_draws_the_same_legal_numbers_twice(
    op: str, reads: list[str], attributes: dict[str, Any], legal: Drawn, opset: int
) -> None:
    graph = normalise(graph_of(op, reads, attributes, opset))
    require_static(graph)
    assert random_values(graph) == {"r": legal}
    (drawing,) = drawing_nodes(graph)
    assert seed_of(drawing) == drawing.id + 1
    first, second = (evaluate(graph, {"x": X})["r"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    type = graph.type_of("r")
    assert (str(first.dtype), first.shape) == (type.dtype, type.shape)
    numbers = first.astype(np.float64)
    assert np.isfinite(numbers).all()
    assert legal.least <= numbers.min() <= numbers.max() <= legal.most
    if legal.is_whole:
        np.testing.assert_array_equal(numbers, np.rint(numbers))


@pytest.mark.parametrize("op", ["RandomUniformLike", "RandomNormalLike", "Bernoulli"])
def test_a_scalar_can_be_drawn(op: str) -> None:
    x = np.array(0.5, np.float32)
    graph = normalise(make_graph([node(op, ["x"], "r")], {"x": x}))
    assert evaluate(graph, {"x": x})["r"].shape == ()


def test_numbers_follow_their_distribution() -> None:
    x = np.full((100, 100), 0.25, np.float32)
    nodes = [
        node("RandomUniformLike", ["x"], "u", low=2.0, high=4.0),
        node("RandomNormalLike", ["x"], "n", mean=1.0, scale=3.0),
        node("Bernoulli", ["x"], "b"),
        node("Multinomial", ["logarithms"], "m", sample_size=10000),
    ]
    constants = {"logarithms": np.log([[1.0, 2.0, 5.0]]).astype(np.float32)}
    graph = normalise(make_graph(nodes, {"x": x}, constants, ["u", "n", "b", "m"]))
    values = evaluate(graph, {"x": x})
    assert values["u"].mean() == pytest.approx(3, abs=0.05)
    assert values["n"].mean() == pytest.approx(1, abs=0.1)
    assert values["n"].std() == pytest.approx(3, abs=0.1)
    assert values["b"].mean() == pytest.approx(0.25, abs=0.02)
    np.testing.assert_allclose(np.bincount(values["m"][0]) / 10000, [0.125, 0.25, 0.625], atol=0.02)


def test_a_given_seed_stays_and_others_differ() -> None:
    nodes = [node("RandomUniform", [], v, shape=[4], **a) for v, a in (("a", {"seed": 7.0}), ("b", {}))]
    graph = normalise(make_graph([*nodes, node("RandomUniform", [], "c", shape=[4])], {}, None, list("abc")))
    seeds = [seed_of(n) for n in graph.nodes]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    values = evaluate(graph, {})
    assert not np.array_equal(values["b"], values["c"])


def test_without_its_pass_nothing_is_seeded() -> None:
    graph = graph_of("RandomUniformLike", ["x"], {})
    assert [seed_of(n) for n in drawing_nodes(normalise(graph, skip=["seed-random"]))] == [None]


def test_what_follows_a_draw_is_random_and_a_view_keeps_its_range() -> None:
    nodes = [
        node("Relu", ["x"], "z"),
        node("RandomUniformLike", ["z"], "r", high=5.0),
        node("Reshape", ["r", "shape"], "s"),
        node("Add", ["s", "s"], "y"),
    ]
    graph = make_graph(nodes, {"x": X}, {"shape": np.array([6])}, ["z", "y"])
    assert random_values(graph) == {"r": Drawn(0, 5), "s": Drawn(0, 5), "y": Drawn()}
    # Of a part that draws nothing, what it reads is data as any other.
    assert random_values(graph, graph.nodes[2:]) == {}


def test_dropout_draws_in_training_only() -> None:
    def random(training: Array | None) -> dict[str, Drawn]:
        constants: dict[str, Any] = {"ratio": np.float32(0.5)}
        if training is not None:
            constants["training"] = training
        return random_values(
            make_graph(
                [node("Dropout", ["x", "ratio", "training"][: 1 + len(constants)], ["y", "m"])],
                {"x": X},
                constants,
                ["y", "m"],
            )
        )

    assert random(None) == random(np.array(False)) == {}
    assert random(np.array(True)) == {"y": Drawn(), "m": Drawn(0, 1, is_whole=True)}


def test_draws_are_not_constants_but_may_be_dead() -> None:
    nodes = [
        node("RandomUniform", [], "r", shape=[2, 3]),
        node("RandomNormal", [], "unused", shape=[2, 3]),
        node("Add", ["r", "x"], "y"),
    ]
    graph = normalise(make_graph(nodes, {"x": X}))
    assert [n.name for n in graph.nodes] == ["r", "y"]
    assert not graph.constants


def test_what_a_body_draws_has_seeds_of_its_own() -> None:
    branches = {
        "then_branch": [node("RandomUniformLike", ["x"], "t", high=2.0)],
        "else_branch": [node("Bernoulli", ["x"], "e"), node("Dropout", ["e", "ratio", "training"], "d")],
    }
    bodies = {
        name: helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=nodes[-1].output[0])])
        for name, nodes in branches.items()
    }
    nodes = [
        node("RandomNormalLike", ["x"], "n"),
        node("If", ["c"], "r", **bodies),
        node("Add", ["r", "n"], "y"),
        node("Relu", ["x"], "z"),
    ]
    inputs = {"x": X, "c": np.array(True)}
    constants = {"ratio": np.array(0.5, np.float32), "training": np.array(False)}
    graph = normalise(make_graph(nodes, inputs, constants, ["y", "z"]))
    assert random_values(graph).keys() == {"n", "r", "y"}
    # Dropout is told by a constant from outside that it is not in training.
    drawing = {n.op_type for n in drawing_nodes(graph)}
    assert drawing == {"RandomNormalLike", "RandomUniformLike", "Bernoulli"}
    seeds = [seed_of(n) for n in drawing_nodes(graph)]
    assert None not in seeds
    assert len(set(seeds)) == 3
    for c in (True, False):
        inputs["c"] = np.array(c)
        first, second = (evaluate(graph, inputs)["y"] for _ in range(2))
        np.testing.assert_array_equal(first, second)
