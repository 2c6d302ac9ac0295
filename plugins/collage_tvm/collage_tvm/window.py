"""Where a pooling window lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage_core.ir import Attribute

__all__ = ["Window", "window_of"]


@dataclass(frozen=True)
class Window:
    """Sizes per spatial dimension. `before` and `after`: padding in elements, without what ceil_mode adds."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def position(self, d: int, output: Any, k: Any) -> Any:
        """Position in the input that element k of the window of an output element reads; outside of the input
        in its padding."""
        first = output * self.strides[d] if self.strides[d] != 1 else output
        return first + k * self.dilations[d] - self.before[d]

    def borders(self, d: int, size: int, outputs: int) -> frozenset[int]:
        """The outputs between which windows begin to lie inside the input, and to leave it."""
        whole = [
            o
            for o in range(outputs)
            if self.position(d, o, 0) >= 0 and self.position(d, o, self.kernel[d] - 1) < size
        ]
        return frozenset(b for b in (whole[0], whole[-1] + 1) if 0 < b < outputs) if whole else frozenset()


def window_of(attributes: Mapping[str, Attribute], input: Sequence[int], output: Sequence[int]) -> Window:
    """The window of an ONNX MaxPool or AveragePool."""
    kernel = tuple(attributes["kernel_shape"])
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    pads = tuple(attributes.get("pads") or (0,) * (2 * rank))
    before, after = pads[:rank], pads[rank:]
    automatic = attributes.get("auto_pad", "NOTSET")
    automatic = automatic.decode() if isinstance(automatic, bytes) else automatic
    if automatic.startswith("SAME"):
        total = [
            max(0, (output[d + 2] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - input[d + 2])
            for d in range(rank)
        ]
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        before, after = (small, large) if automatic == "SAME_UPPER" else (large, small)
    elif automatic == "VALID":
        before = after = (0,) * rank
    return Window(kernel, strides, dilations, before, after)
