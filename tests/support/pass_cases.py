"""Random graphs to which passes apply, a strategy for each pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
from hypothesis import strategies as st
from onnx import numpy_helper

from collage_core.formats import Array
from collage_core.ir import Graph, from_model

__all__ = [
    "SHAPE",
    "Case",
    "branches",
    "chosen",
    "computed_shapes",
    "dequantised",
    "draws",
    "gelus",
    "identities",
    "moved",
    "qlinear",
    "scales",
    "several_outputs",
]

SHAPE = (2, 6, 4, 4)
"""Of x, which each of the graphs has as its input."""

_CONSTANTS = {
    "weight": (6, 6, 3, 3),
    "turned": (6, 3, 3, 3),
    **dict.fromkeys(("scale", "bias", "mean", "var"), (6,)),
    "column": (6, 1, 1),
    "one": (),
    "row": (1, 6, 1, 1),
}


@dataclass(frozen=True)
class Case:
    """Nodes that read x, float32[2,6,4,4], and what the model returns of what they compute."""

    opset: int
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: tuple[tuple[str, Any], ...] = ()

    def graph(self) -> Graph:
        text = f"""<ir_version: {8 if self.opset < 20 else 9}, opset_import: ["" : {self.opset}]>
        g (float[{",".join(map(str, SHAPE))}] x) => ({", ".join(f"float {v}" for v in self.outputs)})
        {{ {" ".join(self.lines)} }}"""
        model = onnx.parser.parse_model(text)
        random = np.random.default_rng(0)
        floats = {v: random.uniform(0.5, 2.0, shape).astype(np.float32) for v, shape in _CONSTANTS.items()}
        constants = {**floats, **{v: np.asarray(a) for v, a in self.integers}}
        model.graph.initializer.extend(numpy_helper.from_array(a, v) for v, a in constants.items())
        for output in model.graph.output:
            output.ClearField("type")
        return from_model(model)


_SEVERAL = {
    "a, b, c = Split <axis: int = 1> (x)": "abc",
    "a, b = TopK <axis: int = 1> (x, k)": "ab",
    "a, b = MaxPool <kernel_shape: ints = [2, 2]> (x)": "ab",
    "a, b = Dropout (x)": "ab",
    "a, b, c = DynamicQuantizeLinear (x)": "abc",
    "a = Relu (x) b = Neg (a) c = Abs (b)": "abc",
    "a = BatchNormalization (x, scale, bias, mean, var) b = Exp (x)": "ab",
}


@st.composite
def several_outputs(draw: st.DrawFn) -> Case:
    """Operators several of whose outputs nobody reads."""
    text = draw(st.sampled_from(sorted(_SEVERAL)))
    wanted = draw(st.lists(st.sampled_from(_SEVERAL[text]), min_size=1, unique=True))
    read = draw(st.sampled_from(_SEVERAL[text]))
    lines = (text, f"y = Identity ({read})", "dead = Sqrt (y)" if read == "a" and "Top" in text else "")
    constants = (("k", np.array([3])),)
    return Case(13, lines, ("y", *wanted), constants)


@st.composite
def computed_shapes(draw: st.DrawFn) -> Case:
    """Shapes, axes and ranges that are computed from the shapes of what is known."""
    axis = draw(st.integers(0, 3))
    lines = (
        "shape = Shape (x)",
        f"size = Gather <axis: int = 0> (shape, at{axis})",
        draw(
            st.sampled_from(
                [
                    "whole = Concat <axis: int = 0> (size, rest) y = Reshape (x, whole)",
                    "whole = Mul (size, two) y = Expand (one, whole)",
                    "n = Squeeze (size) y = Range (zero, n, step)",
                    "rank = Size (shape) all = Range (zero, rank, step) y = ReduceSum (x, all)",
                    "whole = Div (shape, shape) t = Tile (x, whole) y = Relu (t)",
                    "z = ConstantOfShape (size) d = Cast <to: int = 7> (size) y = Add (z, z)",
                ]
            )
        ),
    )
    integers = {f"at{a}": [a] for a in range(4)} | {"rest": [-1], "two": [2], "zero": 0, "step": 1}
    return Case(20, lines, ("y",), tuple((v, np.array(a, np.int64)) for v, a in integers.items()))


@st.composite
def identities(draw: st.DrawFn) -> Case:
    """Chains of what does nothing, some of whose values are returned."""
    does_nothing = ("Identity ({})", "Dropout ({})", "Cast <to: int = 1> ({})", "Relu ({})")
    chain = draw(st.lists(st.sampled_from(does_nothing), min_size=1, max_size=5))
    lines = [f"v{k} = {text.format(f'v{k - 1}' if k else 'x')}" for k, text in enumerate(chain)]
    returned = draw(st.lists(st.sampled_from([f"v{k}" for k in range(len(chain))]), min_size=1, unique=True))
    return Case(20, (*lines, f"y = Add (v0, v{len(chain) - 1})"), ("y", *returned))


@st.composite
def chosen(draw: st.DrawFn) -> Case:
    """Parts of x that its own values choose, brought to a known shape: one, or two that read each other."""
    chains = {
        "some": ("f = Reshape (x, flat)", "p = Greater (f, none)", "some = Compress (f, p)"),
        "places": ("n = NonZero (x)", "places = Cast <to: int = 1> (n)"),
        "parts": (
            "s = SplitToSequence <axis: int = 1> (x)",
            "parts = ConcatFromSequence <axis: int = 0> (s)",
        ),
    }
    names = draw(st.lists(st.sampled_from([*chains]), min_size=1, max_size=3, unique=True))
    lines = [line for name in names for line in chains[name]]
    for k, name in enumerate(names):
        before = f"t{k - 1}" if k else "one"
        lines += [f"u{k} = {draw(st.sampled_from(('Mul', 'Add')))} ({name}, {before})"]
        lines += [f"t{k} = ReduceSum <keepdims: int = 0> (u{k})"]
    integers = (("flat", np.array([-1])), ("none", np.array(0.0, np.float32)))
    return Case(20, (*lines, f"y = Mul (x, t{len(names) - 1})"), ("y", "t0"), integers)


@st.composite
def scales(draw: st.DrawFn) -> Case:
    """Scales and shifts after what can take them, and where it cannot."""
    hosts = (
        "v = Conv (x, weight)",
        "v = Conv <pads: ints = [1, 1, 1, 1]> (x, weight, bias)",
        "v = ConvTranspose <group: int = 2> (x, turned)",
        "v = BatchNormalization <epsilon: float = 1e-3> (x, scale, bias, mean, var)",
        "v = Relu (x)",
    )
    arithmetic = (
        "Mul ({}, column)",
        "Add (row, {})",
        "Sub ({}, one)",
        "Sub (column, {})",
        "Div ({}, column)",
        reciprocal := "Div (column, {})",
    )
    norm = "BatchNormalization ({}, scale, bias, mean, var)"
    steps = draw(st.lists(st.sampled_from((*arithmetic, norm)), min_size=1, max_size=3))
    lines = [f"v{k} = {text.format(f'v{k - 1}' if k else 'v')}" for k, text in enumerate(steps)]
    host = draw(st.sampled_from(hosts))
    last = f"v{len(steps) - 1}"
    returned = draw(st.sampled_from([(), ("v",), ("v0",)]))
    # Next to zero a reciprocal makes much of what was rounded otherwise; Tanh takes it back.
    end = "Tanh" if reciprocal in steps else "Relu"
    return Case(20, (host, *lines, f"y = {end} ({last})"), ("y", *returned))


@st.composite
def gelus(draw: st.DrawFn) -> Case:
    """The erf form, its factors in any order, and forms that are nearly it."""
    root = draw(
        st.sampled_from(
            ["s = Div (x, root)", "s = Mul (x, inverse)", "s = Mul (inverse, x)", "s = Div (x, one)"]
        )
    )
    rest = draw(
        st.sampled_from(
            [
                "p = Mul (x, e1) y = Mul (p, half)",
                "h = Mul (x, half) y = Mul (h, e1)",
                "p = Mul (e1, half) y = Mul (x, p)",
                "h = Mul (half, x) y = Mul (e1, h)",
                "h = Mul (half, x) y = Sub (e1, h)",
                "p = Mul (x, e1) y = Div (p, half)",
            ]
        )
    )
    returned = draw(st.sampled_from([(), ("e",), ("e1",)]))
    numbers = {"root": 2**0.5, "inverse": 0.5**0.5, "half": 0.5, "unit": 1.0}
    constants = tuple((v, np.array(a, np.float32)) for v, a in numbers.items())
    return Case(20, (root, "e = Erf (s)", "e1 = Add (e, unit)", rest), ("y", *returned), constants)


_BODIES = (
    "v = Relu (x)",
    "v = Add (x, one)",
    "s = Mul (x, x) v = Neg (s)",
    "v = Sub (x, one)",
    "v = Identity (x)",
)


@st.composite
def branches(draw: st.DrawFn) -> Case:
    """An If whose condition is known, or is not; what follows may read it twice."""
    then, otherwise = (draw(st.sampled_from(_BODIES)) for _ in range(2))
    condition = draw(st.sampled_from(["known", "computed"]))
    lines = (
        "h = Relu (x)",
        "n = Size (h) computed = Greater (n, limit)",
        f"b = If ({condition}) <then_branch = t () => (float[2,6,4,4] v) {{ {then} }}, "
        f"else_branch = e () => (float[2,6,4,4] v) {{ {otherwise} }}>",
        draw(st.sampled_from(["y = Identity (b)", "y = Add (b, b)", "v = Neg (h) y = Add (v, b)"])),
    )
    limit, known = draw(st.sampled_from([0, 10**6])), draw(st.booleans())
    constants = (("limit", np.array(limit)), ("known", np.array(known)))
    return Case(20, lines, draw(st.sampled_from([("y",), ("y", "b")])), constants)


@st.composite
def draws(draw: st.DrawFn) -> Case:
    """Random operators with a seed and without, beside what does not depend on them."""
    drawn = draw(
        st.sampled_from(
            [
                "r = RandomUniformLike <low: float = 2.0, high: float = 3.0{}> (x)",
                "r = RandomNormalLike <scale: float = 0.5{}> (x)",
                "p = Sigmoid (x) r = Bernoulli <dtype: int = 1{}> (p)",
                "r = RandomUniform <shape: ints = [2, 6, 4, 4]{}> ()",
            ]
        )
    )
    seed = draw(st.sampled_from(["", ", seed: float = 3.0"]))
    lines = (drawn.format(seed), "y = Neg (x)", draw(st.sampled_from(["z = Add (x, r)", "z = Identity (r)"])))
    return Case(20, lines, ("y", "z"))


@st.composite
def dequantised(draw: st.DrawFn) -> Case:
    """A dequantised value that several read, or one, or nobody but the graph."""
    readers = draw(
        st.sampled_from(
            [
                "y = Relu (d) z = Neg (d)",
                "y = Add (d, d) z = Mul (y, d)",
                "y = Add (d, d) z = Neg (y)",
                "y = Identity (d) z = Sub (y, d)",
                "b = Sigmoid (d) y = Mul (d, b) z = Max (d, y, d)",
            ]
        )
    )
    lines = ("q = QuantizeLinear (x, one)", "d = DequantizeLinear (q, one)", readers)
    return Case(20, lines, draw(st.sampled_from([("y", "z"), ("z", "d"), ("q", "z")])))


@st.composite
def moved(draw: st.DrawFn) -> Case:
    """Between two of one scale, or of two; what is moved may be read in between as well."""
    mover = draw(st.sampled_from(["Flatten", "Transpose", "Transpose <perm: ints = [0, 2, 3, 1]>", "Neg"]))
    lines = (
        "q = QuantizeLinear (x, one)",
        f"d = DequantizeLinear (q, one) m = {mover} (d)",
        f"p = QuantizeLinear (m, {draw(st.sampled_from(['one', 'one', 'two']))})",
        "y = DequantizeLinear (p, one)",
    )
    return Case(20, lines, draw(st.sampled_from([("y",), ("y", "p"), ("y", "m"), ("y", "d")])), _TWO)


_TWO = (("two", np.array(2, np.float32)),)


@st.composite
def qlinear(draw: st.DrawFn) -> Case:
    """Numbers of both signs and none, one step or one for each channel or row, biases, computed steps."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    # ONNX Runtime has no others.
    first, second = draw(st.sampled_from([("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")]))
    is_conv = draw(st.booleans())
    channels = (6,) if draw(st.booleans()) else draw(st.sampled_from([(), (1,)]))
    second = "int8" if channels == (6,) else second
    # Signed ones of seven bits: with more, sums of ONNX Runtime's saturate on older processors.
    weights = random.integers(
        *((-63, 64) if second == "int8" else (0, 255)), (6, 6, 3, 3) if is_conv else (4, 6)
    )

    def zero(dtype: str, shape: tuple[int, ...] = ()) -> Array:
        return np.full(shape, 0 if dtype == "int8" else draw(st.sampled_from([0, 128, 101])), dtype)

    constants: dict[str, Array] = {
        "xs": np.array(draw(st.sampled_from([0.02, 0.05])), np.float32),
        "xz": zero(first),
        "w": weights.astype(second),
        "ws": random.uniform(0.001, 0.02, channels).astype(np.float32),
        "wz": zero(second, channels),
        "ys": np.array(draw(st.sampled_from([0.03, 0.5])), np.float32),
        "yz": zero(first),
        "b": random.integers(-9999, 9999, 6).astype(np.int32),
    }
    operands = f"q, {draw(st.sampled_from(['xs', 'xs', 'xs', 's']))}, xz, w, ws, wz, ys, yz"
    bias = ", b" if is_conv and draw(st.booleans()) else ""
    pads = draw(st.sampled_from(["", "<pads: ints = [1, 1, 1, 1]>", '<auto_pad: string = "SAME_UPPER">']))
    operator = f"QLinearConv {pads}" if is_conv else "QLinearMatMul"
    lines = (
        "q = QuantizeLinear (x, xs, xz)",
        "s = Abs (xs)",
        f"p = {operator} ({operands}{bias})",
        "y = DequantizeLinear (p, ys, yz)",
    )
    return Case(draw(st.sampled_from([13, 20, 21])), lines, ("y", "p"), tuple(constants.items()))
