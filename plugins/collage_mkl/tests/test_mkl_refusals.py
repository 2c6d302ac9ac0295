"""Everything that is declined says why and where."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Format
from collage_core.ir import Subgraph, TensorType
from collage_core.testing import make_graph, node


def _zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


def _case(reason: str, op: str, inputs: dict[str, Any], constants: dict[str, Any] | None = None) -> Any:
    return pytest.param(op, inputs, constants or {}, reason, id=f"{op}-{reason}")


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "reason"),
    [
        _case("no matrix product", "Add", {"a": _zeros(3, 3), "b": _zeros(3, 3)}),
        _case("int32 is not supported", "MatMul", {n: _zeros(3, 3, dtype="int32") for n in "ab"}),
        _case("float16 is not supported", "Gemm", {n: _zeros(3, 3, dtype="float16") for n in "ab"}),
        _case("no elements", "MatMul", {"a": _zeros(3, 0), "b": _zeros(0, 4)}),
        _case("no elements", "MatMul", {"a": _zeros(0, 3), "b": _zeros(3, 4)}),
        _case("no elements", "Gemm", {"a": _zeros(3, 0), "b": _zeros(0, 4), "c": _zeros(4)}),
        _case("factors are constant", "MatMul", {}, {"a": _zeros(3, 3), "b": _zeros(3, 3)}),
    ],
)
def test_declined(
    backend: Any,
    target: Any,
    op: str,
    inputs: dict[str, Any],
    constants: dict[str, Any],
    reason: str,
) -> None:
    made = node(op, [*inputs, *constants], ["y"], name="n")
    graph = make_graph([made], inputs, constants)
    refusal = backend.variants(Subgraph(graph, graph.all_nodes), target)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert refusal.node == "n"


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "a", "c")])
def test_a_constant_product_to_which_a_value_is_added(
    backend: Any, target: Any, names: tuple[str, ...]
) -> None:
    made = node("Gemm", names, ["y"], name="n", alpha=2.0)
    constants = {v: _zeros(3, 3) for v in names[:2]}
    graph = make_graph([made], {"c": _zeros(3, 3)}, constants)
    refusal = backend.variants(Subgraph(graph, graph.all_nodes), target)
    assert refusal == Refusal("both factors are constant", "n")


def test_unknown_dimensions(backend: Any, target: Any) -> None:
    graph = make_graph([node("MatMul", ["a", "b"], ["y"], name="n")], {n: _zeros(3, 3) for n in "ab"})
    unknown = dataclasses.replace(graph.values["a"], type=TensorType("float32", ("rows", 3)))
    open_graph = graph.replace(values={**graph.values, "a": unknown})
    refusal = backend.variants(Subgraph(open_graph, open_graph.all_nodes), target)
    assert isinstance(refusal, Refusal)
    assert "'rows' is not known" in refusal.reason


def test_groups_of_several_operators(backend: Any, target: Any) -> None:
    nodes = [
        node("MatMul", ["a", "b"], ["p"], name="n"),
        node("Relu", ["p"], ["y"], name="r"),
    ]
    graph = make_graph(nodes, {n: _zeros(3, 3) for n in "ab"})
    refusal = backend.variants(Subgraph(graph, graph.all_nodes), target)
    assert isinstance(refusal, Refusal)
    assert ("fuses nothing" in refusal.reason, refusal.node) == (True, "r")


def test_formats_that_gemm_cannot_write(backend: Any, target: Any) -> None:
    """A variant that was never offered fails to be built, with the reason."""
    graph = make_graph(
        [node("MatMul", ["a", "b"], ["y"], name="n")],
        {"a": _zeros(2, 3, 4), "b": _zeros(2, 4, 5)},
    )
    subgraph = Subgraph(graph, graph.all_nodes)
    (variant,) = backend.variants(subgraph, target)
    rotated = Format.of("float32", (2, 3, 5), (1, 2, 0))
    with pytest.raises(BackendError, match="in one piece"):
        backend.build(subgraph, Variant(variant.inputs, (rotated,)), target)
