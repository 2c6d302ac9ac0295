"""The elements of a group without a reduction, as written once over loops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import sym, tirx

from collage_tvm.nest import Axis, Template, axes_of, integer, merge, new_scope, substituted, template
from collage_tvm.output import Output
from collage_tvm.pointwise import stored_value
from collage_tvm.tensor import Index, refine

__all__ = ["Elements", "elements_of", "place"]

Expr = Any


@dataclass(frozen=True)
class Elements:
    """The body of one element over `axes`, outermost first. replace: what became of the loops over digits."""

    body: Template
    axes: list[Axis]
    replace: Mapping[Any, Expr]
    outputs: Sequence[Output]

    def at(self, place: Mapping[Any, Expr]) -> dict[Any, Expr]:
        """What stands for every variable where the loops' are at `place`."""
        return {**{v: place.get(e, e) for v, e in self.replace.items()}, **place}

    def strides(self, offset: Expr) -> tuple[list[int], int] | None:
        """By how much an offset advances with each of the loops, and where it begins; None if not evenly."""
        variables = [a.var for a in self.axes]
        linear = sym.detect_linear_equation(substituted(offset, self.replace), variables)
        if not len(linear) or not all(isinstance(c, tirx.IntImm) for c in linear):
            return None
        *strides, begin = (int(c.value) for c in linear)
        return strides, begin


def elements_of(outputs: Sequence[Output]) -> Elements:
    """Of outputs of one shape and layout."""
    first = outputs[0].tensor
    analyzer = sym.Analyzer()
    factors = list(first.factors)
    for output in outputs[1:]:
        factors = [refine(a, b) for a, b in zip(factors, output.tensor.factors, strict=True)]
    box = tuple((0, d) for d in first.shape)
    axes, index = axes_of(analyzer, box, factors, first.shape, outputs[0].layout)
    logical: Index = tuple(index[d] for d in range(len(first.shape)))
    scope = new_scope(analyzer, [o.tensor for o in outputs])
    stores: list[tuple[Any, Expr, Expr]] = []
    for output in outputs:
        value = stored_value(scope.value(output.tensor, logical), output.tensor.dtype)
        stores.append((output.buffer, tirx.convert(output.offset(logical)), value))
    body = template(scope, stores, [offset for _, offset, _ in stores])
    [merged], replace = merge([body], [axes])
    return Elements(body, merged, replace, outputs)


def place(axes: Sequence[Axis], position: Expr) -> dict[Any, Expr]:
    """Each loop's variable where all of them together have come to `position`."""
    found: dict[Any, Expr] = {}
    stride = math.prod(a.extent for a in axes)
    for k, axis in enumerate(axes):
        stride //= axis.extent
        digit = tirx.indexdiv(position, integer(stride)) if stride > 1 else position
        found[axis.var] = tirx.indexmod(digit, integer(axis.extent)) if k else digit
    return found
