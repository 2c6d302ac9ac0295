"""Two opinions on a model as it was given: ONNX Runtime's and the reference's, without any pass.

What is here runs in a worker: libraries may crash.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx
import onnxruntime

from collage_core.costs.check import Standard, compare, standards, tolerance
from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph, Node, from_model
from collage_core.ir.passes import PASSES, run_passes
from collage_core.ir.static import require_static
from collage_core.reference import evaluate
from collage_core.reference.evaluator import evaluators_for

__all__ = ["Opinions", "all_values", "ask", "difference", "run_onnxruntime"]

Answer = dict[str, Array]

_ALLOWANCE = 10.0
"""How much more than a single kernel a whole model may be off: errors add up from node to node."""

_DRAWS = 24
"""So often is everything rounded otherwise: two draws have missed that of nearly equal halves (float16) any
may be the least, and eight one element of the tangent of a tangent, of 50,000.
"""
_AVERAGING = frozenset(["AveragePool", "GlobalAveragePool", "GridSample", "Mean", "ReduceMean", "RoiAlign"])
_EXACT = frozenset(["Cast", "CastLike"])
"""All round alike here."""


@dataclass(frozen=True, slots=True)
class Opinions:
    """What each says of a model: outputs by name, None where it does not run it.

    refusal: Collage's one line, if it does not take the model. fault: the traceback of what it raised that is
    no refusal. normalised: the reference's answer after all passes. blame: the first pass after which that is
    another. differing: the first node after which the two opinions differ, with by how much.
    unstable: by output, the elements (bool) that are others when last bits are, of inputs or of what nodes
    compute: rounding decides them, and no two libraries round alike. held_to: see `standards`.
    """

    onnxruntime: Answer | None
    reference: Answer | None
    normalised: Answer | None = None
    refusal: str | None = None
    fault: str | None = None
    blame: str | None = None
    differing: str | None = None
    untold: str | None = None
    unstable: Mapping[str, Array] = field(default_factory=dict)
    held_to: Mapping[str, Standard] = field(default_factory=dict)

    def why_wrong(self, answer: Mapping[str, Array]) -> str | None:
        """Why an output agrees with neither opinion; None where each agrees with one, or is unstable."""
        given = [o for o in (self.onnxruntime, self.reference) if o is not None]
        for name in given[0] if given else ():
            found = [
                difference(self._settled(name, answer, o[name]), {name: o[name]}, self.held_to) for o in given
            ]
            if None not in found:
                return found[0]
        return None

    def _settled(self, name: str, answer: Mapping[str, Array], opinion: Array) -> Mapping[str, Array]:
        """The answer, with the opinion's elements where nothing can be told."""
        unstable, found = self.unstable.get(name), answer.get(name)
        if unstable is None or found is None or not found.shape == opinion.shape == unstable.shape:
            return answer
        return {name: np.where(unstable, opinion, found).astype(found.dtype)}


def difference(
    answer: Mapping[str, Array],
    expected: Mapping[str, Array],
    held_to: Mapping[str, Standard] = MappingProxyType({}),
) -> str | None:
    """Why an answer is another one than expected; None where it is the same up to rounding. held_to: what
    some outputs are, rather than to their dtype's (`standards`).
    """
    for name, array in expected.items():
        if name not in answer:
            return f"output {name!r} is missing"
        if answer[name].dtype != array.dtype:
            return f"output {name!r} is {answer[name].dtype}, and {array.dtype} was expected"
        standard = held_to.get(name)
        error, refusal = compare(name, answer[name], array, standard)
        near = error is not None and error <= _ALLOWANCE * tolerance(_dtype_of(array, standard))
        if refusal is not None and not near:
            return str(refusal)
    return None


def _dtype_of(array: Array, standard: Standard | None) -> str:
    """By whose precision numbers count."""
    return standard if isinstance(standard, str) else str(array.dtype)


def ask(data: bytes, inputs: Mapping[str, Array]) -> Opinions:
    """Both opinions on a serialised model, and what Collage's passes make of it."""
    runtime, untold = _attempt(lambda: run_onnxruntime(data, inputs))
    model = onnx.ModelProto.FromString(data)
    try:
        graph = from_model(model)
        reference = evaluate(graph, inputs)
    except MemoryError as error:  # of a machine, and no fault: nothing can be said there
        return Opinions(None, None, refusal=f"out of memory: {error}", untold=untold)
    except CollageError as error:
        return Opinions(runtime, None, refusal=f"{type(error).__name__}: {error}", untold=untold)
    except Exception:
        return Opinions(runtime, None, fault=traceback.format_exc(), untold=untold)
    differing = None
    held_to = standards(graph)
    if runtime is not None and difference(runtime, reference, held_to) is not None:
        differing = _first_difference(model, graph, inputs) or difference(runtime, reference, held_to)
    try:
        normalised, blame = _passes(graph, inputs, reference, held_to)
        if runtime is not None and difference(normalised, runtime, held_to) is None:
            blame = None  # the reference errs at the model's own opset
    except CollageError as error:
        return Opinions(
            runtime, reference, refusal=f"{type(error).__name__}: {error}", differing=differing, untold=untold
        )
    except Exception:
        return Opinions(runtime, reference, fault=traceback.format_exc(), differing=differing, untold=untold)
    unstable = _unstable(graph, inputs, reference, held_to)
    return Opinions(runtime, reference, normalised, None, None, blame, differing, untold, unstable, held_to)


def run_onnxruntime(data: bytes, inputs: Mapping[str, Array]) -> Answer:
    """ONNX Runtime's answer with nothing optimised; raises whatever it raises.

    inputs: left as they are. It writes a training BatchNormalization's running means into what it was given.
    """
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    found = session.run(names, {n: a.copy() for n, a in inputs.items() if n in wanted})
    return dict(zip(names, found, strict=True))


def all_values(data: bytes, inputs: Mapping[str, Array]) -> Answer:
    """Every intermediate value, by ONNX Runtime if it has them all, else by the reference."""
    model = onnx.ModelProto.FromString(data)
    names = [v for n in model.graph.node for v in n.output if v]
    runtime, _ = _attempt(lambda: run_onnxruntime(_returning(model, names), inputs))
    return runtime or evaluate(from_model(model), inputs, keep=names)


def _returning(model: onnx.ModelProto, names: Sequence[str]) -> bytes:
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=v) for v in names)
    data: bytes = whole.SerializeToString()
    return data


def _attempt(run: Callable[[], Answer]) -> tuple[Answer | None, str | None]:
    try:
        return run(), None
    except Exception as error:  # its errors have no common type
        return None, " ".join(str(error).split())[:300]


def _unstable(
    graph: Graph, inputs: Mapping[str, Array], expected: Answer, held_to: Mapping[str, Standard]
) -> dict[str, Array]:
    """The elements of outputs that are others when what is given and what nodes compute is rounded
    otherwise; all of them where that makes an index leave its range.
    """
    rng = np.random.default_rng(0)
    found = {name: np.zeros(array.shape, bool) for name, array in expected.items()}
    for _ in range(_DRAWS):
        try:
            changed = _rounded_otherwise(graph, inputs, rng, expected)
        except CollageError:
            return {name: np.ones(array.shape, bool) for name, array in expected.items()}
        for name, array in expected.items():
            found[name] |= _elements_that_differ(changed[name], array, held_to.get(name))
    return {name: mask for name, mask in found.items() if mask.any()}


def _rounded_otherwise(
    graph: Graph, inputs: Mapping[str, Array], rng: np.random.Generator, wanted: Collection[str]
) -> Answer:
    values: Answer = {**graph.constants, **{n: _nudged(a, rng) for n, a in inputs.items()}}
    for evaluator in evaluators_for(graph, wanted):
        averages, exact = _averages(evaluator.node), evaluator.node.op_type in _EXACT
        read = [] if averages else [values[v] for v in evaluator.reads]
        whole = averages or _adds_fractions(evaluator.node, values)
        for name, array in evaluator.run(values).items():
            steps = _summing_steps(evaluator.node, values)
            values[name] = array if exact else _nudged(array, rng, read, whole=whole, steps=steps)
    return values


def _summing_steps(node: Node, values: Answer) -> float:
    """How many last bits a sum of products is off by, whatever its order: the root of its terms, about."""
    if not _is_product(node):
        return 4.0
    first, second = (values[v].shape for v in node.inputs[:2])
    terms = math.prod(second[1:]) if node.op_type == "Conv" else max(first, default=1)
    return max(4.0, math.sqrt(terms))


def _adds_fractions(node: Node, values: Answer) -> bool:
    """Whether a sum of products that is a whole number is so by chance: a large float32 is, one in a few."""
    return _is_product(node) and any(np.any(values[v] != np.rint(values[v])) for v in node.inputs[:2])


def _is_product(node: Node) -> bool:
    return not node.domain and node.op_type in ("Conv", "Gemm", "MatMul")


def _averages(node: Node) -> bool:
    """Whether it takes means: of equal numbers these need not be just that number."""
    if node.op_type in ("Resize", "Upsample"):
        return node.attributes.get("mode", b"nearest") not in ("nearest", b"nearest")
    return node.op_type in _AVERAGING


def _elements_that_differ(changed: Array, expected: Array, standard: Standard | None) -> Array:
    if changed.shape != expected.shape:
        return np.ones(expected.shape, bool)
    if expected.dtype.kind not in "fc":
        return np.asarray(changed != expected)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = changed.astype(wide), expected.astype(wide)
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0)) or 1.0
    allowed = _ALLOWANCE * tolerance(_dtype_of(expected, standard)) * scale
    with np.errstate(invalid="ignore"):
        same = (np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(~same)


def _nudged(
    array: Array,
    rng: np.random.Generator,
    read: Sequence[Array] = (),
    *,
    whole: bool = False,
    steps: float = 4.0,
) -> Array:
    """With other last bits, `steps` at most. Nobody rounds what was read and handed on, also negated, and
    whole numbers: the latter are changed only if `whole`.
    """
    if array.dtype.kind != "f":
        return array
    relative = steps * np.finfo(array.dtype).eps * rng.uniform(-1, 1, array.shape)
    nudged: Array = np.asarray(array * (1 + relative)).astype(array.dtype)
    exact = np.full(array.shape, False) if whole else array == np.rint(array)
    for given in read:
        exact |= np.isin(np.abs(array), np.abs(given))
    return np.where(exact, array, nudged)


def _passes(
    graph: Graph, inputs: Mapping[str, Array], expected: Answer, held_to: Mapping[str, Standard]
) -> tuple[Answer, str | None]:
    """The reference's answer after all passes, and the first pass after which it is another one."""
    blame = None
    for p in PASSES:
        graph = run_passes(graph, [p])
        if blame is None and (why := difference(evaluate(graph, inputs), expected, held_to)) is not None:
            blame = f"{p.name}: {why}"
    require_static(graph)
    return evaluate(graph, inputs), blame


def _first_difference(model: onnx.ModelProto, graph: Graph, inputs: Mapping[str, Array]) -> str | None:
    """The first node that the two answer differently when everything before it is alike."""
    names = [v for n in graph.nodes for v in n.outputs if v]
    held_to = standards(graph)
    try:
        runtime = run_onnxruntime(_returning(model, names), inputs)
        values = evaluate(graph, inputs, keep=names)
    except Exception:  # what runs as a whole may not run with everything returned
        return None
    for node in graph.nodes:
        for v in node.outputs:
            if v and (why := difference({v: runtime[v]}, {v: values[v]}, held_to)) is not None:
                return f"{node.op_type}: {why}"
    return None
