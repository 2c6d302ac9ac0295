"""Windows of convolutions and pooling: ONNX's attributes as the numbers that cuDNN takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collage_core.errors import Refusal
from collage_core.ir import Graph, Node, Operator

__all__ = ["Window", "conv_window", "deconv_window", "pool_window"]


@dataclass(frozen=True, slots=True)
class Window:
    """Per spatial dimension; dilation 1 means none. begin, end: padding."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        """Input elements that the window spans."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def flat(self) -> Window:
        """With a dimension of size 1 before the only one: cuDNN has at least two."""
        if len(self.kernel) > 1:
            return self
        return Window(
            (1, *self.kernel), (1, *self.strides), (1, *self.dilations), (0, *self.begin), (0, *self.end)
        )


def _base(graph: Graph, node: Node) -> Window | Refusal:
    """The window as the attributes say, the padding that `auto_pad` means worked out."""
    x, y = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    n = len(x) - 2
    if not 1 <= n <= 3:
        return Refusal(f"{n} spatial dimensions; cuDNN has 1 to 3", node.name)
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
    return Window(kernel, strides, dilations, pads[:n], pads[n:])


def conv_window(graph: Graph, node: Node) -> Window | Refusal:
    """The window of a Conv."""
    window = _base(graph, node)
    if isinstance(window, Refusal):
        return window
    if min((*window.begin, *window.end)) < 0:
        return Refusal("padding is negative", node.name)
    if any(max(b, e) >= t for b, e, t in zip(window.begin, window.end, window.extent, strict=True)):
        return Refusal("a window may lie in the padding alone", node.name)
    return window


def deconv_window(graph: Graph, node: Node) -> Window | Refusal:
    """The window of a ConvTranspose: that of the convolution whose gradient it is. Where output_padding makes
    `end` negative, rounding down hides the difference.
    """
    window = _base(graph, node)
    if isinstance(window, Refusal):
        return window
    x, y = graph.shape_of(node.inputs[0]), graph.shape_of(node.outputs[0])
    if "output_shape" in node.attributes or str(node.attributes.get("auto_pad", "NOTSET")) != "NOTSET":
        return Refusal("padding that follows from the output's shape", node.name)
    total = [
        (i - 1) * s + e - o for i, s, e, o in zip(x[2:], window.strides, window.extent, y[2:], strict=True)
    ]
    end = tuple(t - b for t, b in zip(total, window.begin, strict=True))
    if min(window.begin) < 0:
        return Refusal("padding is negative", node.name)
    if any(e + s <= 0 for e, s in zip(end, window.strides, strict=True)):
        return Refusal("output padding is as large as the stride", node.name)
    padded = tuple(max(e, 0) for e in end)
    return Window(window.kernel, window.strides, window.dilations, window.begin, padded)


def pool_window(graph: Graph, node: Node) -> Window | Refusal:
    """The window of MaxPool or AveragePool, whose padding is the same on both sides, as cuDNN's is."""
    window = _base(graph, node)
    if isinstance(window, Refusal):
        return window
    if len(node.outputs) > 1 and node.outputs[1]:
        return Refusal("MaxPool's indices are asked for", node.name)
    if any(d > 1 and k > 1 for d, k in zip(window.dilations, window.kernel, strict=True)):
        return Refusal("cuDNN's pooling is not dilated", node.name)
    if min((*window.begin, *window.end)) < 0:
        return Refusal("padding is negative", node.name)
    x, y = graph.shape_of(node.inputs[0])[2:], graph.shape_of(node.outputs[0])[2:]

    def differs(same: Callable[[int, int, int, int, int], bool]) -> bool:
        return not all(map(same, x, y, window.kernel, window.strides, window.begin))

    if differs(lambda i, o, k, s, b: (i + 2 * b - k) // s + 1 == o):
        return Refusal("cuDNN's pooling pads both sides alike, which gives another size", node.name)
    if differs(lambda i, o, k, s, b: b < k and (o - 1) * s - b < i):
        return Refusal("a window may lie in the padding alone", node.name)
    counts = node.op_type == "AveragePool" and node.attributes.get("count_include_pad", 0)
    if counts and (window.begin != window.end or node.attributes.get("ceil_mode", 0)):
        return Refusal("count_include_pad with other padding behind than before", node.name)
    return window
