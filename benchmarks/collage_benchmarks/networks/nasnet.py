"""NASNet-A (Zoph et al., arXiv 1707.07012, Figure 4): normal cells, one after the other."""

from __future__ import annotations

import onnx

from collage_benchmarks.networks.builder import GraphBuilder
from collage_benchmarks.networks.layers import classifier, conv, conv_norm

__all__ = ["nasnet_a"]


def nasnet_a(
    *, cells: int = 6, channels: int = 64, image: int = 56, classes: int = 1000, seed: int = 0
) -> onnx.ModelProto:
    """A stem, `cells` normal cells of one width and a classifier. `image` [1, 3, S, S] -> `logits`."""
    g = GraphBuilder(f"nasnet_a_{cells}x{channels}", seed=seed)
    last = conv_norm(g, "stem/conv", "stem/bn", g.input("image", [1, 3, image, image]), 3, channels, 3)
    before, widths = last, (channels, channels)
    for cell in range(cells):
        before, last = last, _normal_cell(g, f"cell.{cell}", before, last, widths, channels)
        widths = widths[1], 6 * channels
    classifier(g, "avgpool", "fc", g.op("relu", "Relu", last), 6 * channels, classes)
    return g.model()


def _normal_cell(
    g: GraphBuilder, path: str, before: str, last: str, widths: tuple[int, int], channels: int
) -> str:
    """Five sums of two branches each, joined with the cell's second input; 6 * channels wide."""
    p = _squeeze(g, f"{path}/before", before, widths[0], channels)
    h = _squeeze(g, f"{path}/last", last, widths[1], channels)

    def separable(name: str, x: str, kernel: int) -> str:
        """Depthwise and pointwise, twice."""
        for step in ("1", "2"):
            here = f"{path}/{name}.{step}"
            x = g.op(f"{here}/relu", "Relu", x)
            x = conv(g, f"{here}/depthwise", x, channels, channels, kernel, group=channels)
            x = conv_norm(g, f"{here}/pointwise", f"{here}/bn", x, channels, channels, 1, gain=0.7)
        return x

    def average(name: str, x: str) -> str:
        return g.op(f"{path}/{name}", "AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4)

    sums = [
        (separable("sep5_h", h, 5), separable("sep3_p", p, 3)),
        (separable("sep5_p", p, 5), separable("sep3_p2", p, 3)),
        (average("pool_h", h), p),
        (average("pool_p", p), average("pool_p2", p)),
        (separable("sep3_h", h, 3), h),
    ]
    joined = [g.op(f"{path}/sum.{i}", "Add", *pair) for i, pair in enumerate(sums)]
    return g.op(path, "Concat", p, *joined, axis=1)


def _squeeze(g: GraphBuilder, path: str, x: str, channels_in: int, channels: int) -> str:
    y = g.op(f"{path}/relu", "Relu", x)
    return conv_norm(g, f"{path}/conv", f"{path}/bn", y, channels_in, channels, 1)
