"""Convolutions of all kinds."""

from __future__ import annotations

from typing import Any

from collage_benchmarks.generator.builder import Builder, Value
from collage_benchmarks.generator.domains import ANY, SMALL, Domain
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY", "Window", "window"]

FAMILY = Family()

AUTO = ("SAME_UPPER", "SAME_LOWER", "VALID")


class Window:
    """A window over spatial sizes, as attributes: pads or auto_pad, strides and dilations, some left out."""

    def __init__(self, b: Builder, spatial: int, *, dilated: bool = True, automatic: bool = True) -> None:
        self.kernel = [b.integer(1, 3) for _ in range(spatial)]
        self.strides = [b.integer(1, 3) for _ in range(spatial)]
        self.dilations = (
            [b.integer(1, 2) for _ in range(spatial)] if dilated and b.one_in(3) else [1] * spatial
        )
        self.auto = b.choice(AUTO) if automatic and b.one_in(3) else None
        if self.auto is not None and self.auto != "VALID":
            self.dilations = [1] * spatial
        reach = [(k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True)]
        # No window lies in the padding alone.
        self.pads = [b.integer(0, r) for r in reach] + [b.integer(0, r) for r in reach]
        self.sizes = [r + 1 + b.integer(0, 6) for r in reach]
        ones = all(v == 1 for v in self.strides) and b.flag()
        self.attributes: dict[str, Any] = {
            "strides": None if ones else self.strides,
            "pads": None if self.auto or (not any(self.pads) and b.flag()) else self.pads,
            "auto_pad": self.auto or (b.choice([None, "NOTSET"])),
        }
        if dilated:
            plain = all(d == 1 for d in self.dilations) and b.flag()
            self.attributes["dilations"] = None if plain else self.dilations


def window(b: Builder, *, dilated: bool = True, automatic: bool = True) -> Window:
    """One to three spatial dimensions, two mostly."""
    return Window(b, b.choice([2, 2, 1, 3]), dilated=dilated, automatic=automatic)


@FAMILY.add("Conv")
def conv(b: Builder) -> None:
    w = window(b)
    group, inside, outside = b.sizes((1, 3), (1, 4), (1, 4))
    x = _images(b, b.dtype("Conv"), group * inside, w)
    weights = b.operand(x.dtype, (group * outside, inside, *w.kernel))
    bias = b.operand(x.dtype, (group * outside,)) if b.flag() else None
    b.node("Conv", [x, weights, bias], **{**_told(b, w, group), **w.attributes})


@FAMILY.add("ConvTranspose")
def conv_transpose(b: Builder) -> None:
    """SAME is left out where the stride exceeds the kernel: ONNX's formula asks for negative pads there."""
    w = window(b)
    if w.auto is not None and any(s > k for s, k in zip(w.strides, w.kernel, strict=True)):
        w.attributes["auto_pad"] = None
    group, inside, outside = b.sizes((1, 3), (1, 3), (1, 3))
    x = _images(b, b.dtype("ConvTranspose"), group * inside, w)
    weights = b.operand(x.dtype, (group * inside, outside, *w.kernel))
    bias = b.operand(x.dtype, (group * outside,)) if b.flag() else None
    extra = [b.integer(0, max(s, d) - 1) for s, d in zip(w.strides, w.dilations, strict=True)]
    attributes = {**_told(b, w, group), **w.attributes}
    if w.auto is None and b.flag():
        attributes["output_padding"] = extra
    b.node("ConvTranspose", [x, weights, bias], **attributes)


@FAMILY.add("ConvInteger")
def conv_integer(b: Builder) -> None:
    w = window(b)
    channels, outside = b.sizes((1, 3), (1, 4))
    x = _images(b, b.dtype("ConvInteger"), channels, w, Domain(-9, 9))
    weights = b.operand(b.dtype("ConvInteger", "T2"), (outside, channels, *w.kernel), Domain(-9, 9))
    zero = b.operand(x.dtype, (), SMALL) if b.flag() else None
    other = b.operand(weights.dtype, (), SMALL) if zero and b.flag() else None
    b.node("ConvInteger", [x, weights, zero, other], **w.attributes)


@FAMILY.add("DeformConv")
def deform_conv(b: Builder) -> None:
    w = Window(b, 2, automatic=False)
    group, inside, outside, offsets = b.sizes((1, 2), (1, 2), (1, 2), (1, 1))
    x = _images(b, b.dtype("DeformConv"), group * inside, w)
    weights = b.operand(x.dtype, (group * outside, inside, *w.kernel))
    places = _out_sizes(w)
    area = w.kernel[0] * w.kernel[1]
    offset = b.operand(x.dtype, (x.shape[0], offsets * area * 2, *places))
    bias = b.operand(x.dtype, (group * outside,)) if b.flag() else None
    mask = b.operand(x.dtype, (x.shape[0], offsets * area, *places)) if b.flag() else None
    attributes = {k: v for k, v in w.attributes.items() if k != "auto_pad"}
    b.node("DeformConv", [x, weights, offset, bias, mask], group=group, **attributes)


def _told(b: Builder, w: Window, group: int) -> dict[str, Any]:
    """The attributes that may be left out: what the weights say, and one group."""
    return {
        "kernel_shape": w.kernel if b.flag() else None,
        "group": None if group == 1 and b.flag() else group,
    }


def _out_sizes(w: Window) -> list[int]:
    found = []
    spatial = len(w.kernel)
    pads = w.pads if w.attributes["pads"] is not None else [0] * (2 * spatial)
    for i in range(spatial):
        reach = (w.kernel[i] - 1) * w.dilations[i] + 1
        found.append((w.sizes[i] + pads[i] + pads[i + spatial] - reach) // w.strides[i] + 1)
    return found


def _images(b: Builder, dtype: str, channels: int, w: Window, domain: Domain = ANY) -> Value:
    return b.operand(dtype, (b.integer(1, 2), channels, *w.sizes), domain)
