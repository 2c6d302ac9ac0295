"""Rows that are said to be independent are: what is done to the others changes nothing in one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from collage_benchmarks.generator import Case, example, graphs, operators, opsets, single
from collage_benchmarks.networks import NETWORKS
from row_models import row_graph, same

from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir import Graph, RowAxes, from_model
from collage_core.ir.rows import independent_rows
from collage_core.reference import evaluate

Inputs = dict[str, Array]


def _of_row(array: Array, held: tuple[int, int] | None, row: int) -> Array:
    if held is None:
        return array
    axis, width = held
    return np.take(array, range(row * width, (row + 1) * width), axis)


def _holds(graph: Graph, rows: RowAxes, inputs: Inputs, seed: int) -> bool:
    """Whether a row stays what it was where the other ones are altered, on the reference: they trade places,
    they become each other, which no sum survives, and they become that row.
    """
    chance = np.random.default_rng(seed)
    row, count = int(chance.integers(rows.count)), rows.count
    was = evaluate(graph, inputs)
    for others in (chance.permutation(count), chance.integers(count, size=count), [row] * count):
        taken = [row if i == row else int(j) for i, j in enumerate(others)]
        altered = {v: np.take(a, taken, rows.inputs[v]) if v in rows.inputs else a for v, a in inputs.items()}
        now = evaluate(graph, altered)
        for v in graph.outputs:
            held = rows.outputs.get(v)
            if not same(_of_row(was[v], held, row), _of_row(now[v], held, row)):
                return False
    return True


def _claims(case: Case) -> Iterator[tuple[Graph, RowAxes]]:
    """Each axis of each input as the one where rows are, as far as that is proven."""
    graph = from_model(case.model)
    for v in graph.inputs:
        for axis, size in enumerate(graph.type_of(v).shape):
            if isinstance(size, int) and size > 1:
                try:
                    yield graph, independent_rows(graph, {v: axis})
                except ModelError:
                    continue


def _proven(cases: Iterator[Case]) -> int:
    count = 0
    for number, case in enumerate(cases):
        for graph, rows in _claims(case):
            assert _holds(graph, rows, case.inputs, number), (rows, str(graph))
            count += 1
    return count


def test_what_is_proven_of_operators_holds() -> None:
    names = operators(dynamic=False, random=False)
    newest = ((op, opset) for op in names for opset in opsets(op)[-1:])
    assert _proven(example(single(*one), number) for one in newest for number in range(2)) > 300


def test_what_is_proven_of_graphs_holds() -> None:
    assert _proven(example(graphs(13 + n % 10), n) for n in range(60)) > 150


@pytest.mark.slow
def test_what_is_proven_of_many_holds() -> None:
    names = operators(dynamic=False, random=False)
    every = (example(single(op, opset), n) for op in names for opset in opsets(op) for n in range(4))
    assert _proven(every) > 1500
    assert _proven(example(graphs(13 + n % 10), n) for n in range(400)) > 1000


def test_a_false_claim_would_be_found() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    claim = RowAxes(4, {"x": 0}, {"y": (0, 1)})
    for text in ("y = Softmax<axis=0>(x)", "y = CumSum(x, zero)", "z = Transpose(x) y = Reshape(z, square)"):
        assert not _holds(row_graph(text, "float[4,3] x"), claim, {"x": x}, 0)
    assert _holds(row_graph("y = Softmax<axis=1>(x)", "float[4,3] x"), claim, {"x": x}, 0)


_ATTENTION = """
    s = Shape(x)
    n = Gather(s, zero)  n1 = Unsqueeze(n, zeros)
    t = Gather(s, one)   t1 = Unsqueeze(t, zeros)
    parted = Concat<axis=0>(n1, t1, heads)
    a = MatMul(x, w)
    b = Reshape(a, parted)
    q = Transpose<perm=[0,2,1,3]>(b)
    u = Transpose<perm=[0,2,3,1]>(b)
    m = MatMul(q, u)
    d = Softmax<axis=-1>(m)
    e = MatMul(d, q)
    f = Transpose<perm=[0,2,1,3]>(e)
    back = Concat<axis=0>(n1, t1, minus)
    g = Reshape(f, back)
    y = Add(g, x)"""
"""As PyTorch writes it: with the batch read from the shape."""

_RIGHT = {
    "attention": (_ATTENTION, "float[n,5,6] x"),
    "merged and parted": (
        "s = Shape(x) f = Reshape(x, flat) z = MatMul(f, w) y = Reshape(z, s)",
        "float[n,5,6] x",
    ),
    "sequence first": (
        """s = Shape(x) f = Reshape(x, flat) z = MatMul(f, w) p = Reshape(z, s)
        y = Transpose<perm=[1,0,2]>(p)""",
        "float[5,n,6] x",
    ),
    "scaled by another size": (
        "s = Shape(x) t = Gather(s, one) f = Cast<to=1>(t) r = Sqrt(f) y = Div(x, r)",
        "float[n,5,6] x",
    ),
    "positions": (
        "s = Shape(x) n = Gather(s, zero) p = Range(zero, n, one) f = Cast<to=1>(p) u = Unsqueeze(f, ones) "
        "y = Add(x, u)",
        "float[n,6] x",
    ),
    "expanded": ("s = Shape(x) e = Expand(c, s) y = Mul(x, e)", "float[n,6] x"),
    "a mask of zeros": ("s = Shape(x) z = ConstantOfShape(s) y = Max(x, z)", "float[n,6] x"),
    "sequences": (
        "z, l = LSTM<hidden_size=5>(x, lw, lr) s = Squeeze(z, ones) y = Transpose<perm=[1,0,2]>(s)",
        "float[3,n,6] x",
    ),
    "convolved": ("k1 = Conv<pads=[1,1,1,1]>(x, k) y = GlobalMaxPool(k1)", "float[n,3,7,7] x"),
    "what is the same for all": (
        "a = Add(x, p) m = MatMul(p, w) y = Add(a, m)",
        "float[n,6] x, float[1,6] p",
    ),
}


@pytest.mark.parametrize("name", _RIGHT)
def test_fewer_rows_are_as_if_there_were_no_others(name: str) -> None:
    """What a model answers for two rows is what it answers for them among five, the other ones zeros."""
    text, inputs = _RIGHT[name]
    few, many = (row_graph(text, inputs, shapes={"n": (n,)}) for n in (2, 5))
    axes = {"x": _shape_of(inputs).index("n")}
    rows = independent_rows(many, axes, lambda n: row_graph(text, inputs, shapes={"n": (n,)}))
    rng = np.random.default_rng(1)
    given = {v: rng.standard_normal(few.shape_of(v)).astype(np.float32) for v in few.inputs}
    padded = {v: np.zeros(many.shape_of(v), np.float32) for v in many.inputs}
    for v, array in given.items():
        padded[v][tuple(map(slice, array.shape))] = array
    expected, answer = evaluate(few, given)["y"], evaluate(many, padded)["y"]
    axis, width = rows.outputs["y"]
    np.testing.assert_allclose(np.take(answer, range(2 * width), axis), expected, rtol=1e-5, atol=1e-6)
    assert not np.isnan(answer).any()


def _shape_of(inputs: str) -> list[str]:
    return inputs.partition("[")[2].partition("]")[0].split(",")


_WRONG = {
    "softmax over rows": ("[bad] y = Softmax<axis=0>(x)", "float[n,6] x", "axis 0"),
    "old softmax over rows": ("[bad] y = Softmax<axis=0>(x)", "float[n,6] x", "axis 0"),
    "sum over rows": ("[bad] y = ReduceSum(x, zeros)", "float[n,6] x", "axis 0"),
    "sum over all": ("[bad] y = ReduceMax(x)", "float[n,6] x", "axis 0"),
    "running sum": ("[bad] y = CumSum(x, zero)", "float[n,6] x", "axis 0"),
    "training": (
        "[bad] y, a, b = BatchNormalization<training_mode=1>(x, v, v, v, v)",
        "float[n,3,4] x",
        "training mode",
    ),
    "ranges of all": (
        "[bad] q, a, b = DynamicQuantizeLinear(x) y = DequantizeLinear(q, a, b)",
        "float[n,6] x",
        "nothing is known",
    ),
    "random": ("[bad] r = RandomNormalLike(x) y = Add(r, x)", "float[n,6] x", "random"),
    "dropped out": ("[bad] y = Dropout(x, half, true)", "float[n,6] x", "random"),
    "mixed by a reshape": ("[bad] z = Reshape(x, heads6) y = Relu(z)", "float[n,6] x", "mixes rows"),
    "reversed": ("[bad] y = Slice(x, minus, far, zeros, minus)", "float[n,6] x", "axis 0"),
    "a part of the rows": ("[bad] y = Slice(x, zeros, ones, zeros)", "float[n,6] x", "axis 0"),
    "one of the rows": ("[bad] y = Gather<axis=0>(x, zero)", "float[n,6] x", "axis 0"),
    "joined with itself": ("[bad] y = Concat<axis=0>(x, x)", "float[n,6] x", "axis 0"),
    "rows times rows": ("t = Transpose(x) [bad] y = MatMul(x, t)", "float[n,6] x", "with each other"),
    "added up": ("t = Transpose(x) [bad] y = MatMul(t, one_row)", "float[n,6] x", "adds up"),
    "divided by their number": (
        "s = Shape(x) n = Gather(s, zero) f = Cast<to=1>(n) [bad] y = Div(x, f)",
        "float[n,6] x",
        "how many rows there are",
    ),
    "the number in another dimension": (
        "s = Shape(x) n = Gather(s, zero) n1 = Unsqueeze(n, zeros) a = Concat<axis=0>(n1, n1, sixes) "
        "u = Unsqueeze(x, ones) [bad] y = Expand(u, a)",
        "float[n,6] x",
        "another dimension",
    ),
    "an axis that is not named": ("[bad] y = Squeeze(x)", "float[n,1,6] x", "names no axes"),
    "no operator of ONNX": ("[bad] y = com.acme.Twice(x)", "float[n,6] x", "nothing is known"),
    "what others say": (
        "i = ArgMax<axis=1,keepdims=0>(x) [bad] y = Gather<axis=0>(x, i)",
        "float[n,6] x",
        "other rows",
    ),
    "where others are": (
        "t = Transpose(x) m = Add(x, w) [bad] y = Add(t, m)",
        "float[6,6] x",
        "different places",
    ),
}


@pytest.mark.parametrize("name", _WRONG)
def test_what_is_not_proven_is_refused_by_the_nodes_name(name: str) -> None:
    text, inputs, why = _WRONG[name]
    opset = 11 if name.startswith("old") else 20
    graph = row_graph(text, inputs, opset, {"n": (4,)} if "n" in _shape_of(inputs) else None)
    with pytest.raises(ModelError, match=rf"not proven independent at node bad \(.*\): .*{why}"):
        independent_rows(graph, {"x": 0})


def test_the_number_of_rows_is_no_answer() -> None:
    graph = row_graph("s = Shape(x) y = Cast<to=1>(s)", "float[n,6] x", shapes={"n": (4,)})
    with pytest.raises(ModelError, match="output 'y' depends on how many rows there are"):
        independent_rows(graph, {"x": 0})


def test_one_row_more_has_to_say_the_same() -> None:
    """Of two rows the reshape could keep them in order; of three it does not."""

    def at(number: int) -> Graph:
        return row_graph("y = Reshape(x, two)", "float[n,6] x", shapes={"n": (number,)})

    assert independent_rows(at(2), {"x": 0}).outputs == {"y": (0, 1)}
    with pytest.raises(ModelError, match="not proven independent"):
        independent_rows(at(2), {"x": 0}, at)


@pytest.mark.parametrize("name", ["dcgan", "tiny_conv"])
def test_networks_for_images(name: str) -> None:
    model = NETWORKS[name].build()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    del model.graph.value_info[:]
    many = from_model(model, {"n": (3,)})
    rows = independent_rows(many, dict.fromkeys(many.inputs, 0), lambda n: from_model(model, {"n": (n,)}))
    assert rows.outputs == dict.fromkeys(many.outputs, (0, 1))
    rng = np.random.default_rng(0)
    inputs = {v: rng.standard_normal(many.shape_of(v)).astype(np.float32) for v in many.inputs}
    assert _holds(many, rows, inputs, 0)
