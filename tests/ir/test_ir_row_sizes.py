"""What is computed from the number of rows: proven is only what holds with fewer, too."""

from __future__ import annotations

import numpy as np
import pytest
from row_models import row_graph, same

from collage_core.errors import CollageError, ModelError
from collage_core.formats import Array
from collage_core.ir import Graph
from collage_core.ir.rows import independent_rows
from collage_core.reference import evaluate

_OF_THE_NUMBER = "s = Shape(x) n = Slice(s, zeros, ones)"
_WRONG_SIZES = {
    "the shape of what was expanded": "many = Expand(n, n) m = Shape(many) f = Cast<to=1>(m) y = Div(x, f)",
    "the size of a range": "e = Add(n, n) a = Squeeze(n) b = Squeeze(e) r = Range(a, b, one) m = Size(r) "
    "f = Cast<to=1>(m) y = Div(x, f)",
    "the shape of tiles": "many = Tile(n, n) m = Size(many) f = Cast<to=1>(m) y = Div(x, f)",
    "how many are not zero": "many = Expand(n, n) nz = NonZero(many) m = Size(nz) f = Cast<to=1>(m) "
    "y = Div(x, f)",
    "a part of the second output": "j = Concat<axis=0>(ones, n, n) p, q = Split<axis=0>(j, parted12) "
    "u = Unsqueeze(x, ones) e = Expand(u, q) y = ReduceSum<keepdims=0>(e, ones)",
    "none of them where there are many": "d = Sub(eights, n) t = Max(d, zeros) y = Slice(x, t, far9, zeros)",
    "never less than eight": "m = Max(n, eights) h = Concat<axis=0>(m, sixes) y = Expand(x, h)",
    "a range never less than eight": "m = Max(n, eights) a = Squeeze(m) r = Range(zero, a, one) "
    "f = Cast<to=1>(r) y = Unsqueeze(f, ones)",
}


@pytest.mark.parametrize("name", _WRONG_SIZES)
def test_what_is_another_with_fewer_rows_is_refused(name: str) -> None:
    def at(number: int) -> Graph:
        return row_graph(f"{_OF_THE_NUMBER} {_WRONG_SIZES[name]}", "float[n,6] x", shapes={"n": (number,)})

    with pytest.raises(ModelError, match=r"not proven independent|depends on how many rows"):
        independent_rows(at(8), {"x": 0}, at)


_STEPS = (
    "{o} = Add({a}, {b})",
    "{o} = Sub({a}, {b})",
    "{o} = Mul({a}, {b})",
    "{o} = Div({a}, {b})",
    "{o} = Mod({a}, {b})",
    "{o} = Max({a}, {b})",
    "{o} = Min({a}, {b})",
    "{o}t = Tile({a}, {b}) {o} = Shape({o}t)",
    "{o}e = Expand({a}, {b}) {o} = Shape({o}e)",
    "{o}c = Concat<axis=0>({a}, {b}) {o} = Slice({o}c, ones, twos)",
    "{o}c = Concat<axis=0>({a}, {b}) {o}s, {o} = Split<axis=0>({o}c, parted11)",
    "{o}q = Squeeze({a}) {o}r = Squeeze({b}) {o}s = Range({o}q, {o}r, one) {o} = Shape({o}s)",
    "{o}e = Equal({a}, {b}) {o} = Where({o}e, ones, {b})",
    "{o}c = Concat<axis=0>({a}, {b}) {o} = ReduceProd({o}c)",
)
_USES = (
    "h = Concat<axis=0>({a}, sixes) y = Expand(x, h)",
    "h = Concat<axis=0>({a}, sixes) y = Reshape(x, h)",
    "y = Slice(x, zeros, {a}, zeros)",
    "y = Slice(x, {a}, far9, zeros)",
    "y = Slice(x, zeros, {a}, ones)",
    "h = Concat<axis=0>({a}, ones) y = Tile(x, h)",
    "h = Concat<axis=0>({a}, sixes) c0 = Expand(c, h) y = Add(x, c0)",
    "f = Cast<to=1>({a}) y = Mul(x, f)",
    "q = Squeeze({a}) r = Range(zero, q, one) f = Cast<to=1>(r) u = Unsqueeze(f, ones) y = Add(x, u)",
    "h = Concat<axis=0>(zeros, zeros, zeros, {a}) y = Pad(x, h)",
)


def _arithmetic(seed: int) -> str:
    """Some steps of computing sizes, and what one of them is used for."""
    rng = np.random.default_rng(seed)
    known = ["n", "n", "ones", "twos", "eights", "zeros"]
    text = _OF_THE_NUMBER
    for number in range(rng.integers(1, 5)):
        a, b = rng.choice(known, 2)
        text += " " + rng.choice(_STEPS).format(a=a, b=b, o=f"o{number}")
        known += [f"o{number}"] * 3
    return f"{text} {rng.choice(_USES).format(a=known[-1])}"


def _answers(graph: Graph, x: Array) -> Array | None:
    try:
        return evaluate(graph, {"x": x})["y"]
    except (CollageError, ArithmeticError, ValueError):
        return None


def _of_sizes(seeds: range) -> int:
    """How many are proven; each answers to fewer rows among zeros what it answers to those alone."""
    proven, count = 0, 5
    for seed in seeds:

        def at(number: int, text: str = _arithmetic(seed)) -> Graph:
            return row_graph(text, "float[n,6] x", shapes={"n": (number,)})

        try:
            rows = independent_rows(at(count), {"x": 0}, at)
        except ModelError:
            continue
        proven += 1
        x = np.random.default_rng(seed).standard_normal((count, 6)).astype(np.float32)
        axis, width = rows.outputs.get("y", (0, 0))
        for few in range(1, count):
            padded = x * (np.arange(count) < few)[:, None].astype(np.float32)
            expected, answer = _answers(at(few), x[:few]), _answers(at(count), padded)
            if expected is not None and answer is not None:
                of_rows = np.take(answer, range(few * width), axis) if width else answer
                assert same(of_rows, expected), (seed, few, _arithmetic(seed))
    return proven


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_is_proven_of_sizes_holds() -> None:
    assert _of_sizes(range(150)) > 30


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_what_is_proven_of_many_sizes_holds() -> None:
    assert _of_sizes(range(150, 10_000)) > 700
