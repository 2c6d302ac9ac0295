"""Everything that is declined says why and where."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from collage_cublas.backend import CublasBackend
from cublas_emulation import TARGET, Emulation

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Format
from collage_core.ir import Subgraph, TensorType
from collage_core.target import Target
from collage_core.testing import make_graph, make_group, node


def _zeros(*shape: int, dtype: str = "float32") -> Any:
    return np.zeros(shape, dtype)


_SQUARE = {n: _zeros(3, 3) for n in "ab"}
_WHOLE = {n: _zeros(3, 3, dtype="int32") for n in "ab"}
_PRODUCT = ("MatMul", "a b", "p")
_SUM = ("Gemm", "a b a", "p")
_TWO = {"s": np.float32(2)}


@pytest.mark.parametrize(
    ("reason", "nodes", "inputs", "constants"),
    [
        ("no matrix product", [("Add", "a b", "y")], _SQUARE, {}),
        (
            "int32 is not supported",
            [("MatMul", "a b", "y")],
            {n: _zeros(3, 3, dtype="int32") for n in "ab"},
            {},
        ),
        ("no elements", [("MatMul", "a b", "y")], {"a": _zeros(3, 0), "b": _zeros(0, 4)}, {}),
        ("no elements", [("Gemm", "a b c", "y")], {"a": _zeros(3, 0), "b": _zeros(0, 4), "c": _zeros(4)}, {}),
        ("factors are constant", [("MatMul", "a b", "y")], {}, _SQUARE),
        ("multiplied by 0", [("Gemm", "a b", "y", {"alpha": 0.0})], _SQUARE, {}),
        ("multiplied by 0", [_PRODUCT, ("Mul", "p s", "y")], _SQUARE, {"s": np.float32(0)}),
        ("multiplied by inf", [_PRODUCT, ("Mul", "p s", "y")], _SQUARE, {"s": np.float32("inf")}),
        ("by 0", [_PRODUCT, ("Div", "p s", "y")], _SQUARE, {"s": np.float32(0)}),
        ("divides by the product", [_PRODUCT, ("Div", "s p", "y")], _SQUARE, _TWO),
        ("than one constant", [_PRODUCT, ("Mul", "p s", "y")], {**_SQUARE, "s": _zeros(1)}, {}),
        (
            "product alone is scaled",
            [("Gemm", "a b a", "p"), ("Mul", "p s", "y")],
            _SQUARE,
            {"s": np.float32(2)},
        ),
        ("neither a bias nor a matrix", [("Gemm", "a b c", "y")], {**_SQUARE, "c": _zeros(3, 1)}, {}),
        ("neither a bias nor", [("Gemm", "a b c", "y", {"beta": 2.0})], {**_SQUARE, "c": _zeros(3)}, {}),
        ("neither a bias nor", [("Gemm", "a b c", "y")], {**_SQUARE, "c": _zeros(1)}, {}),
        ("larger shape", [_PRODUCT, ("Add", "p c", "y")], {**_SQUARE, "c": _zeros(2, 3, 3)}, {}),
        ("in one chain", [_PRODUCT, ("Add", "p p", "y")], _SQUARE, {}),
        ("is not fused", [_PRODUCT, ("Sub", "p a", "y")], _SQUARE, {}),
        ("nothing is fused behind Relu", [_PRODUCT, ("Relu", "p", "q"), ("Add", "q a", "y")], _SQUARE, {}),
        ("is the tanh form", [_PRODUCT, ("Gelu", "p", "y")], _SQUARE, {}),
        (
            "more than 2 values",
            [_PRODUCT, ("Add", "p a", "q"), ("Add", "q c", "r"), ("Add", "r c", "y")],
            {**_SQUARE, "c": _zeros(3)},
            {},
        ),
        (
            "would be 20 calls",
            [("MatMul", "a b", "y")],
            {"a": _zeros(20, 1, 2, 2), "b": _zeros(21, 2, 2)},
            {},
        ),
    ],
)
def test_declined(
    backend: CublasBackend,
    reason: str,
    nodes: list[Any],
    inputs: dict[str, Any],
    constants: dict[str, Any],
) -> None:
    made = [
        node(op, read.split(), [out], name=f"n{i}", **(rest[0] if rest else {}))
        for i, (op, read, out, *rest) in enumerate(nodes)
    ]
    found = backend.variants(make_group(made, inputs, constants), TARGET)
    assert isinstance(found, Refusal)
    assert reason in found.reason
    assert (found.node or "").startswith("n")


def test_without_the_device(backend: CublasBackend) -> None:
    group = make_group([node("MatMul", ["a", "b"], ["y"])], _SQUARE)
    found = backend.variants(group, Target("cpu", 2))
    assert found == Refusal("device 'cuda' does not take part", "y")


def test_unknown_dimensions(backend: CublasBackend) -> None:
    graph = make_graph([node("MatMul", ["a", "b"], ["y"], name="n")], _SQUARE)
    unknown = dataclasses.replace(graph.values["a"], type=TensorType("float32", ("rows", 3)))
    open_graph = graph.replace(values={**graph.values, "a": unknown})
    found = backend.variants(Subgraph(open_graph, open_graph.all_nodes), TARGET)
    assert isinstance(found, Refusal)
    assert "'rows' is not known" in found.reason


def test_formats_that_the_library_cannot_write(emulation: Emulation, backend: CublasBackend) -> None:
    """A variant that was never offered fails to be built, with the reason."""
    group = make_group([node("MatMul", ["a", "b"], ["y"])], {"a": _zeros(2, 3, 4), "b": _zeros(2, 4, 5)})
    offered = backend.variants(group, TARGET)
    assert not isinstance(offered, Refusal)
    rotated = Format.of("float32", (2, 3, 5), (1, 2, 0), "cuda")
    with pytest.raises(BackendError, match="in one piece"):
        backend.build(group, Variant(offered[0].inputs, (rotated,)), TARGET)


def test_what_is_stored_in_types_that_do_not_go_together(
    emulation: Emulation, backend: CublasBackend
) -> None:
    group = make_group([node("Gemm", ["a", "b", "c"], ["y"])], {**_SQUARE, "c": _zeros(3, 3)})
    offered = backend.variants(group, TARGET)
    assert not isinstance(offered, Refusal)
    (plain,) = offered
    narrow = dataclasses.replace(plain.inputs[0], dtype="float16")
    a, b, c = plain.inputs
    for inputs, reason in (
        ((narrow, b, c), "different types"),
        ((a, b, narrow), "in another type than the result"),
    ):
        with pytest.raises(BackendError, match=reason):
            backend.build(group, Variant(inputs, plain.outputs), TARGET)
    with pytest.raises(BackendError, match="cannot be stored as float16"):
        backend.build(group, Variant((a, b, narrow), (narrow,)), TARGET)
