"""One operator after the other, drawn at random, whose results can be told.

Floats hold small integers until an operator rounds, and what is exact is tracked: operators that jump
(comparisons, casts to integers, argmax) read exact values only, so that rounding never explains a difference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from drawn_values import FLOATS, INTEGERS, Draft, Value, broadcast, fit
from hypothesis import strategies as st
from onnx import helper

__all__ = ["Builder"]


class Builder(Draft):
    """Adds one random operator after the other; each method is one kind and says whether it found a place."""

    # -- arithmetic --

    def unary(self) -> bool:
        x = self.some()
        assert x is not None
        if x.dtype == "bool":
            return self.add("Not", [x], x.shape, x)
        if not x.floating:
            return self.add(self.one("Neg", "Abs", "Sign", "Relu"), [x], x.shape, x)
        rounding = ["Sigmoid", "Tanh", "HardSwish", "Softplus", "LeakyRelu", "Elu"]
        rounding += ["Gelu", "Erf", "Mish"] if x.dtype == "float32" else []
        rounding += ["Exp"] if x.bound <= 4 else []
        op = self.one("Relu", "Neg", "Abs", "Identity", *rounding)
        bound = math.exp(x.bound) if op == "Exp" else x.bound + 1
        return self.add(op, [x], x.shape, x, bound, rounds=op in rounding)

    def binary(self) -> bool:
        x = self.some()
        assert x is not None
        y = self.partner(x)
        x, y = (y, x) if self.flag() else (x, y)
        shape = broadcast(x.shape, y.shape)
        if x.dtype == "bool":
            return self.add(self.one("And", "Or", "Xor", "Equal"), [x, y], shape, x)
        op = self.one("Add", "Mul", "Sub", "Max", "Min")
        bound = {"Add": x.bound + y.bound, "Sub": x.bound + y.bound, "Mul": x.bound * y.bound}.get(op)
        return self.add(op, [x, y], shape, x, bound)

    def divided(self) -> bool:
        x = self.some(lambda v: v.dtype != "bool")
        if x is None:
            return False
        y = self.partner(x, low=1)
        op = "Div" if x.floating else self.one("Div", "Mod")
        return self.add(op, [x, y], broadcast(x.shape, y.shape), x, rounds=x.floating)

    def compared(self) -> bool:
        x = self.some(lambda v: v.exact and v.dtype != "bool")
        if x is None:
            return False
        y = self.partner(x, exact=True)
        op = self.one("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual")
        if op == "Equal" and x.dtype == "float64":
            op = "Less"
        return self.add(op, [x, y], broadcast(x.shape, y.shape), x, 1.0, dtype="bool")

    def where(self) -> bool:
        x = self.some()
        assert x is not None
        y = self.partner(x)
        both = broadcast(x.shape, y.shape)
        condition = self.some(lambda v: v.dtype == "bool" and fit(v.shape, both))
        condition = condition or self.leaf(tuple(self.one(1, d) for d in both), "bool")
        return self.add("Where", [condition, x, y], broadcast(condition.shape, both), x)

    def cast(self) -> bool:
        x = self.some()
        assert x is not None
        dtype = self.one(*FLOATS, *(("bool", *INTEGERS) if x.exact else ()))
        to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.add("Cast", [x], x.shape, x, 1.0 if dtype == "bool" else None, dtype=dtype, to=to)

    def diamond(self) -> bool:
        """Two ways from one value that meet again; one of them may be a statistic of its rows."""
        x = self.some(lambda v: v.dtype != "bool")
        if x is None:
            return False
        if x.shape and self.flag():
            if not self.reduced(x, keep=True):
                return False
        else:
            self.values.append(x)
            if not self.one(self.unary, self.binary, self.mirror)():
                return False
        y = self.values[-1]
        if y.dtype != x.dtype or not fit(x.shape, y.shape):
            return False
        op, shape = self.one("Add", "Sub", "Mul", "Max"), broadcast(x.shape, y.shape)
        bound = x.bound * y.bound if op == "Mul" else x.bound + y.bound
        return self.add(op, [x, y] if self.flag() else [y, x], shape, x, bound)

    def join(self, a: Value, b: Value) -> bool:
        if a.dtype != b.dtype or not fit(a.shape, b.shape):
            return False
        op = "Xor" if a.dtype == "bool" else self.one("Max", "Add")
        return self.add(op, [a, b], broadcast(a.shape, b.shape), a, a.bound + b.bound)

    # -- moving --

    def transpose(self) -> bool:
        x = self.some(lambda v: bool(v.shape))
        if x is None:
            return False
        order = self._draw(st.permutations(range(len(x.shape))))
        return self.add("Transpose", [x], tuple(x.shape[d] for d in order), x, perm=list(order))

    def reshape(self) -> bool:
        x = self.some()
        assert x is not None
        shape, at = list(x.shape), self.count(0, len(x.shape))
        how = self.one("join", "split", "one", "regroup")
        if how == "join" and len(shape) > 1:
            shape[at : at + 2] = [math.prod(shape[at : at + 2])] if at < len(shape) else []
        elif how == "split" and at < len(shape):
            divisor = next((k for k in (2, 3, 5, 7) if shape[at] % k == 0), 1)
            shape[at : at + 1] = [divisor, shape[at] // divisor]
        elif how == "regroup" and len(shape) > 1:
            size = math.prod(shape)
            shape = next(([k, size // k] for k in (5, 4, 3, 2) if size % k == 0), [size])
        else:
            shape.insert(at, 1)
        if len(shape) > 6:
            return False
        return self.add("Reshape", [x, self.fixed(np.array(shape, np.int64))], tuple(shape), x)

    def expand(self) -> bool:
        x = self.some()
        assert x is not None
        shape = [d if d > 1 else self.one(1, 2, 5, 17) for d in x.shape]
        shape = [self.one(2, 3), *shape] if self.flag() and len(shape) < 5 else shape
        return self.add("Expand", [x, self.fixed(np.array(shape, np.int64))], tuple(shape), x)

    def slice(self) -> bool:
        x = self.some(lambda v: bool(v.shape))
        if x is None:
            return False
        axis = self.count(0, len(x.shape) - 1)
        d, step = x.shape[axis], self.one(1, 2, -1, -3)
        begin, end = sorted((self.count(0, d - 1), self.count(0, d - 1)))
        part = range(begin, end + 1)[::step]
        stop = part[-1] + (1 if step > 0 else -1)
        parameters = [part[0], stop if stop >= 0 else -d - 1, axis, step]
        shape = (*x.shape[:axis], len(part), *x.shape[axis + 1 :])
        return self.add("Slice", [x, *(self.fixed(np.array([p])) for p in parameters)], shape, x)

    def mirror(self) -> bool:
        """The value backwards along an axis: other elements of a value that somebody else reads in order."""
        x = self.some(lambda v: bool(v.shape))
        if x is None:
            return False
        axis = self.count(0, len(x.shape) - 1)
        parameters = [-1, -x.shape[axis] - 1, axis, -1]
        return self.add("Slice", [x, *(self.fixed(np.array([p])) for p in parameters)], x.shape, x)

    def concat(self) -> bool:
        x = self.some(lambda v: bool(v.shape))
        if x is None:
            return False
        axis = self.count(0, len(x.shape) - 1)

        def beside(v: Value) -> bool:
            same = [a == b for k, (a, b) in enumerate(zip(v.shape, x.shape, strict=False)) if k != axis]
            return v.dtype == x.dtype and len(v.shape) == len(x.shape) and all(same)

        y = self.some(beside) if self.flag() else None
        y = y or self.leaf((*x.shape[:axis], self.one(1, 3, 16), *x.shape[axis + 1 :]), x.dtype)
        parts = self.one([x, y], [y, x], [x, y, x])
        total = sum(v.shape[axis] for v in parts)
        shape = (*x.shape[:axis], total, *x.shape[axis + 1 :])
        return self.add("Concat", parts, shape, x, axis=axis - self.one(0, len(shape)))

    def pad(self) -> bool:
        x = self.some(lambda v: bool(v.shape))
        if x is None:
            return False
        mode = self.one("constant", "edge", "reflect")
        most = min(2, min(x.shape) - 1) if mode == "reflect" else 2
        pads = [self.count(0, most) for _ in range(2 * len(x.shape))]
        rank = len(x.shape)
        shape = tuple(d + pads[k] + pads[rank + k] for k, d in enumerate(x.shape))
        return self.add("Pad", [x, self.fixed(np.array(pads))], shape, x, mode=mode)

    def tile(self) -> bool:
        x = self.some(lambda v: bool(v.shape))
        if x is None:
            return False
        times = [self.one(1, 1, 2, 3) for _ in x.shape]
        shape = tuple(d * t for d, t in zip(x.shape, times, strict=True))
        return self.add("Tile", [x, self.fixed(np.array(times))], shape, x)

    def gather(self) -> bool:
        x = self.some(lambda v: bool(v.shape))
        if x is None:
            return False
        axis = self.count(0, len(x.shape) - 1)
        d = x.shape[axis]
        own = self.one((), (3,), (2, 5))
        if len(x.shape) + len(own) > 6:
            return False
        if self.flag():
            store, name = self.one((self.constants, "at"), (self.inputs, "places"))
            name = f"{name}{len(store)}"
            store[name] = self._random.integers(-d, d, own).astype(self.one(*INTEGERS))
            shape = (*x.shape[:axis], *own, *x.shape[axis + 1 :])
            return self.add("Gather", [x, name], shape, x, axis=axis)
        name = f"places{len(self.inputs)}"
        self.inputs[name] = self._random.integers(-d, d, x.shape)
        return self.add("GatherElements", [x, name], x.shape, x, axis=axis)

    def triangle(self) -> bool:
        x = self.some(lambda v: len(v.shape) > 1)
        if x is None:
            return False
        return self.add(
            "Trilu", [x, self.fixed(np.int64(self.count(-2, 2)))], x.shape, x, upper=self.one(0, 1)
        )

    def resize(self) -> bool:
        x = self.some(lambda v: bool(v.shape) and v.floating)
        if x is None:
            return False
        scales = [self.one(1.0, 1.0, 2.0, 0.5, 1.5) if d > 1 else 1.0 for d in x.shape]
        shape = tuple(int(d * s) for d, s in zip(x.shape, scales, strict=True))
        none = self.fixed(np.zeros(0, np.float32))
        mode = self.one("nearest", "linear")
        given = [x, none, self.fixed(np.array(scales, np.float32))]
        return self.add("Resize", given, shape, x, rounds=mode == "linear", mode=mode)

    def split(self) -> bool:
        x = self.some(lambda v: bool(v.shape) and v.shape[0] > 1)
        if x is None:
            return False
        sizes = (1, x.shape[0] - 1)
        parts = [
            Value(f"v{len(self.nodes)}_{k}", (n, *x.shape[1:]), x.dtype, x.bound, x.exact)
            for k, n in enumerate(sizes)
        ]
        names = [x.name, self.fixed(np.array(sizes))]
        self.nodes.append(helper.make_node("Split", names, [p.name for p in parts], axis=0))
        self.values += parts
        return True

    # -- reducing --

    def reduce(self) -> bool:
        x = self.some(lambda v: bool(v.shape) and v.dtype != "bool")
        return x is not None and self.reduced(x, self.flag())

    def reduced(self, x: Value, keep: bool) -> bool:
        axes = self._draw(st.lists(st.integers(0, len(x.shape) - 1), min_size=1, unique=True))
        count = math.prod(x.shape[a] for a in axes)
        shape = tuple(1 if k in axes else d for k, d in enumerate(x.shape) if keep or k not in axes)
        bounds = {
            "ReduceMax": x.bound,
            "ReduceMin": x.bound,
            "ReduceSum": x.bound * count,
            "ReduceL1": x.bound * count,
            "ReduceSumSquare": x.bound**2 * count,
        }
        rounding = {"ReduceMean": x.bound, "ReduceL2": x.bound * math.sqrt(count)} if x.floating else {}
        rounding |= {"ReduceLogSumExp": x.bound + math.log(count)} if x.floating and x.bound < 20 else {}
        bounds |= rounding
        op = self.one(*bounds)
        given = [x, self.fixed(np.array(axes))]
        return self.add(op, given, shape, x, bounds[op], rounds=op in rounding, keepdims=int(keep))

    def normalize(self) -> bool:
        x = self.some(lambda v: bool(v.shape) and v.floating)
        if x is None:
            return False
        axis = self.count(0, len(x.shape) - 1)
        op = self.one("Softmax", "LogSoftmax", "LayerNormalization")
        if op != "LayerNormalization":
            return self.add(op, [x], x.shape, x, 2 * x.bound + 10, rounds=True, axis=axis)
        gain, bias = (self.leaf(x.shape[axis:], x.dtype) for _ in range(2))
        bound = 3 + 3 * math.sqrt(math.prod(x.shape[axis:]))
        return self.add(op, [x, gain, bias], x.shape, x, bound, rounds=True, axis=axis, epsilon=0.1)

    def arg(self) -> bool:
        x = self.some(lambda v: bool(v.shape) and v.exact and v.dtype != "bool")
        if x is None:
            return False
        axis, keep = self.count(0, len(x.shape) - 1), self.flag()
        shape = tuple(1 if k == axis else d for k, d in enumerate(x.shape) if keep or k != axis)
        attributes: dict[str, Any] = {
            "axis": axis,
            "keepdims": int(keep),
            "select_last_index": self.one(0, 1),
        }
        bound = float(x.shape[axis])
        return self.add(self.one("ArgMax", "ArgMin"), [x], shape, x, bound, dtype="int64", **attributes)

    def pool(self) -> bool:
        x = self.some(lambda v: 3 <= len(v.shape) <= 5 and v.floating)
        if x is None:
            return False
        kernel = [self.one(1, 2, 3) if d > 3 else 1 for d in x.shape[2:]]
        strides = [self.one(1, 2) for _ in kernel]
        pads = [k // 2 for k in kernel] * 2 if self.flag() else [0] * (2 * len(kernel))
        spatial = [
            (d + 2 * p - k) // s + 1 for d, p, k, s in zip(x.shape[2:], pads, kernel, strides, strict=False)
        ]
        op, shape = self.one("MaxPool", "AveragePool"), (*x.shape[:2], *spatial)
        window: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
        return self.add(op, [x], shape, x, rounds=op == "AveragePool", **window)

    def scan(self) -> bool:
        x = self.some(lambda v: bool(v.shape) and v.dtype != "bool")
        if x is None:
            return False
        axis = self.count(0, len(x.shape) - 1)
        how: dict[str, Any] = {"exclusive": self.one(0, 1), "reverse": self.one(0, 1)}
        return self.add("CumSum", [x, self.fixed(np.int64(axis))], x.shape, x, x.bound * x.shape[axis], **how)
