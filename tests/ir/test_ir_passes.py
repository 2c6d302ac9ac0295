"""Every pass, on random graphs to which it applies: before and after, two evaluators answer the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from collage_core.costs.check import compare, standards
from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph, Subgraph, from_model, to_model
from collage_core.ir.passes import PASSES, Pass, normalise
from collage_core.reference.evaluator import evaluate

_SHAPE = (2, 6, 4, 4)
_PASSES = {p.name: p for p in PASSES}
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
        g (float[{",".join(map(str, _SHAPE))}] x) => ({", ".join(f"float {v}" for v in self.outputs)})
        {{ {" ".join(self.lines)} }}"""
        model = onnx.parser.parse_model(text)
        random = np.random.default_rng(0)
        floats = {v: random.uniform(0.5, 2.0, shape).astype(np.float32) for v, shape in _CONSTANTS.items()}
        constants = {**floats, **{v: np.asarray(a) for v, a in self.integers}}
        model.graph.initializer.extend(numpy_helper.from_array(a, v) for v, a in constants.items())
        for output in model.graph.output:
            output.ClearField("type")
        return from_model(model)


def _runtime(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """What a runtime answers that shares nothing with the reference, without optimisations of its own."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = to_model(graph).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return dict(zip(graph.outputs, session.run(list(graph.outputs), inputs), strict=True))


def _wrong(before: Graph, after: Graph) -> str | None:
    """Where the two differ, on either evaluator."""
    inputs = {"x": np.random.default_rng(1).standard_normal(_SHAPE, dtype=np.float32)}
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        return f"{before.inputs} -> {before.outputs} became {after.inputs} -> {after.outputs}"
    held_to = standards(before)
    for run in (evaluate, _runtime):
        expected, found = run(before, inputs), run(after, inputs)
        for name in before.outputs:
            _, refusal = compare(name, found[name], expected[name], held_to.get(name))
            if refusal is not None:
                return f"{run.__name__}: {refusal.reason}"
    return None


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
def _several_outputs(draw: st.DrawFn) -> Case:
    """Operators several of whose outputs nobody reads."""
    text = draw(st.sampled_from(sorted(_SEVERAL)))
    wanted = draw(st.lists(st.sampled_from(_SEVERAL[text]), min_size=1, unique=True))
    read = draw(st.sampled_from(_SEVERAL[text]))
    lines = (text, f"y = Identity ({read})", "dead = Sqrt (y)" if read == "a" and "Top" in text else "")
    constants = (("k", np.array([3])),)
    return Case(13, lines, ("y", *wanted), constants)


_OLD: Sequence[tuple[int, int, str]] = (
    *(
        (7, 12, f"y = {op} <axis: int = {axis}> (x)")
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in (1, 2)
    ),
    (7, 12, "y = Softmax (x)"),
    (7, 12, "s = Unsqueeze <axes: ints = [0, 3]> (x) y = Squeeze <axes: ints = [0]> (s)"),
    *(
        (7, 12 if op == "Sum" else 17, f"y = Reduce{op} <axes: ints = [1, 2], keepdims: int = {keep}> (x)")
        for op in ("Sum", "Mean", "Max", "Min", "L1", "L2", "Prod", "SumSquare", "LogSumExp")
        for keep in (0, 1)
    ),
    (7, 17, "y = ReduceMean <keepdims: int = 0> (x)"),
    (7, 10, "y = Clip <min: float = -0.5, max: float = 0.25> (x)"),
    (7, 10, "y = Clip <max: float = 0.25> (x)"),
    (7, 10, "y = Pad <pads: ints = [0, 0, 1, 2, 0, 0, 0, 1], value: float = 1.5> (x)"),
    (7, 10, 'y = Pad <pads: ints = [0, 0, 1, 2, 0, 0, 0, 1], mode: string = "reflect"> (x)'),
    (7, 9, "y = Slice <axes: ints = [1, 3], starts: ints = [1, -3], ends: ints = [5, 9]> (x)"),
    (7, 9, "y, i = TopK <k: int = 2, axis: int = 1> (x)"),
    (7, 11, "y = Dropout <ratio: float = 0.5> (x)"),
    (7, 13, "y = BatchNormalization <epsilon: float = 1e-3> (x, scale, bias, mean, var)"),
    (7, 12, "y, z = Split <axis: int = 1, split: ints = [2, 4]> (x)"),
    (7, 17, "y, z = Split <axis: int = 1> (x)"),
    (13, 17, "y, z, u = Split <axis: int = 1> (x)"),
    (7, 8, 'y = Upsample <scales: floats = [1.0, 1.0, 2.0, 3.0], mode: string = "nearest"> (x)'),
    (7, 8, 'y = Upsample <scales: floats = [1.0, 1.0, 2.0, 3.0], mode: string = "linear"> (x)'),
    (10, 10, 'y = Resize <mode: string = "nearest"> (x, scales)'),
    (10, 10, 'y = Resize <mode: string = "linear"> (x, scales)'),
    (11, 18, 'y = Resize <mode: string = "linear"> (x, whole, scales)'),
    (7, 12, "f = Flatten (x) y = Gemm <transB: int = 1> (f, f, one)"),
    (7, 12, "y = ArgMax <axis: int = 1, keepdims: int = 0> (x)"),
    (9, 10, "y = Scatter <axis: int = 1> (x, places, x)"),
    (7, 18, "y = AveragePool <kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1]> (x)"),
    (10, 18, "y = AveragePool <kernel_shape: ints = [3, 3], strides: ints = [2, 2], ceil_mode: int = 1> (x)"),
    (7, 18, "y = LRN <size: int = 3, alpha: float = 0.5> (x)"),
    (7, 19, "y = InstanceNormalization (x, scale, bias)"),
    (9, 19, "y = MeanVarianceNormalization (x)"),
    (7, 19, "y = PRelu (x, column)"),
    (7, 19, "y = Gather <axis: int = 1> (x, places1)"),
    (7, 17, "y = LpPool <kernel_shape: ints = [2, 2]> (x)"),
    (10, 15, "y = RoiAlign <output_height: int = 2, output_width: int = 2> (x, rois, images)"),
    (16, 19, 'y = GridSample <mode: string = "bilinear", padding_mode: string = "border"> (x, grid)'),
    (16, 19, 'y = GridSample <mode: string = "nearest"> (x, grid)'),
    (9, 19, "o = ArgMax <axis: int = 1, keepdims: int = 0> (x) y = OneHot <axis: int = 1> (o, six, onoff)"),
    (7, 19, "y = SpaceToDepth <blocksize: int = 2> (x)"),
    (10, 19, "y = QuantizeLinear (x, step)"),
    (10, 19, "q = QuantizeLinear (x, step) y = DequantizeLinear (q, step)"),
    (11, 19, "y = CumSum (x, first)"),
    (11, 19, "y = Clip (x, , step)"),
    (11, 19, "p = Abs (x) y = Mod <fmod: int = 1> (p, step)"),
    (
        7,
        12,
        "f = Flatten (x) t = Unsqueeze <axes: ints = [0]> (f) y, h = RNN <hidden_size: int = 2> (t, rw, rr)",
    ),
    (7, 12, "y = Concat <axis: int = 2> (x, x)"),
    (7, 20, "y = Reshape (x, rows)"),
)


_RANDOM = np.random.default_rng(2)
_PLACES = _RANDOM.permuted(np.broadcast_to(np.arange(6)[:, None, None], _SHAPE).copy(), axis=1)
_OLD_CONSTANTS: tuple[tuple[str, Any], ...] = (
    ("scales", np.array([1, 1, 2, 1.5], np.float32)),
    ("whole", np.zeros(8, np.float32)),
    ("places", _PLACES),
    ("places1", np.array([[4, 0], [1, 1]])),
    ("rois", np.array([[0, 0, 3, 3], [1.5, 0.5, 2.5, 4]], np.float32)),
    ("images", np.array([1, 0])),
    ("grid", _RANDOM.uniform(-1.2, 1.2, (2, 3, 5, 2)).astype(np.float32)),
    ("six", np.array(6)),
    ("onoff", np.array([-1, 2], np.float32)),
    ("step", np.array(0.25, np.float32)),
    ("first", np.array(1)),
    ("rw", _RANDOM.uniform(-1, 1, (1, 2, 96)).astype(np.float32)),
    ("rr", _RANDOM.uniform(-1, 1, (1, 2, 2)).astype(np.float32)),
    ("rows", np.array([0, -1, 8])),
)


@st.composite
def _old_operators(draw: st.DrawFn) -> Case:
    """Operators in the forms that they had in older opsets."""
    opset = draw(st.integers(7, 19))
    *_, text = draw(st.sampled_from([o for o in _OLD if o[0] <= opset <= o[1]]))
    outputs = ("y", "z") if "z =" in text else ("y",)
    return Case(opset, (text,), outputs, _OLD_CONSTANTS)


@st.composite
def _computed_shapes(draw: st.DrawFn) -> Case:
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
def _identities(draw: st.DrawFn) -> Case:
    """Chains of what does nothing, some of whose values are returned."""
    does_nothing = ("Identity ({})", "Dropout ({})", "Cast <to: int = 1> ({})", "Relu ({})")
    chain = draw(st.lists(st.sampled_from(does_nothing), min_size=1, max_size=5))
    lines = [f"v{k} = {text.format(f'v{k - 1}' if k else 'x')}" for k, text in enumerate(chain)]
    returned = draw(st.lists(st.sampled_from([f"v{k}" for k in range(len(chain))]), min_size=1, unique=True))
    return Case(20, (*lines, f"y = Add (v0, v{len(chain) - 1})"), ("y", *returned))


@st.composite
def _scales(draw: st.DrawFn) -> Case:
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
def _gelus(draw: st.DrawFn) -> Case:
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
def _branches(draw: st.DrawFn) -> Case:
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
def _draws(draw: st.DrawFn) -> Case:
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
def _dequantised(draw: st.DrawFn) -> Case:
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
def _moved(draw: st.DrawFn) -> Case:
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
def _qlinear(draw: st.DrawFn) -> Case:
    """Numbers of both signs and none, one step or one for each channel or row, biases, computed steps."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    # ONNX Runtime has no others.
    first, second = draw(st.sampled_from([("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")]))
    is_conv = draw(st.booleans())
    channels = (6,) if draw(st.booleans()) else draw(st.sampled_from([(), (1,)]))
    second = "int8" if channels == (6,) else second
    weights = random.integers(
        *((-127, 127) if second == "int8" else (0, 255)), (6, 6, 3, 3) if is_conv else (4, 6)
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


_APPLIES: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "dead-code": _several_outputs,
    "upgrade-opset": _old_operators,
    "inline-constant-if": _branches,
    "seed-random": _draws,
    "fold-constants": _computed_shapes,
    "drop-identities": _identities,
    "fold-scale-shift": _scales,
    "recompose-gelu": _gelus,
    "state-qlinear": _qlinear,
    "move-quantised": _moved,
    "dequantise-for-each": _dequantised,
}


def test_every_pass_has_graphs_on_which_it_applies() -> None:
    assert set(_APPLIES) == set(_PASSES)


@pytest.mark.parametrize("name", _APPLIES)
def test_a_pass_keeps_the_answer(name: str) -> None:
    changed = 0

    @settings(max_examples=60)
    @given(_APPLIES[name]())
    def run(case: Case) -> None:
        nonlocal changed
        before = case.graph()
        after = _PASSES[name].apply(before)
        changed += Subgraph(before, before.all_nodes).key != Subgraph(after, after.all_nodes).key
        assert _wrong(before, after) is None, f"{_wrong(before, after)}\n{before}\n{after}"

    run()
    assert changed >= 5, "a property of graphs that it does not change says nothing"


@settings(max_examples=40)
@given(st.one_of([strategy() for strategy in _APPLIES.values()]))
def test_all_passes_together_keep_the_answer(case: Case) -> None:
    before = graph = case.graph()
    for p in PASSES:
        graph = p.apply(graph)
    assert _wrong(before, graph) is None, f"{_wrong(before, graph)}\n{before}\n{graph}"


@pytest.mark.parametrize("opset", [15, 22])
def test_what_is_folded_keeps_its_type(opset: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]> g () => (int32 y) <int32 c = {{-2}}>
        {{ s = ReduceSumSquare <keepdims: int = 0> (c) y = Neg (s) }}"""
    before = from_model(onnx.parser.parse_model(text))
    after = _PASSES["fold-constants"].apply(before)
    assert not after.nodes
    assert after.constants["y"].dtype == np.int32 == evaluate(before, {})["y"].dtype
    assert after.constants["y"] == -4


def test_a_wrong_pass_would_be_found() -> None:
    def drop(graph: Graph) -> Graph:
        (split,) = graph.nodes[:1]
        first = Graph(
            graph.name,
            [split.__class__(split.id, split.name, split.op_type, split.inputs, ("a",), split.attributes)],
            graph.values,
            graph.inputs,
            ["a"],
            graph.constants,
            graph.opsets,
        )
        return first

    before = Case(13, ("a, b, c = Split <axis: int = 1> (x)",), ("a",)).graph()
    try:
        reason = _wrong(before, Pass("drop", "forgets outputs", drop).apply(before))
    except CollageError as error:
        reason = str(error)
    assert reason is not None
    assert "shape" in reason


def test_a_training_normalisation_of_an_old_opset_keeps_its_outputs() -> None:
    text = """<ir_version: 4, opset_import: ["" : 9]> 
        g (float[2,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2,3] y)
        { y, om, ov, sm, sv = BatchNormalization (x, s, b, m, v) }"""
    before = from_model(onnx.parser.parse_model(text))
    random = np.random.default_rng(0)
    inputs = {v: random.uniform(0.5, 2, before.shape_of(v)).astype(np.float32) for v in before.inputs}
    after = normalise(before)
    assert len(after.nodes[0].outputs) == 5
    np.testing.assert_array_equal(evaluate(after, inputs)["y"], evaluate(before, inputs)["y"])
    np.testing.assert_allclose(
        evaluate(before, {**inputs, "m": inputs["m"] + 9})["y"], evaluate(before, inputs)["y"]
    )


@pytest.mark.parametrize("returned", ["y", "y, mean", "variance"])
def test_a_training_normalisation_keeps_its_outputs(returned: str) -> None:
    """ONNX allows no fewer, and the stored graph is checked."""
    shapes = {"y": "2,3", "mean": "3", "variance": "3"}
    outputs = ", ".join(f"float[{shapes[v]}] {v}" for v in returned.split(", "))
    text = f"""<ir_version: 8, opset_import: ["" : 15]>
        g (float[2,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => ({outputs})
        {{ y, mean, variance = BatchNormalization <training_mode: int = 1> (x, s, b, m, v) }}"""
    before = from_model(onnx.parser.parse_model(text))
    random = np.random.default_rng(0)
    inputs = {v: random.uniform(0.5, 2, before.shape_of(v)).astype(np.float32) for v in before.inputs}
    after = normalise(before)
    assert len(after.nodes[0].outputs) == 3
    onnx.checker.check_model(to_model(after), full_check=True)
    for name, array in evaluate(before, inputs).items():
        np.testing.assert_array_equal(evaluate(after, inputs)[name], array)
