"""Nodes told by name, by glob or by operator."""

from __future__ import annotations

import pytest
from numpy_backend import graph_of

from collage_core.errors import ModelError
from collage_core.ir.selecting import selected

_GRAPH = graph_of(
    [
        ("Relu", ["x"], "block1/relu"),
        ("Neg", ["block1/relu"], "block1/neg"),
        ("Relu", ["block1/neg"], "block2/relu"),
        ("Exp", ["block2/relu"], "Neg"),
        ("Abs", ["Neg"], "odd[1]"),
    ],
    ["odd[1]"],
)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("block1/neg", ["block1/neg"]),
        ("block1/*", ["block1/relu", "block1/neg"]),
        ("*relu", ["block1/relu", "block2/relu"]),
        ("block?/relu", ["block1/relu", "block2/relu"]),
        ("block[2-9]/*", ["block2/relu"]),
        ("Relu", ["block1/relu", "block2/relu"]),
        ("Exp", ["Neg"]),
        ("Neg", ["Neg"]),  # a name goes before an operator
        ("odd[1]", ["odd[1]"]),  # and before a glob
        ("*", ["block1/relu", "block1/neg", "block2/relu", "Neg", "odd[1]"]),
    ],
)
def test_selected(selector: str, names: list[str]) -> None:
    assert [n.name for n in selected(_GRAPH, selector)] == names


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("block1/rel", "no node is named 'block1/rel' in graph 'g', nor is it an operator there; "),
        ("block1/rel", "did you mean 'block1/relu'?"),
        ("Rleu", "did you mean 'Relu'?"),
        ("block9/*", "no node's name matches 'block9/*' in graph 'g'"),
        ("relu", "nor is it an operator there"),  # operators have their case
        ("", "no node is named ''"),
    ],
)
def test_nothing_is_selected(selector: str, said: str) -> None:
    with pytest.raises(ModelError) as raised:
        selected(_GRAPH, selector)
    assert said in str(raised.value)
