"""A one-stage detector: cross-stage partial blocks (Wang et al., arXiv 1911.11929), a pyramid of three scales
in both directions (Liu et al., arXiv 1803.01534), SiLU, and boxes decoded in the graph. Normalisations are
folded, as exporters do.
"""

from __future__ import annotations

import numpy as np
import onnx

from collage_benchmarks.networks.builder import GraphBuilder
from collage_benchmarks.networks.layers import conv

__all__ = ["detector"]

_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""Width and height in pixels, by scale, the finest first."""
_STRIDES = (8, 16, 32)
_SILU = 1.1
"""Keeps the size of what goes through a convolution and a SiLU, about."""
_BOX = 5
"""x, y, width, height, and whether there is anything."""


def detector(*, image: int = 320, classes: int = 80, seed: int = 0) -> onnx.ModelProto:
    """`image` [1, 3, S, S], S a multiple of 32 -> `boxes` [1, 3 (S/8)^2 + ..., 5 + classes]: centre, size in
    pixels, scores in 0..1.
    """
    g = GraphBuilder("detector", seed=seed)
    x = _conv(g, "backbone.0", g.input("image", [1, 3, image, image]), 3, 32, 3, 2)
    x = _partial(g, "backbone.2", _conv(g, "backbone.1", x, 32, 64, 3, 2), 64, 64, 3)
    fine = _partial(g, "backbone.4", _conv(g, "backbone.3", x, 64, 128, 3, 2), 128, 128, 6)
    middle = _partial(g, "backbone.6", _conv(g, "backbone.5", fine, 128, 256, 3, 2), 256, 256, 9)
    coarse = _partial(g, "backbone.8", _conv(g, "backbone.7", middle, 256, 512, 3, 2), 512, 512, 3)
    coarse = _pooled(g, "backbone.9", coarse, 512)

    top = _conv(g, "neck.0", coarse, 512, 256, 1)
    x = g.op("neck.1", "Concat", _twice(g, "neck.1", top), middle, axis=1)
    lateral = _conv(g, "neck.3", _partial(g, "neck.2", x, 512, 256, 3, adds=False), 256, 128, 1)
    x = g.op("neck.4", "Concat", _twice(g, "neck.4", lateral), fine, axis=1)
    fine = _partial(g, "neck.5", x, 256, 128, 3, adds=False)
    x = g.op("neck.6", "Concat", _conv(g, "neck.6", fine, 128, 128, 3, 2), lateral, axis=1)
    middle = _partial(g, "neck.7", x, 256, 256, 3, adds=False)
    x = g.op("neck.8", "Concat", _conv(g, "neck.8", middle, 256, 256, 3, 2), top, axis=1)
    coarse = _partial(g, "neck.9", x, 512, 512, 3, adds=False)

    scales = zip((fine, middle, coarse), (128, 256, 512), _STRIDES, _ANCHORS, strict=True)
    decoded = [
        _boxes(g, f"head.{i}", x, channels, image // stride, stride, anchors, classes)
        for i, (x, channels, stride, anchors) in enumerate(scales)
    ]
    g.output(g.op("head", "Concat", *decoded, axis=1, output="boxes"))
    return g.model()


def _conv(
    g: GraphBuilder,
    path: str,
    x: str,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    gain: float = _SILU,
) -> str:
    y = conv(g, path, x, inputs, outputs, kernel, stride=stride, bias=True, gain=gain)
    return g.op(f"{path}/act", "Mul", y, g.op(f"{path}/act", "Sigmoid", y))


def _partial(
    g: GraphBuilder, path: str, x: str, inputs: int, outputs: int, blocks: int, *, adds: bool = True
) -> str:
    """Half of the channels go through the blocks, the other half beside them."""
    half = outputs // 2
    y = _conv(g, f"{path}/cv1", x, inputs, half, 1)
    for i in range(blocks):
        block = f"{path}/m.{i}"
        z = _conv(g, f"{block}/cv1", y, half, half, 1)
        z = _conv(g, f"{block}/cv2", z, half, half, 3, gain=0.2 if adds else _SILU)
        y = g.op(block, "Add", y, z) if adds else z
    joined = g.op(path, "Concat", y, _conv(g, f"{path}/cv2", x, inputs, half, 1), axis=1)
    return _conv(g, f"{path}/cv3", joined, outputs, outputs, 1)


def _pooled(g: GraphBuilder, path: str, x: str, channels: int) -> str:
    """Maxima over windows of 5, 9 and 13, one after the other."""
    found = [_conv(g, f"{path}/cv1", x, channels, channels // 2, 1)]
    for i in range(3):
        found.append(g.op(f"{path}/m.{i}", "MaxPool", found[-1], kernel_shape=[5, 5], pads=[2] * 4))
    joined = g.op(path, "Concat", *found, axis=1)
    return _conv(g, f"{path}/cv2", joined, 2 * channels, channels, 1)


def _twice(g: GraphBuilder, path: str, x: str) -> str:
    """As large again in both directions."""
    scales = g.constant(f"{path}.scales", np.array([1, 1, 2, 2], np.float32))
    return g.op(
        path,
        "Resize",
        x,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _boxes(
    g: GraphBuilder,
    path: str,
    x: str,
    channels: int,
    cells: int,
    stride: int,
    anchors: tuple[tuple[int, int], ...],
    classes: int,
) -> str:
    """[1, anchors * cells^2, 5 + classes] of one scale."""
    count, size = len(anchors), _BOX + classes
    y = conv(g, f"{path}/m", x, channels, count * size, 1, bias=True, gain=0.3)
    split = g.constant(f"{path}.split", np.array([1, count, size, cells, cells], np.int64))
    y = g.op(path, "Transpose", g.op(path, "Reshape", y, split), perm=[0, 1, 3, 4, 2])
    y = g.op(path, "Sigmoid", y)

    def part(name: str, first: int, last: int) -> str:
        ends = (
            g.constant(f"{path}.{name}.{i}", np.array([n], np.int64)) for i, n in enumerate((first, last))
        )
        axis = g.constant(f"{path}.{name}.axis", np.array([4], np.int64))
        return g.op(f"{path}/{name}", "Slice", y, *ends, axis)

    def number(name: str, value: float) -> str:
        return g.constant(f"{path}.{name}", np.array(value, np.float32))

    rows, columns = np.mgrid[:cells, :cells]
    grid = (np.stack([columns, rows], -1) - 0.5).astype(np.float32).reshape(1, 1, cells, cells, 2)
    sizes = np.array(anchors, np.float32).reshape(1, count, 1, 1, 2)
    xy = g.op(f"{path}/xy", "Mul", part("xy", 0, 2), number("two", 2))
    xy = g.op(f"{path}/xy", "Add", xy, g.constant(f"{path}.grid", grid))
    xy = g.op(f"{path}/xy.1", "Mul", xy, number("stride", stride))
    wh = g.op(f"{path}/wh", "Mul", part("wh", 2, 4), f"{path}.two")
    wh = g.op(f"{path}/wh", "Pow", wh, number("square", 2))
    wh = g.op(f"{path}/wh.1", "Mul", wh, g.constant(f"{path}.anchors", sizes))
    joined = g.op(f"{path}/all", "Concat", xy, wh, part("scores", 4, size), axis=4)
    flat = g.constant(f"{path}.flat", np.array([1, count * cells * cells, size], np.int64))
    return g.op(f"{path}/flat", "Reshape", joined, flat)
