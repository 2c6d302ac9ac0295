"""CumSum."""

from __future__ import annotations

from typing import Any

from collage_tvm.lower.context import LoweringContext, lowering
from collage_tvm.tensor import Index, Scan, Scope, Tensor, make


@lowering("CumSum")
def _cumulative_sum(node: LoweringContext) -> list[Tensor]:
    x, axis = node.tensor(0), node.integers(1, "axis")
    assert axis is not None

    def element(s: Scope, i: Index) -> Any:
        raise AssertionError("the schedule stores a scan's elements itself")

    exclusive, reverse = bool(node.attribute("exclusive", 0)), bool(node.attribute("reverse", 0))
    scan = Scan(x, axis[0] % len(x.shape), exclusive, reverse)
    return [make(x.shape, x.dtype, [x], element, scan=scan)]
