"""Windows of convolutions and pooling, and resampling maps: ONNX's attributes as the numbers that oneDNN
takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Operator

__all__ = ["Window", "conv_window", "deconv_window", "pool_window", "resize_refusal"]


@dataclass(frozen=True, slots=True)
class Window:
    """Per spatial dimension; dilation 1 means none."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """Input elements that the window spans."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def _base(graph: Graph, node: Node) -> Window | Refusal:
    """The window as the attributes say, the padding that `auto_pad` means worked out."""
    x, y = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    n = len(x) - 2
    lengths = {"kernel_shape": n, "strides": n, "dilations": n, "output_padding": n, "pads": 2 * n}
    for name, length in lengths.items():
        if name in node.attributes and len(node.attributes[name]) != length:
            return Refusal(f"{name} is not {length} numbers, as {n} spatial dimensions want", node.name)
    weights = node.inputs[1:2] if node.op_type in ("Conv", "ConvTranspose") else ()
    if len(y) != len(x) or any(len(graph.shape_of(w)) != len(x) for w in weights):
        return Refusal("input, weights and output differ in rank", node.name)
    attributes = Operator(graph, node).attrs
    kernel = graph.shape_of(weights[0])[2:] if weights else tuple(attributes["kernel_shape"])
    pads = tuple(attributes["pads"])
    strides, dilations = tuple(attributes["strides"]), tuple(attributes["dilations"])
    if min((*kernel, *strides, *dilations)) < 1:
        return Refusal("kernel, strides or dilations are not positive", node.name)
    # Between the elements of one there is nothing, and oneDNN refuses to dilate it.
    dilations = tuple(1 if k == 1 else d for k, d in zip(kernel, dilations, strict=True))
    return Window(kernel, strides, dilations, pads[:n], pads[n:])


def conv_window(graph: Graph, node: Node) -> Window | Refusal:
    """The window of a Conv."""
    window = _base(graph, node)
    if isinstance(window, Refusal):
        return window
    if min((*window.begin, *window.end)) < 0:
        return Refusal("padding is negative", node.name)
    return window


def deconv_window(graph: Graph, node: Node) -> Window | Refusal:
    """The window of a ConvTranspose; `end` makes up for output_padding and may be negative."""
    x, y = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    window = _base(graph, node)
    if isinstance(window, Refusal):
        return window
    n = len(window.kernel)
    total = [
        (i - 1) * s + e - o for i, s, e, o in zip(x[2:], window.strides, window.extent, y[2:], strict=True)
    ]
    begin = window.begin
    if "output_shape" in node.attributes or str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME"):
        extra = node.attributes.get("output_padding", (0,) * n)
        whole = [t + p for t, p in zip(total, extra, strict=True)]
        if any(t % 2 for t in whole):
            return Refusal("an odd total padding is to be split, on which versions of ONNX differ", node.name)
        begin = tuple(t // 2 for t in whole)
    end = tuple(t - b for t, b in zip(total, begin, strict=True))
    if min(begin) < 0:
        return Refusal("padding is negative", node.name)
    if any(e + s <= 0 for e, s in zip(end, window.strides, strict=True)):
        return Refusal("output padding is as large as the stride", node.name)
    return Window(window.kernel, window.strides, window.dilations, begin, end)


def pool_window(graph: Graph, node: Node) -> Window | Refusal:
    """The window of a pooling operator; that of a global one is the whole input."""
    x, y = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    n = len(x) - 2
    if node.op_type.startswith("Global"):
        return Window(x[2:], (1,) * n, (1,) * n, (0,) * n, (0,) * n)
    window = _base(graph, node)
    if isinstance(window, Refusal):
        return window
    same = str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    if same and any(o != -(-i // s) for o, i, s in zip(y[2:], x[2:], window.strides, strict=True)):
        return Refusal("the output has another size than automatic padding gives it", node.name)
    needed = tuple(
        (o - 1) * s + e - i - b
        for o, s, e, i, b in zip(y[2:], window.strides, window.extent, x[2:], window.begin, strict=True)
    )
    end = tuple(max(a, b) for a, b in zip(window.end, needed, strict=True))
    if min((*window.begin, *window.end)) < 0:
        return Refusal("padding is negative", node.name)
    average = node.op_type == "AveragePool"
    if average and node.attributes.get("count_include_pad", 0) and end != window.end:
        return Refusal(
            "ceil_mode reaches beyond the padding, which count_include_pad must not count", node.name
        )
    for o, s, i, b, e, d in zip(
        y[2:], window.strides, x[2:], window.begin, window.extent, window.dilations, strict=True
    ):
        if b >= e or (o - 1) * s - b >= i or (d > 1 and (b or (o - 1) * s + e - b > i)):
            return Refusal("a window may lie in the padding alone", node.name)
    return Window(window.kernel, window.strides, window.dilations, window.begin, end)


def _constant_floats(graph: Graph, node: Node, index: int) -> npt.NDArray[np.float64] | None:
    if index >= len(node.inputs) or not node.inputs[index]:
        return None
    data = graph.constants.get(node.inputs[index])
    return None if data is None or data.size == 0 else np.asarray(data, np.float64)


def resize_refusal(graph: Graph, node: Node) -> Refusal | None:
    """Why oneDNN's resampling is not exactly this Resize; None if it is.

    Source positions of every output element are computed in both ways and compared: oneDNN maps o to (o +
    0.5) * in / out - 0.5, and rounds half up for the nearest element.
    """
    attribute = node.attributes
    mode = str(attribute.get("mode", "nearest"))
    if mode not in ("nearest", "linear"):
        return Refusal(f"mode {mode!r} is not one of oneDNN's", node.name)
    if attribute.get("antialias", 0) or attribute.get("exclude_outside", 0):
        return Refusal("antialiasing and excluded borders are not oneDNN's", node.name)
    if "axes" in attribute or str(attribute.get("keep_aspect_ratio_policy", "stretch")) != "stretch":
        return Refusal("axes and keep_aspect_ratio_policy are not supported", node.name)
    x, y = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    if x[:2] != y[:2]:
        return Refusal("batch or channels are resized", node.name)
    scales, sizes = _constant_floats(graph, node, 2), _constant_floats(graph, node, 3)
    if scales is None and sizes is None:
        return Refusal("neither scales nor sizes are constant", node.name)
    transform = str(attribute.get("coordinate_transformation_mode", "half_pixel"))
    for d in range(2, len(x)):
        scale = float(scales[d]) if scales is not None else y[d] / x[d]
        theirs = _source_positions(transform, x[d], y[d], scale)
        if theirs is None:
            return Refusal(f"coordinate_transformation_mode {transform!r} is not supported", node.name)
        ours = (np.arange(y[d]) + 0.5) * x[d] / y[d] - 0.5
        if mode == "linear":
            same = np.allclose(np.clip(theirs, 0, x[d] - 1), np.clip(ours, 0, x[d] - 1), rtol=0, atol=1e-6)
        else:
            rounded = _round(str(attribute.get("nearest_mode", "round_prefer_floor")), theirs)
            if np.any(np.abs(ours - np.floor(ours) - 0.5) < 1e-4):
                return Refusal("an output element lies half-way between two input elements", node.name)
            same = np.array_equal(np.clip(rounded, 0, x[d] - 1), np.clip(np.floor(ours + 0.5), 0, x[d] - 1))
        if not same:
            return Refusal(
                f"{mode} with {transform} reads other elements than oneDNN's resampling", node.name
            )
    return None


def _source_positions(
    transform: str, size: int, resized: int, scale: float
) -> npt.NDArray[np.float64] | None:
    o = np.arange(resized, dtype=np.float64)
    if transform == "half_pixel" or (transform == "pytorch_half_pixel" and resized > 1):
        return (o + 0.5) / scale - 0.5
    if transform == "pytorch_half_pixel":
        return o * 0.0
    if transform == "asymmetric":
        return o / scale
    if transform == "align_corners":
        return o * 0.0 if resized == 1 else o * (size - 1) / (resized - 1)
    return None


def _round(mode: str, positions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    # Positions that are integers up to rounding errors count as such.
    near = np.round(positions, 6)
    if mode == "floor":
        return np.floor(near)
    if mode == "ceil":
        return np.ceil(near)
    if mode == "round_prefer_ceil":
        return np.floor(near + 0.5)
    return np.ceil(near - 0.5)
