"""What has one row per row of the batch, and is in none of them: ONNX runs such a model at one size alone."""

from __future__ import annotations

import pytest
from row_models import row_graph

from collage_core.errors import ModelError
from collage_core.ir import Graph
from collage_core.ir.rows import independent_rows

_ROWS = 8
_Case = tuple[str, str, int]
"""A node, inputs where {n} is the number of rows, an opset."""

_ONE_PER_ROW: dict[str, _Case] = {
    "added": ("Add(x, u)", "float[{n},6] x, float[8,6] u", 20),
    "added before opset 7": ("Add<broadcast=1>(x, u)", "float[{n},8] x, float[8,8] u", 6),
    "slopes": ("PRelu(x, u)", "float[{n},6] x, float[8,1] u", 20),
    "slopes for each element": ("PRelu(x, u)", "float[{n},6] x, float[8,6] u", 20),
    "a product's summand": ("Gemm(x, m, u)", "float[{n},6] x, float[6,5] m, float[8,1] u", 20),
    "a whole summand": ("Gemm(x, m, u)", "float[{n},6] x, float[6,5] m, float[8,5] u", 20),
    "a summand of columns": ("Gemm<transB=1>(m, x, u)", "float[{n},6] x, float[5,6] m, float[8] u", 20),
    "scales of a normalisation": ("LayerNormalization<axis=1>(x, u)", "float[{n},6] x, float[8,1] u", 20),
    "shifts of a normalisation": (
        "LayerNormalization<axis=2>(x, u, o)",
        "float[{n},5,6] x, float[6] u, float[8,1,6] o",
        20,
    ),
    "scales of a root mean square": ("RMSNormalization<axis=1>(x, u)", "float[{n},6] x, float[8,1] u", 23),
    "a letter": ('Einsum<equation="bi,b->bi">(x, u)', "float[{n},6] x, float[8] u", 20),
    "a letter of several": ('Einsum<equation="bi,bij->bj">(x, u)', "float[{n},6] x, float[8,6,5] u", 20),
    "a letter before": ('Einsum<equation="b,bi->bi">(u, x)', "float[{n},6] x, float[8] u", 20),
    "states of an LSTM": (
        "LSTM<hidden_size=5>(x, m, r, , , u)",
        "float[3,{n},6] x, float[1,20,6] m, float[1,20,5] r, float[1,8,5] u",
        20,
    ),
    "cells of an LSTM": (
        "LSTM<hidden_size=5>(x, m, r, , , , u)",
        "float[3,{n},6] x, float[1,20,6] m, float[1,20,5] r, float[1,8,5] u",
        20,
    ),
    "states of a GRU": (
        "GRU<hidden_size=5>(x, m, r, , , u)",
        "float[3,{n},6] x, float[1,15,6] m, float[1,15,5] r, float[1,8,5] u",
        20,
    ),
    "lengths of sequences": (
        "RNN<hidden_size=5>(x, m, r, , u)",
        "float[3,{n},6] x, float[1,5,6] m, float[1,5,5] r, int32[8] u",
        20,
    ),
    "statistics of channels": (
        "BatchNormalization(x, u, u, u, u)",
        "float[3,{n},6] x, float[8] u",
        13,
    ),
    "quantised along an axis": ("QuantizeLinear<axis=0>(x, u)", "float[{n},6] x, float[8] u", 20),
    "zero points along an axis": (
        "QuantizeLinear<axis=0>(x, u, o)",
        "float[{n},6] x, float u, uint8[8] o",
        20,
    ),
    "dequantised along an axis": ("DequantizeLinear<axis=-2>(x, u)", "uint8[{n},6] x, float[8] u", 20),
    "dequantised in blocks": (
        "DequantizeLinear<axis=1, block_size=3>(x, u)",
        "uint8[{n},6] x, float[8,2] u",
        21,
    ),
    "scales of matrices": (
        "QLinearMatMul(x, a, b, m, u, b, a, b)",
        "uint8[{n},4,6] x, float a, uint8 b, uint8[1,6,5] m, float[8,1,5] u",
        20,
    ),
    "masks": (
        "Attention(x, x, x, u)",
        "float[{n},2,5,4] x, float[8,1,5,5] u",
        23,
    ),
    "keys": ("Attention(x, u, u)", "float[{n},2,5,4] x, float[8,2,5,4] u", 23),
    "queries": ("Attention(u, x, x)", "float[{n},2,5,4] x, float[8,2,5,4] u", 23),
    "lengths of keys": ("Attention(x, x, x, , , , u)", "float[{n},2,5,4] x, int64[8] u", 24),
}


def _graph(case: _Case, number: int, *, is_open: bool) -> Graph:
    text, inputs, opset = case
    shapes: dict[str, tuple[int, ...]] | None = {"n": (number,)} if is_open else None
    inputs = inputs.format(n="n" if is_open else number)
    return row_graph(f"[bad] t = {text} y = Cast<to=1>(t)", inputs, opset, shapes)


def _axes(case: _Case) -> dict[str, int]:
    """Of the input that has the rows."""
    return {"x": case[1].partition("[")[2].partition("]")[0].split(",").index("{n}")}


@pytest.mark.parametrize("name", _ONE_PER_ROW)
def test_what_has_one_per_row_fits_no_other_number(name: str) -> None:
    case = _ONE_PER_ROW[name]
    with pytest.raises(ModelError, match="rows are not proven independent"):
        independent_rows(
            _graph(case, _ROWS, is_open=True), _axes(case), lambda n: _graph(case, n, is_open=True)
        )


@pytest.mark.parametrize("name", _ONE_PER_ROW)
def test_what_has_one_per_row_may_be_in_a_model_of_one_size(name: str) -> None:
    """There row i may depend on i."""
    case = _ONE_PER_ROW[name]
    assert independent_rows(_graph(case, _ROWS, is_open=False), _axes(case)).count == _ROWS


def test_it_is_told_which_node_has_one_per_row() -> None:
    case = _ONE_PER_ROW["slopes"]
    with pytest.raises(ModelError, match=r"at node bad \(PRelu\): 'u' has 8 indices beside 9 of the rows"):
        independent_rows(_graph(case, 8, is_open=True), {"x": 0}, lambda n: _graph(case, n, is_open=True))


_MAY_BE_SCALES_OF_ROWS: dict[str, _Case] = {
    "zero points": ("MatMulInteger(x, m, u)", "uint8[{n},6] x, uint8[6,5] m, uint8[8] u", 20),
    "scales": (
        "QLinearMatMul(x, u, b, m, a, b, a, b)",
        "uint8[{n},6] x, float[8] u, uint8 b, uint8[6,5] m, float a",
        20,
    ),
    "scales of the product": (
        "QLinearMatMul(m, a, b, x, a, b, u, b)",
        "uint8[6,{n}] x, float[8] u, uint8 b, uint8[5,6] m, float a",
        20,
    ),
    "blocks of rows": ("DequantizeLinear<axis=0, block_size=4>(x, u)", "uint8[{n},6] x, float[2,6] u", 21),
}


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("name", _MAY_BE_SCALES_OF_ROWS)
def test_what_may_be_scales_of_rows_is_refused(name: str, is_open: bool) -> None:
    case = _MAY_BE_SCALES_OF_ROWS[name]
    with pytest.raises(ModelError, match="not proven independent at node bad"):
        independent_rows(_graph(case, _ROWS, is_open=is_open), _axes(case))


_ONE_FOR_ALL: dict[str, _Case] = {
    "slopes of channels": ("PRelu(x, u)", "float[{n},8,5] x, float[8,1] u", 20),
    "a slope of channels before opset 7": ("PRelu(x, u)", "float[{n},8] x, float[8] u", 6),
    "a slope": ("PRelu(x, u)", "float[{n},6] x, float[1] u", 20),
    "a bias before opset 7": ("Add<broadcast=1>(x, u)", "float[{n},8] x, float[8] u", 6),
    "a row": ("Add(x, u)", "float[{n},8] x, float[1,8] u", 20),
    "a bias": ("Gemm(x, m, u)", "float[{n},6] x, float[6,8] m, float[8] u", 20),
    "a bias of a row": ("Gemm(x, m, u)", "float[{n},6] x, float[6,8] m, float[1,8] u", 20),
    "one bias": ("Gemm(x, m, u)", "float[{n},6] x, float[6,8] m, float u", 20),
    "a bias of columns": ("Gemm<transB=1>(m, x, u)", "float[{n},6] x, float[8,6] m, float[8,1] u", 20),
    "a normalisation": (
        "LayerNormalization<axis=1>(x, u, o)",
        "float[{n},8] x, float[8] u, float[1,8] o",
        20,
    ),
    "a root mean square": ("RMSNormalization(x, u)", "float[{n},5,8] x, float[8] u", 23),
    "weights": ('Einsum<equation="bi,ij->bj">(x, u)', "float[{n},8] x, float[8,5] u", 20),
    "a letter that is broadcast": (
        'Einsum<equation="bi,bij->bj">(x, u)',
        "float[{n},6] x, float[1,6,5] u",
        20,
    ),
    "a batch of one matrix": ("MatMul(x, u)", "float[{n},5,6] x, float[1,6,8] u", 20),
    "matrices of a batch of their own": ("MatMul(x, u)", "float[{n},6] x, float[8,6,5] u", 20),
    "statistics of channels": ("BatchNormalization(x, u, u, u, u)", "float[{n},8,6] x, float[8] u", 20),
    "statistics beside rows": ("BatchNormalization(x, u, u, u, u)", "float[3,8,{n}] x, float[8] u", 20),
    "one scale": ("QuantizeLinear(x, u, o)", "float[{n},6] x, float u, uint8 o", 20),
    "one scale of one axis": ("QuantizeLinear<axis=0>(x, u)", "float[{n},6] x, float[1] u", 20),
    "scales of channels": ("DequantizeLinear(x, u)", "uint8[{n},8] x, float[8] u", 20),
    "integers": (
        "MatMulInteger(x, m, u, o)",
        "uint8[{n},6] x, uint8[6,8] m, uint8 u, uint8[8] o",
        20,
    ),
    "scales of columns": (
        "QLinearMatMul(x, a, b, m, u, o, a, b)",
        "uint8[{n},6] x, float a, uint8 b, uint8[6,8] m, float[8] u, uint8[8] o",
        20,
    ),
    "a mask": ("Attention(x, x, x, u)", "float[{n},2,8,4] x, float[8,8] u", 23),
    "a mask of heads": ("Attention(x, x, x, u)", "float[{n},8,5,4] x, float[1,8,5,5] u", 23),
}


@pytest.mark.parametrize("name", _ONE_FOR_ALL)
def test_what_is_one_for_all_rows_fits_every_number(name: str) -> None:
    case = _ONE_FOR_ALL[name]
    graph = _graph(case, _ROWS, is_open=True)
    rows = independent_rows(graph, _axes(case), lambda n: _graph(case, n, is_open=True))
    assert rows.count == _ROWS
