"""Running a graph node by node on `onnx.reference`: the numbers that everything else is compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from collage_core.errors import InputError, ModelError
from collage_core.formats import Array
from collage_core.ir import UNKNOWN, Graph, Node, Subgraph, TensorType, to_node_proto, to_value_info
from collage_core.ir.bodies import bodies_of, closed
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.regions import body_of_region, is_region
from collage_core.operators import OPERATORS

__all__ = [
    "A_BIT_OFF",
    "A_STEP_OFF",
    "QUANTISING_OPS",
    "NodeEvaluator",
    "evaluate",
    "evaluate_nodes",
    "evaluators_for",
    "run_nodes",
    "stored_as",
]

A_STEP_OFF = "a step off"
"""Instead of a type to round to: of every eight quantised numbers one becomes one more, and one becomes one
less. So many do, about, where two ways to compute what is quantised differ by a quarter of a step.
"""

A_BIT_OFF = "a bit off"
"""Instead of a type to round to: each float that is a sum becomes some more or less, at most by what two
orders of the same sum differ by (`_BIT`). What that makes of an answer tells how much of it is rounding.
"""

_BIT = {"float64": 1e-10, "float32": 1e-6, "float16": 2**-10, "bfloat16": 2**-7}
"""Relative: docs/adr/0007-tolerances.md; of halves their last digit."""

_SUMMING = frozenset({"Attention", "Einsum", "GRU", "LSTM", "RNN"})
_CHOOSING = frozenset({"GlobalMaxPool", "Hardmax", "MaxPool", "ReduceMax", "ReduceMin"})
"""Operators beside those that `op_kind` knows to sum, and those among them that do not."""

QUANTISING_OPS = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
"""Operators whose first output is quantised."""

_OF_EIGHT = 8


class NodeEvaluator:
    """One node, ready to be run again and again.

    reads: the values it needs, each once. sums: whether its outputs depend on the order of a sum.
    Raises ModelError, with the operator and the node, when nobody implements the operator.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        self.node = node
        self._types = {v: graph.type_of(v) for v in node.outputs if v}
        self.reads: tuple[str, ...] = tuple(dict.fromkeys(v for v in node.inputs if v))
        inside = _Inside(graph, node) if is_region(node) else None
        self.sums: bool = inside.sums if inside else is_sum(graph, node)
        self._evaluator = inside or self._made(graph)

    def _made(self, graph: Graph) -> ReferenceEvaluator:
        node = self.node
        try:
            return ReferenceEvaluator(
                onnx.helper.make_graph(
                    [to_node_proto(node)],
                    node.name or node.op_type,
                    # What has no type must not be declared: functions are expanded by their inputs' types.
                    [to_value_info(v, graph.type_of(v)) for v in self.reads if graph.type_of(v) != UNKNOWN],
                    [to_value_info(v, t) for v, t in self._types.items()],
                ),
                opsets=graph.opsets,
                new_ops=list(OPERATORS),
            )
        except (NotImplementedError, RuntimeError, TypeError, ValueError, onnx.defs.SchemaError) as error:
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            opset = graph.opsets.get(node.domain)
            raise ModelError(
                f"node {node.name!r}: the reference implements no {operator} at opset {opset} "
                f"({' '.join(str(error).split())[:200]})"
            ) from error

    def run(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The node's outputs by name, from `values`, which holds what it `reads`. Views of inputs possibly; a
        sequence is a list of arrays (`collage_core.operators.sequences`).

        Raises ModelError where the implementation fails, or disagrees with the shape that the graph states.
        """
        try:
            with np.errstate(all="ignore"):
                results = self._evaluator.run(list(self._types), {v: values[v] for v in self.reads})
        except (ArithmeticError, ImportError, LookupError, RuntimeError, TypeError, ValueError) as error:
            cause = error.__cause__ or error
            raise ModelError(f"node {self.node} cannot be evaluated: {cause}") from error
        return {v: self._checked(v, r) for v, r in zip(self._types, results, strict=True)}

    def _checked(self, value: str, result: Any) -> Any:
        type = self._types[value]
        if type == UNKNOWN and isinstance(result, list):
            return result
        result = np.asarray(result)
        if type == UNKNOWN:
            return result
        if bodies_of(self.node) and not result.size and 0 in type.shape:
            # What a body that never runs would have yielded is known by its type alone.
            return np.empty(type.static_shape, type.dtype)
        if not _fits(type, result):
            raise ModelError(
                f"node {self.node}: {value!r} should be {type}, but evaluates to shape {list(result.shape)}"
            )
        # Some of the implementations compute in double and leave it at that.
        return result.astype(type.dtype, copy=False)


class _Inside:
    """The nodes of a region, one by one. sums: whether one of them does."""

    def __init__(self, graph: Graph, region: Node) -> None:
        inside = closed(graph, region, body_of_region(region), {})
        self._nodes = [NodeEvaluator(inside, n) for n in inside.nodes]
        self._constants, self._outputs = inside.constants, inside.outputs
        self._given = {v: outside for v, outside in region.captured.items() if v not in inside.constants}
        self.sums = any(n.sums for n in self._nodes)

    def run(self, names: Sequence[str], values: Mapping[str, Array]) -> list[Any]:
        found = {**self._constants, **{v: values[outside] for v, outside in self._given.items()}}
        run_nodes(self._nodes, found, self._outputs)
        return [found[v] for v in self._outputs]


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array],
    *,
    keep: Collection[str] | None = None,
    rounded_to: str | None = None,
) -> dict[str, Array]:
    """Run a whole graph; returns the values named in `keep`, which may be any, or the graph's outputs.

    rounded_to: a float type to which all that a node reads or yields is rounded, or `A_STEP_OFF` or
    `A_BIT_OFF`; nothing is where None.
    Only what they need is run; each value is dropped after its last use. Results may be views of `inputs`.
    Raises InputError for a missing or misshapen input, ModelError for an unknown name or an operator that
    nobody implements.
    """
    wanted = tuple(dict.fromkeys(graph.outputs if keep is None else keep))
    for v in wanted:
        if v not in graph.values:
            raise ModelError(f"graph {graph.name!r} has no value {v!r}")
    evaluators = evaluators_for(graph, wanted)
    needed = {*wanted, *(v for e in evaluators for v in e.reads)}
    values: dict[str, Array] = {v: a for v, a in graph.constants.items() if v in needed}
    for v in graph.variable_inputs():
        if v in needed:
            values[v] = _input(graph, v, inputs)
    run_nodes(evaluators, values, wanted, rounded_to)
    return {v: values[v] for v in wanted}


def evaluate_nodes(
    subgraph: Subgraph,
    inputs: Mapping[str, Array],
    rounded_to: str | None = None,
    exact: Collection[str] = (),
) -> dict[str, Array]:
    """The outputs of a part of a graph by name, from what it reads. rounded_to, errors: see `evaluate`.
    exact: values that are not rounded.
    """
    values = {**{v: subgraph.graph.constants[v] for v in subgraph.constants}, **inputs}
    evaluators = [NodeEvaluator(subgraph.graph, node) for node in subgraph.nodes]
    run_nodes(evaluators, values, subgraph.outputs, rounded_to, exact)
    return {v: values[v] for v in subgraph.outputs}


def evaluators_for(graph: Graph, wanted: Iterable[str]) -> list[NodeEvaluator]:
    """The nodes that these values need, in topological order. ModelError as of `NodeEvaluator`."""
    needed = set(wanted)
    evaluators: list[NodeEvaluator] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            evaluators.append(NodeEvaluator(graph, node))
            needed.update(evaluators[-1].reads)
    return evaluators[::-1]


def run_nodes(
    evaluators: Iterable[NodeEvaluator],
    values: dict[str, Array],
    keep: Collection[str],
    rounded_to: str | None = None,
    exact: Collection[str] = (),
) -> None:
    """Run nodes in order, on and into `values`; drops what no later node reads, except what `keep` names.
    rounded_to, exact: see `evaluate_nodes`.
    """

    def stored(name: str, value: Array) -> Array:
        if rounded_to in (None, A_STEP_OFF, A_BIT_OFF) or name in exact or not isinstance(value, np.ndarray):
            return value
        return stored_as(value, rounded_to)

    order = list(evaluators)
    last: dict[str, int] = {v: i for i, e in enumerate(order) for v in (*e.node.outputs, *e.reads)}
    ending: dict[int, list[str]] = {}
    for v, i in last.items():
        if v not in keep:
            ending.setdefault(i, []).append(v)
    for i, evaluator in enumerate(order):
        read = {v: stored(v, values[v]) for v in evaluator.reads}
        values.update((v, stored(v, a)) for v, a in evaluator.run(read).items())
        if rounded_to == A_STEP_OFF and evaluator.node.op_type in QUANTISING_OPS:
            quantised = evaluator.node.outputs[0]
            values[quantised] = _a_step_off(values[quantised], seed=evaluator.node.id)
        if rounded_to == A_BIT_OFF and evaluator.sums:
            for v in filter(None, evaluator.node.outputs):
                values[v] = _a_bit_off(values[v], seed=evaluator.node.id)
        for v in ending.get(i, ()):
            values.pop(v, None)


def _a_step_off(array: Array, seed: int) -> Array:
    """What is at an end of the range stays there: most of it was far beyond. Floats stay as they are."""
    if array.dtype.kind not in "iu":
        return array
    drawn = np.random.default_rng(seed).integers(0, _OF_EIGHT, array.shape, np.int8)
    ends = np.iinfo(array.dtype)
    inside = (array > ends.min) & (array < ends.max)
    steps = (drawn == 0).astype(np.int8) - (drawn == 1).astype(np.int8)
    moved: Array = array.astype(np.int64) + steps * inside
    return moved.astype(array.dtype)


def _a_bit_off(array: Array, seed: int) -> Array:
    """Nothing but floats, nor where all are whole numbers: such sums are exact in any order. Zero, infinity
    and NaN stay as they are, and so does what would overflow.
    """
    bit = _BIT.get(array.dtype.name)
    if bit is None or (array == np.rint(array)).all():
        return array
    wide = np.float64 if array.dtype == np.float64 else np.float32
    moved = np.random.default_rng(seed).random(array.shape, wide)
    moved *= 2 * bit
    moved += 1 - bit
    with np.errstate(over="ignore"):
        moved *= array
        off: Array = moved.astype(array.dtype, copy=False)
    overflown = np.isinf(off)
    if overflown.any():
        off[overflown] = array[overflown]
    return off


def is_sum(graph: Graph, node: Node) -> bool:
    """Whether what it computes depends on the order of a sum."""
    if node.domain or node.op_type in _CHOOSING:
        return False
    sums = op_kind(graph, node) in (OpKind.REDUCTION, OpKind.OUT_ELEMWISE_FUSABLE)
    return sums or node.op_type in _SUMMING


def stored_as(array: Array, dtype: str) -> Array:
    """A value as it is after it was stored as `dtype`, if that is narrower. The largest number stays a
    number: a mask holds the lowest, and infinity would make NaNs of it.
    """
    narrow = np.dtype(dtype)
    if array.dtype.kind != "f" or array.dtype.itemsize <= narrow.itemsize:
        return array
    bits = f"u{narrow.itemsize}"
    largest = (np.array(np.inf, narrow).view(bits) - np.array(1, bits)).view(narrow).astype(array.dtype)
    with np.errstate(over="ignore"):
        rounded = array.astype(narrow).astype(array.dtype)
    overflown = np.isinf(rounded) & np.isfinite(array)
    return np.where(overflown, np.copysign(largest, array), rounded) if overflown.any() else rounded


def _input(graph: Graph, name: str, inputs: Mapping[str, Array]) -> Array:
    type = graph.type_of(name)
    if name not in inputs:
        raise InputError(f"input {name!r} ({type}) is missing")
    array = np.asarray(inputs[name])
    if not _fits(type, array) or array.dtype != type.dtype:
        raise InputError(f"input {name!r} must be {type}, not {array.dtype}{list(array.shape)}")
    return array


def _fits(type: TensorType, array: Array) -> bool:
    return len(type.shape) == array.ndim and all(
        isinstance(d, str) or d == n for d, n in zip(type.shape, array.shape, strict=True)
    )
