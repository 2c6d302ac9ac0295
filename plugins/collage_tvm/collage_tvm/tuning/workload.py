"""A group as the function that MetaSchedule schedules: tensors as they are stored, one stage per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import sym, te, tirx

from collage_core.backend import Variant
from collage_core.errors import BackendError
from collage_core.formats import Array, Format, Layout
from collage_core.ir import Graph, Node, Subgraph
from collage_tvm.lower import LOWERINGS, LoweringContext
from collage_tvm.nest import new_scope
from collage_tvm.tensor import Index, Scope, Tensor, make
from collage_tvm.tuning.groups import anchor_of
from collage_tvm.window import window_of

__all__ = ["Workload", "workload_of"]


@dataclass
class Workload:
    """function: a TVM PrimFunc over inputs, held constants and output, in this order, each with the shape in
    which it is stored. held: the constants, as they are stored. A product's constant operand is marked as one
    that a schedule may store in another order. A convolution's weights are not: with its channels innermost
    they are read in order as they are, and the search finds less in the larger space.
    """

    function: Any
    held: list[Array]


@dataclass
class _Stages:
    """What the function is made of so far."""

    graph: Graph
    inputs: list[Any] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)
    held: list[Array] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)
    weights: list[int] = field(default_factory=list)

    def input(self, name: str, format: Format) -> None:
        shape = self.graph.shape_of(name)
        stored = te.placeholder([shape[d] for d in format.layout], format.dtype, name=f"in{len(self.inputs)}")
        self.inputs.append(stored)
        self.values[name] = _read(stored, shape, format.dtype, format.layout)

    def hold(self, data: Array) -> Tensor:
        stored = self.parameter(data)
        return _read(stored, data.shape, str(data.dtype), tuple(range(data.ndim)))

    def parameter(self, data: Array) -> Any:
        """A constant, as it is stored, as a parameter of the function."""
        stored = te.placeholder(data.shape or (1,), str(data.dtype), name=f"held{len(self.held)}")
        self.parameters.append(stored)
        self.held.append(np.ascontiguousarray(data).reshape(data.shape or (1,)))
        return stored

    def weight(self, data: Array) -> Any:
        """A parameter that nothing but the product reads."""
        self.weights.append(len(self.held))
        return self.parameter(data)

    def element(self, value: str, index: Index) -> Any:
        """An element of a value as an expression."""
        tensor = self.values[value] if value in self.values else self.hold(self.graph.constants[value])
        self.values[value] = tensor
        return _expression(tensor, index)


def workload_of(subgraph: Subgraph, variant: Variant) -> Workload:
    """BackendError for a group that `anchor_of` declines."""
    graph = subgraph.graph
    anchor = anchor_of(subgraph)
    if not isinstance(anchor, Node):
        raise BackendError(str(anchor))
    stages = _Stages(graph)
    for name, format in zip(subgraph.inputs, variant.inputs, strict=True):
        stages.input(name, format)
    [output], [format] = subgraph.outputs, variant.outputs
    layout = format.layout
    product = _ANCHORS[anchor.op_type](stages, anchor, layout)
    stages.values[anchor.outputs[0]] = product
    for node in subgraph.nodes:
        if node is not anchor:
            context = LoweringContext(graph, node, stages.values, stages.hold)
            [stages.values[node.outputs[0]]] = LOWERINGS[node.op_type](context)
    root = stages.values[output]

    def element(*stored: Any) -> Any:
        return _expression(root, _logical(stored, layout))

    shape = graph.shape_of(output)
    result = te.compute([shape[d] for d in layout], element, name="out")
    function = te.create_prim_func([*stages.inputs, *stages.parameters, result])
    if stages.weights:
        places = [len(stages.inputs) + k for k in stages.weights]
        function = function.with_attr("layout_free_buffers", places)
    return Workload(function, stages.held)


def _expression(tensor: Tensor, index: Index) -> Any:
    """One element as a single expression."""
    scope = new_scope(sym.Analyzer(), [tensor])
    value = scope.value(tensor, index)
    for variable, bound in reversed(scope.bindings):
        value = tirx.Let(variable, bound, value)
    return value


def _read(stored: Any, shape: tuple[int, ...], dtype: str, layout: Layout) -> Tensor:
    def element(s: Scope, i: Index) -> Any:
        return stored[tuple(0 if shape[d] == 1 else i[d] for d in layout) or (0,)]

    return make(shape, dtype, [], element)


def _logical(stored: Index, layout: Layout) -> Index:
    """Logical index of a stored one."""
    return tuple(stored[layout.index(d)] for d in range(len(layout)))


def _sum(
    name: str, shape: tuple[int, ...], layout: Layout, extents: list[int], term: Any, dtype: str
) -> Tensor:
    """The stage of a tensor of logical `shape` whose element is the sum of `term(logical index, reduced)`."""
    reduced = [te.reduce_axis((0, e), name=f"r{k}") for k, e in enumerate(extents)]

    def element(*stored: Any) -> Any:
        return te.sum(term(_logical(stored, layout), reduced), axis=reduced)

    stage = te.compute([shape[d] for d in layout], element, name=name)
    return _read(stage, shape, dtype, layout)


def _plus(a: Tensor, b: Any) -> Tensor:
    """`a` plus an expression of its logical index."""
    return make(a.shape, a.dtype, [a], lambda s, i: s.value(a, i) + b(i))


def _convolution(stages: _Stages, node: Node, layout: Layout) -> Tensor:
    """Weights are stored with their output channels innermost, which vectors run along."""
    graph = stages.graph
    input, shape = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    data = graph.constants[node.inputs[1]]
    window = window_of({**node.attributes, "kernel_shape": list(data.shape[2:])}, input, shape)
    spatial = range(len(window.kernel))
    group_outputs, group_inputs = data.shape[0] // node.attributes.get("group", 1), data.shape[1]
    padded = _padded(
        stages,
        node.inputs[0],
        window.before,
        [window.position(d, shape[d + 2] - 1, window.kernel[d] - 1) + 1 - input[d + 2] for d in spatial],
        layout,
    )
    weights = stages.parameter(np.moveaxis(data, (0, 1), (-1, -2)))

    def term(i: Index, r: list[Any]) -> Any:
        *taps, inner = r
        if group_outputs == data.shape[0]:
            channel = inner
        elif group_outputs == group_inputs == 1:
            channel = i[1]
        else:
            channel = tirx.floordiv(i[1], group_outputs) * group_inputs + inner
        position = [i[d + 2] * window.strides[d] + taps[d] * window.dilations[d] for d in spatial]
        return padded(i[0], channel, *position) * weights[(*taps, inner, i[1])]

    extents = [*window.kernel, group_inputs]
    result = _sum("conv", shape, layout, extents, term, stages.graph.type_of(node.outputs[0]).dtype)
    if len(node.inputs) > 2 and node.inputs[2]:
        result = _plus(result, lambda i: stages.element(node.inputs[2], (i[1],)))
    return result


def _padded(stages: _Stages, value: str, before: tuple[int, ...], after: list[int], layout: Layout) -> Any:
    """Elements of a value, by logical index counted from where its padding begins."""
    shape = stages.graph.shape_of(value)
    if not any(before) and all(a <= 0 for a in after):
        return lambda *i: stages.element(value, i)
    low = (0, 0, *before)
    whole = tuple(d + b + max(0, a) for d, b, a in zip(shape, low, (0, 0, *after), strict=True))

    def element(*stored: Any) -> Any:
        i = [x - b if b else x for x, b in zip(_logical(stored, layout), low, strict=True)]
        inside = [tirx.And(x >= 0, x < d) for x, d, w in zip(i, shape, whole, strict=True) if w != d]
        condition = inside[0]
        for c in inside[1:]:
            condition = tirx.And(condition, c)
        zero = tirx.const(0.0, stages.graph.type_of(value).dtype)
        return tirx.if_then_else(condition, stages.element(value, tuple(i)), zero)

    stage = te.compute([whole[d] for d in layout], element, name="pad")
    return lambda *i: stage[tuple(i[d] for d in layout)]


def _matmul(stages: _Stages, node: Node, layout: Layout) -> Tensor:
    graph = stages.graph
    a, b = node.inputs
    shape, count = graph.shape_of(node.outputs[0]), graph.shape_of(a)[-1]

    def batch(value: str, i: Index) -> Index:
        own = graph.shape_of(value)[:-2]
        last = i[len(i) - 2 - len(own) : -2]
        return tuple(0 if d == 1 else x for x, d in zip(last, own, strict=True))

    right = _right(stages, node, turned=False)

    def term(i: Index, r: list[Any]) -> Any:
        left = stages.element(a, (*batch(a, i), i[-2], r[0]))
        return left * right((*batch(b, i), r[0], i[-1]))

    return _sum("matmul", shape, layout, [count], term, graph.type_of(node.outputs[0]).dtype)


def _right(stages: _Stages, node: Node, turned: bool) -> Callable[[Index], Any]:
    """Elements of the second operand by (batch..., row, column). turned: it is stored the other way round."""
    name = node.inputs[1]
    if stages.graph.is_constant(name) and len(stages.graph.shape_of(name)) == 2:
        data = stages.graph.constants[name]
        stored = stages.weight(data.T if turned else data)
        return lambda i: stored[i]
    return lambda i: stages.element(name, (*i[:-2], i[-1], i[-2]) if turned else i)


def _gemm(stages: _Stages, node: Node, layout: Layout) -> Tensor:
    graph = stages.graph
    a = node.inputs[0]
    turned_a, turned_b = node.attributes.get("transA", 0), bool(node.attributes.get("transB", 0))
    dtype = graph.type_of(node.outputs[0]).dtype
    alpha, beta = (node.attributes.get(k, 1.0) for k in ("alpha", "beta"))
    right = _right(stages, node, turned_b)

    def term(i: Index, r: list[Any]) -> Any:
        return stages.element(a, (r[0], i[0]) if turned_a else (i[0], r[0])) * right((r[0], i[1]))

    count = graph.shape_of(a)[0 if turned_a else 1]
    result = _sum("gemm", graph.shape_of(node.outputs[0]), layout, [count], term, dtype)
    if alpha != 1.0:
        product = result
        result = make(
            product.shape, dtype, [product], lambda s, i: s.value(product, i) * tirx.const(alpha, dtype)
        )
    if len(node.inputs) > 2 and node.inputs[2]:
        c = node.inputs[2]
        own = graph.shape_of(c)

        def bias(i: Index) -> Any:
            index = tuple(0 if d == 1 else x for x, d in zip(i[2 - len(own) :], own, strict=True))
            value = stages.element(c, index)
            return value if beta == 1.0 else value * tirx.const(beta, dtype)

        result = _plus(result, bias)
    return result


_ANCHORS = {"Conv": _convolution, "Gemm": _gemm, "MatMul": _matmul}
