"""If, Loop and Scan; their bodies read values outside as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from collage_benchmarks.generator.builder import Builder, Value

__all__ = ["branch", "loop", "scan"]

_DTYPES = ("float32", "float32", "float64", "float16")
_INTEGERS = ("int32", "int64", "int8", "uint8")
_BOUNDED = ("Neg", "Sigmoid", "Tanh", "Abs", "Relu")
"""However often they are applied, numbers stay small."""


def branch(b: Builder) -> None:
    """An If whose branches read the value outside; its condition is known, or the model's input."""
    x = b.some(b.choice((*_DTYPES, *_INTEGERS)))
    condition = _condition(b, b.flag())
    branches = []
    operators = ["Neg", "Sigmoid", "Abs"] if x.dtype in _DTYPES else ["Add", "Sub", "Mul"]
    for way, op in zip(("then", "else"), b.permuted(operators), strict=False):
        result = f"{x.name}_{condition.name}_{way}"
        read = [x.name] * (1 if x.dtype in _DTYPES else 2)
        inner = helper.make_node(op, read, [result], name=f"{result}_node")
        branches.append(helper.make_graph([inner], way, [], [_info(result, x)]))
    b.compound("If", [condition], [x], then_branch=branches[0], else_branch=branches[1])


def loop(b: Builder) -> None:
    """A Loop that carries a value, and stacks what it was if the number of trips is known; else the number or
    the condition is an input, or the body ends it.
    """
    x = b.some(b.choice(_DTYPES), 0, 3, most=256)
    trips = np.asarray(b.integer(0, 4), "int64")
    fixed = b.flag()
    count = b.constant(trips) if fixed else b.input(trips)
    condition = None if b.flag() else _condition(b, fixed)
    ends = not fixed and b.flag()
    p = f"{x.name}_{count.name}_"
    first, second = b.choice(_BOUNDED), b.choice(_BOUNDED)
    nodes = [
        _node(first, [p + "carried"], p + "a"),
        _node("Add", [p + "a", x.name] if b.flag() else [p + "a", p + "carried"], p + "sum"),
        _node("Tanh", [p + "sum"], p + "next"),
        _node(second, [p + "carried"], p + "stacked"),
    ]
    if ends:
        nodes.append(_node("Less", [p + "trip", b.constant(np.asarray(2, "int64")).name], p + "on"))
    else:
        nodes.append(_node("Identity", [p + "before"], p + "on"))
    given = [
        _scalar(p + "trip", TensorProto.INT64),
        _scalar(p + "before", TensorProto.BOOL),
        _info(p + "carried", x),
    ]
    returned = [_scalar(p + "on", TensorProto.BOOL), _info(p + "next", x)]
    if fixed:
        returned.append(_info(p + "stacked", x))
    body = helper.make_graph(nodes, "body", given, returned)
    read = [v for v in b.values if v.name in {i for n in nodes for i in n.input}]
    b.compound("Loop", [count, condition, x], read, outputs=len(returned) - 1, body=body)


def scan(b: Builder) -> None:
    """A Scan over any axis, in either direction, with a state."""
    x = b.some(b.choice(_DTYPES), 1, 4, most=512)
    axis = b.axis(x.rank)
    part = tuple(np.delete(np.asarray(x.shape, int), axis).tolist())
    state = b.operand(x.dtype, part)
    p = f"{x.name}_{state.name}_{len(b.nodes)}_"
    like = Value(p, x.dtype, part, None)
    nodes = [
        _node(b.choice(_BOUNDED), [p + "state"], p + "a"),
        _node("Add", [p + "a", p + "part"], p + "sum"),
        _node("Tanh", [p + "sum"], p + "next"),
        _node("Mul", [p + "next", p + "part"], p + "stacked"),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [_info(p + "state", like), _info(p + "part", like)],
        [_info(p + "next", like), _info(p + "stacked", like)],
    )
    b.compound(
        "Scan",
        [state, x],
        [],
        outputs=2,
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=b.choice([None, [0], [1]]),
        scan_output_axes=b.choice([None, [b.axis(x.rank)]]),
        scan_output_directions=b.choice([None, [0], [1]]),
    )


def _condition(b: Builder, known: bool) -> Value:
    array = np.asarray(b.flag())
    return b.constant(array) if known else b.input(array)


def _node(op: str, read: Sequence[str], result: str) -> onnx.NodeProto:
    return helper.make_node(op, list(read), [result], name=f"{result}_node")


def _info(name: str, like: Value) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(like.dtype))
    return helper.make_tensor_value_info(name, element, like.shape)


def _scalar(name: str, element: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, [])
