"""Pad at every opset, with pads that remove elements as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from collage_core.operators.windows import Tensor

__all__ = ["Pad"]


class Pad(OpRun):
    """A negative pad removes elements on its side, before others add some. The text ("elements to add or
    remove (if negative)") leaves open what `reflect` and `wrap` then repeat; ONNX Runtime reads it so.
    """

    def _run(
        self,
        data: Tensor,
        pads: Sequence[int] | Tensor | None = None,
        constant_value: Tensor | None = None,
        axes: Tensor | None = None,
        mode: str = "constant",
        paddings: Sequence[int] = (),
        value: float | None = None,
    ) -> tuple[Tensor]:
        given = [int(p) for p in np.ravel(paddings if pads is None else pads)]
        chosen = range(data.ndim) if axes is None else [int(a) % data.ndim for a in np.ravel(axes)]
        if len(given) != 2 * len(chosen):
            raise ValueError(f"{len(given)} pads for {len(chosen)} axes")
        before, after = [0] * data.ndim, [0] * data.ndim
        for axis, first, last in zip(chosen, given[: len(chosen)], given[len(chosen) :], strict=True):
            before[axis], after[axis] = first, last
        kept = data[
            tuple(
                slice(max(0, -first), max(0, size + min(0, last)))
                for size, first, last in zip(data.shape, before, after, strict=True)
            )
        ]
        widths = [(max(0, first), max(0, last)) for first, last in zip(before, after, strict=True)]
        options: dict[str, Any] = {}
        if mode == "constant":
            fill = value if constant_value is None else np.asarray(constant_value).reshape(-1)[0]
            options["constant_values"] = 0 if fill is None else fill
        padded: Tensor = np.pad(kept, widths, mode=mode, **options)  # type: ignore[call-overload]  # any mode
        return (padded.astype(data.dtype, copy=False),)
