"""Comparing a kernel's answer with the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from collage_core.errors import ModelError, Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Node, Operator, Subgraph
from collage_core.ir.bodies import bodies_of
from collage_core.ir.randomness import Drawn, random_values
from collage_core.reference import evaluate_nodes
from collage_core.reference.evaluator import A_BIT_OFF, A_STEP_OFF, QUANTISING_OPS, is_sum

__all__ = [
    "Difference",
    "Quantised",
    "Rounded",
    "Standard",
    "Within",
    "compare",
    "compare_all",
    "largest_error",
    "rms_error",
    "rounded_answers",
    "standards",
    "tolerance",
]


@dataclass(frozen=True, slots=True)
class Rounded:
    """A float that is as precise as `dtype`, the narrowest type on its way. answers: from a way of rounding
    what the reference answers, by output, if it rounds as well; {} where it cannot tell. Asked only where the
    type's tolerance is not enough. way: that type where values were stored in it that the graph has wider,
    else `A_BIT_OFF`.
    """

    dtype: str
    answers: Callable[[str], Mapping[str, Array]]
    way: str


@dataclass(frozen=True, slots=True)
class Quantised:
    """What is quantised, or computed of that. dtype: of the floats it was computed in. depth: so many times
    it was quantised on its way. answers: as of `Rounded`, for `A_STEP_OFF`.

    A number that lies between two steps becomes either, as a sum's order will have it: what was quantised
    once may be a step off. What is computed of it, or quantised again, may differ by as much as it does on
    the reference where every fourth number is a step off; and at its worst element by twice that.
    """

    dtype: str
    depth: int
    answers: Callable[[str], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Within:
    """An error that somebody allows, max|difference| / max|expected|, whatever it comes from."""

    most: float


Standard = Drawn | Quantised | Rounded | Within | str
"""What a value is held to: the legal numbers, if it depends on random ones; else the float type whose
tolerance counts, or what rounding or quantising makes of it, or what is allowed.
"""

_BESIDE_ROUNDING = 2.0
"""So many times the error that rounding alone makes may a rounded answer have, at its worst element and on
the whole: another order of the same sums, or other places to round at, make another error of that size.
"""
_FEWEST_SUMS = 8
"""One after the other: what is made of fewer is a formula, in which a fault could hide, and no network."""
_MOST_ROUNDING = 0.25
"""Where rounding alone makes more than that of the whole (RMS over RMS), nothing is allowed for it: it leaves
too little of the answer to tell a right one by.
"""
_MOST_QUANTISING = 0.5
"""The same of steps: networks are quantised that lose as much by that."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far outputs are from the expected ones, the worst of them: max|difference| (absolute) and
    max|difference| / max|expected| (relative), None where they cannot be told; `reason` says why they are
    wrong, None when they are right. amplifies: whether some are right for what the graph makes of rounding,
    beyond their type's tolerance.
    """

    absolute: float | None
    relative: float | None
    reason: str | None
    amplifies: bool = False


_STEPPED = frozenset({"int4", "int8", "int16", "uint4", "uint8", "uint16"})
_TOLERANCES = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}


def tolerance(dtype: str) -> float:
    """Largest error at which numbers of that dtype still count as right; 0 (exact) for all that are not
    floats.
    """
    return _TOLERANCES.get(dtype, 0.0)


def _none(way: str) -> Mapping[str, Array]:
    """No answers. By name, as what is held to them travels between processes."""
    return {}


def standards(
    graph: Graph,
    nodes: Iterable[Node] | None = None,
    rounded_to: Collection[str] = (),
    answers: Callable[[str], Mapping[str, Array]] | None = None,
) -> dict[str, Standard]:
    """By name, what the floats and the random values that `nodes` compute (in topological order; all of the
    graph's where None) are held to. A float counts by the least precise type that it was computed in there:
    a float32 that is cast to float64 in the end is no more precise for that. So does one of the types
    `rounded_to`, in which something is stored on the way; then it is held to what that alone does as well
    (`answers`: see `Rounded`). So is what a whole graph computes by many sums of sums. What is quantised on
    the way may be a step off (`Quantised`).
    """
    nodes = graph.nodes if nodes is None else tuple(nodes)
    is_whole = len(nodes) == len(graph.nodes)
    found: dict[str, Standard] = {}
    for node in nodes:
        inside = [value.type.dtype for body in bodies_of(node).values() for value in body.values.values()]
        if not node.domain:  # what ONNX has it computed in, whatever it is given
            stated = map(Operator(graph, node).attrs.get, ("softmax_precision", "stash_type"))
            inside += [tensor_dtype_to_np_dtype(t).name for t in stated if t]
        before = [s for v in node.inputs if isinstance(s := found.get(v), str)]
        for v in filter(None, node.outputs):
            # Through whole numbers (shapes, masks, indices) nothing becomes less precise.
            if (dtype := graph.type_of(v).dtype) in _TOLERANCES:
                found[v] = max((dtype, *inside, *before, *rounded_to), key=tolerance)
    if answers is not None and rounded_to:
        found = {v: Rounded(s, answers, s) if isinstance(s, str) else s for v, s in found.items()}
    elif answers is not None and is_whole:
        deep = {v for v, depth in _summed(graph, nodes).items() if depth >= _FEWEST_SUMS}
        found = {
            v: Rounded(s, answers, A_BIT_OFF) if v in deep and isinstance(s, str) else s
            for v, s in found.items()
        }
    for v, depth in _quantised(graph, nodes).items():
        held_to = found.get(v, "float32")
        dtype = held_to.dtype if isinstance(held_to, Rounded) else str(held_to)
        found[v] = Quantised(dtype, depth, answers or _none)
    return found | {
        v: _with_rounded_ends(drawn, rounded_to) for v, drawn in random_values(graph, nodes).items()
    }


def _summed(graph: Graph, nodes: Iterable[Node]) -> dict[str, int]:
    """By value, of how many sums one after the other it is made."""
    found: dict[str, int] = {}
    for node in nodes:
        depth = max((found.get(v, 0) for v in node.inputs), default=0) + is_sum(graph, node)
        found.update((v, depth) for v in filter(None, node.outputs))
    return found


def _quantised(graph: Graph, nodes: Iterable[Node]) -> dict[str, int]:
    """By value, how often it was quantised on its way. Shapes, indices and conditions are exact: only floats
    count, and whole numbers of up to 16 bits.
    """
    found: dict[str, int] = {}
    for node in nodes:
        quantises = node.op_type in QUANTISING_OPS and not node.domain
        depth = max((found.get(v, 0) for v in node.inputs), default=0) + quantises
        for v in filter(None, node.outputs):
            dtype = graph.type_of(v).dtype
            if depth and (dtype in _TOLERANCES or dtype in _STEPPED):
                found[v] = depth
    return found


def rounded_answers(
    subgraph: Subgraph, inputs: Mapping[str, Array], exact: Collection[str], dtype: str
) -> dict[str, Array]:
    """What the reference makes of the inputs if it rounds all but `exact` values to `dtype`, which may be
    `A_STEP_OFF` or `A_BIT_OFF`, by output.
    {} where it cannot: a shape that is computed may be another then.
    """
    try:
        return evaluate_nodes(subgraph, inputs, dtype, exact)
    except ModelError:
        return {}


def _with_rounded_ends(drawn: Drawn, dtypes: Collection[str]) -> Drawn:
    """What the ends may have been rounded to is legal, too."""
    ends = [(drawn.least, drawn.most), *((_as(t, drawn.least), _as(t, drawn.most)) for t in dtypes)]
    return replace(drawn, least=min(a for a, _ in ends), most=max(b for _, b in ends))


def _as(dtype: str, number: float) -> float:
    return float(np.float64(number).astype(np.dtype(dtype)))


def compare(
    name: str, result: Array, expected: Array, standard: Standard | None = None
) -> tuple[float | None, Refusal | None]:
    """(error, why it is wrong or None) of a result against the reference's.

    error: max|difference| / max|reference| over the elements where the reference is finite (max|difference|
    where it is all zero); None where it cannot be told. NaN and infinity must be where the reference has
    them. The tolerance is that of the reference's dtype, unless `standard` says another. What was rounded may
    be off by more, if it is no more than twice what rounding alone makes. What depends on
    random numbers is only to be legal, and to have the reference's dtype; what is so has the error 0.
    """
    if result.shape != expected.shape:
        return None, Refusal(f"output {name!r} has shape {result.shape}, the reference's {expected.shape}")
    if isinstance(standard, Drawn):
        refusal = _illegal(name, result, expected, standard)
        return 0.0 if refusal is None else None, refusal
    dtype = str(expected.dtype)
    if result.dtype != expected.dtype:
        return None, Refusal(f"output {name!r} is {result.dtype}, the reference's {dtype}")
    held_to = standard.dtype if isinstance(standard, Rounded | Quantised) else standard or dtype
    allowed = held_to.most if isinstance(held_to, Within) else tolerance(held_to)
    if dtype not in _TOLERANCES and expected.dtype.kind != "c":
        if isinstance(standard, Quantised) and dtype in _STEPPED:
            return _compare_steps(name, result.astype(np.float64), expected.astype(np.float64), standard)
        equal = bool(np.array_equal(result, expected))
        error = 0.0 if equal else _error(result.astype(np.float64), expected.astype(np.float64))
        return error, None if equal else Refusal(f"output {name!r} ({dtype}) differs from the reference's")
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = result.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return None, Refusal(
            f"output {name!r} has NaN or infinity where the reference has none, or the reverse"
        )
    error = _error(a[finite], b[finite])
    if error <= allowed:
        return error, None
    if isinstance(held_to, Within):
        return error, Refusal(
            f"output {name!r} has error {error:.2g}, more than the {allowed:g} that is allowed"
        )
    why = f"more than {allowed:g} for {held_to}"
    way = standard.way if isinstance(standard, Rounded) else A_STEP_OFF
    known = standard.answers(way) if isinstance(standard, Rounded | Quantised) else {}
    if (answer := _comparable(known.get(name), expected)) is not None:
        beside = _beside_rounding(a[finite], b[finite], answer.astype(wide)[finite], way)
        if beside is None:
            return error, None
        why += f", and {beside}"
    return error, Refusal(f"output {name!r} has error {error:.2g}, {why}")


def _compare_steps(
    name: str, result: Array, expected: Array, standard: Quantised
) -> tuple[float | None, Refusal | None]:
    """As `compare`, of quantised numbers."""
    steps = float(np.max(np.abs(result - expected), initial=0.0))
    error = _error(result, expected) if steps else 0.0
    if steps <= 1.0:
        return error, None
    why = "where it is quantised once"
    if standard.depth > 1:
        answer = _comparable(standard.answers(A_STEP_OFF).get(name), expected)
        beside = "" if answer is None else _beside_rounding(result, expected, answer, A_STEP_OFF)
        if beside is None:
            return error, None
        why = beside or "and nobody knows what quantising alone does"
    return error, Refusal(f"output {name!r} is {steps:g} steps from the reference's, {why}")


def _comparable(answer: Array | None, expected: Array) -> Array | None:
    """None where rounding leaves another number of what is chosen by values."""
    return answer if answer is not None and answer.shape == expected.shape else None


def _beside_rounding(result: Array, expected: Array, rounded: Array, way: str) -> str | None:
    """Why an answer is further off than rounding alone (`rounded`) explains; None where it is not. A few
    elements that rounding turns over (a threshold's, a maximum's) explain a few, and no more. way: a type, or
    `A_STEP_OFF`, which makes so much on the whole that no more is explained.
    """
    alone, on_the_whole = _error(rounded, expected), rms_error(rounded, expected)
    is_quantised = way == A_STEP_OFF
    what = "quantising" if is_quantised else "rounding"
    if not on_the_whole <= (_MOST_QUANTISING if is_quantised else _MOST_ROUNDING):
        return f"{what} alone leaves too little of it"
    most = on_the_whole * (1.0 if is_quantised else _BESIDE_ROUNDING)
    is_near, off = _error(result, expected) <= _BESIDE_ROUNDING * alone, rms_error(result, expected)
    if is_near and off <= most:
        return None
    if is_quantised:
        return f"more than a step here and there makes, {alone:.2g}"
    if is_near:
        return f"{off:.2g} on the whole, more than twice the {on_the_whole:.2g} that rounding alone makes"
    return f"more than twice the {alone:.2g} that rounding alone makes"


def compare_all(
    results: Mapping[str, Array],
    expected: Mapping[str, Array],
    held_to: Mapping[str, Standard] = MappingProxyType({}),
) -> Difference:
    """`compare` for every expected output. held_to: `standards`; by its dtype where that says nothing."""
    absolute: float | None = 0.0
    relative: float | None = 0.0
    reason: str | None = None
    amplifies = False
    for name, reference in expected.items():
        standard = held_to.get(name)
        error, refusal = compare(name, results[name], reference, standard)
        if isinstance(standard, Rounded) and standard.way == A_BIT_OFF and refusal is None:
            amplifies |= error is not None and error > tolerance(standard.dtype)
        if refusal is not None:
            reason = reason or refusal.reason
        if error is None:
            absolute = relative = None
        if absolute is not None and relative is not None and error is not None:
            relative = max(relative, error)
            absolute = max(absolute, error * _scale(reference))
    return Difference(absolute, relative, reason, amplifies)


def largest_error(result: Array, expected: Array) -> float:
    """The error of `compare`; inf where it cannot be told, and of what is no float where anything differs."""
    error, wrong = compare("", result, expected, Within(math.inf))
    return math.inf if error is None or wrong is not None else error


def _illegal(name: str, result: Array, expected: Array, drawn: Drawn) -> Refusal | None:
    if result.dtype != expected.dtype:
        return Refusal(f"output {name!r} is {result.dtype}, the reference's {expected.dtype}")
    if not np.isfinite(expected.astype(np.complex128)).all():
        return None  # what is computed from the numbers may be anything
    numbers = result.astype(np.complex128 if result.dtype.kind == "c" else np.float64)
    if not np.isfinite(numbers).all():
        return Refusal(f"output {name!r}, which depends on random numbers, has NaN or infinity")
    if numbers.dtype.kind == "c":
        return None
    ends = np.array([drawn.least, drawn.most])
    if result.dtype.kind not in "biu":  # they round as the numbers do
        ends = ends.astype(result.dtype).astype(np.float64)
    wrong = (numbers < ends[0]) | (numbers > ends[1])
    if drawn.is_whole:
        wrong |= numbers != np.rint(numbers)
    if wrong.any():
        return Refusal(f"output {name!r} should hold {drawn}, and holds {numbers[wrong].flat[0]:g}")
    return None


def _scale(expected: Array) -> float:
    """What relative errors of this output are relative to: max|finite element|, 1 where that is 0."""
    finite = np.abs(expected[np.isfinite(expected)]) if expected.dtype.kind in "fc" else np.abs(expected * 1)
    return float(np.max(finite, initial=0)) or 1.0


def rms_error(result: Array, expected: Array) -> float:
    """Root mean square of the difference over that of the expected."""
    if not expected.size:
        return 0.0
    difference, scale = (float(np.sqrt(np.mean(np.abs(v) ** 2))) for v in (result - expected, expected))
    return difference / scale if scale else difference


def _error(result: Array, expected: Array) -> float:
    if not expected.size:
        return 0.0
    difference = float(np.max(np.abs(result - expected)))
    scale = float(np.max(np.abs(expected)))
    return difference / scale if scale else difference
