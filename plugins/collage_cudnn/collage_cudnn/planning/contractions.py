"""Convolutions, their transposes, and matrix products, with what follows them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from collage_core.errors import BackendError, Refusal
from collage_core.formats import element_strides
from collage_core.ir import Node, Operator
from collage_cudnn.description import Description, Tensor
from collage_cudnn.geometry import Window, conv_window, deconv_window
from collage_cudnn.place import Place, image_place, rows_place
from collage_cudnn.planning.site import Site

__all__ = ["plan_conv", "plan_deconv", "plan_product"]

_NOTHING = -0.0
"""What changes no number that it is added to, not even the sign of zero."""


def plan_conv(site: Site, node: Node) -> Description:
    """https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Convolutions.html"""
    window = _window(conv_window(site.graph, node))
    return _convolution(site, node, window, "conv_fprop")


def plan_deconv(site: Site, node: Node) -> Description:
    """As the gradient of the convolution that would lead from the output to the input."""
    window = _window(deconv_window(site.graph, node))
    return _convolution(site, node, window, "conv_dgrad")


def _window(found: Window | Refusal) -> Window:
    if isinstance(found, Refusal):
        raise BackendError(str(found))
    return found.flat()


def _convolution(site: Site, node: Node, window: Window, kind: str) -> Description:
    graph, chain = site.graph, site.chain
    x, w = node.inputs[:2]
    is_last = is_channels_last(site)
    of_image = image_place(graph.shape_of(x), is_last)
    image = site.value(x, of_image.tensor(of_image.shape, site.dtype))
    of_weights = image_place(graph.shape_of(w), is_last)
    weights = site.operand(w, of_weights, site.dtype)
    place = image_place(chain.shape, is_last)
    result = site.builder.step(
        kind,
        (image, weights),
        place.tensor(chain.shape, site.dtype).dims,
        pre_padding=window.begin,
        post_padding=window.end,
        stride=window.strides,
        dilation=window.dilations,
    )
    has_bias = len(node.inputs) > 2 and node.inputs[2]
    spatial = (1,) * (len(chain.shape) - 2)
    bias = [(node.inputs[2], (chain.shape[1], *spatial))] if has_bias else []
    return _summed(site, place, result, bias, needs_bias=kind == "conv_fprop")


def plan_product(site: Site, node: Node) -> Description:
    """As cuDNN's matmul, of which it has no kernels that do not round float32 to TF32; those it has of
    convolutions, such as the one of single pixels that a product with one constant matrix is.
    https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Matmul.html
    """
    graph, chain = site.graph, site.chain
    a, b = node.inputs[:2]
    is_transposed = node.op_type == "Gemm" and bool(Operator(graph, node).attrs["transB"])
    added = [(v, graph.shape_of(v)) for v in node.inputs[2:3] if v]
    shape_b = graph.shape_of(b)
    if site.way.is_image and graph.is_constant(b) and len(shape_b) == 2:
        columns, depth = chain.shape[-1], graph.shape_of(a)[-1]
        of_rows = rows_place(graph.shape_of(a))
        rows = site.value(a, of_rows.tensor(of_rows.shape, site.dtype))
        data = np.asarray(graph.constants[b])
        dims = (columns, depth, 1, 1)
        filters = Tensor(dims, element_strides(dims, (0, 2, 3, 1)), site.dtype)
        weights = site.constant(np.ascontiguousarray(data if is_transposed else data.T), filters)
        place = rows_place(chain.shape)
        out = place.tensor(chain.shape, site.dtype).dims
        none = (0, 0)
        result = site.builder.step(
            "conv_fprop",
            (rows, weights),
            out,
            pre_padding=none,
            post_padding=none,
            stride=(1, 1),
            dilation=(1, 1),
        )
        return _summed(site, place, result, added, needs_bias=True)
    place, left, right = _matrices(site, a, b, is_transposed)
    result = site.builder.step("matmul", (left, right), place.tensor(chain.shape, site.dtype).dims)
    return _summed(site, place, result, added, needs_bias=False)


def _matrices(site: Site, a: str, b: str, is_transposed: bool) -> tuple[Place, int, int]:
    """As three dimensions each: of batches, rows and columns. A single matrix on the right takes all rows of
    all batches at once.
    """
    graph, shape = site.graph, site.chain.shape
    shapes = [graph.shape_of(v) for v in (a, b)]
    rank = len(shape)
    merged: tuple[tuple[int, ...], ...] = (tuple(range(rank - 2)), (rank - 2,), (rank - 1,))
    if len(shapes[1]) == 2:
        merged = ((), tuple(range(rank - 1)), (rank - 1,))
    numbers = []
    for v, s, flipped in zip((a, b), shapes, (False, is_transposed), strict=True):
        rows, columns = s[-2:]
        batches = math.prod(s[:-2])
        if v == a and len(shapes[1]) == 2:
            batches, rows = 1, batches * rows
        dims, strides = (batches, rows, columns), (rows * columns, columns, 1)
        if flipped:
            dims, strides = (batches, columns, rows), (rows * columns, 1, columns)
        tensor = Tensor(dims, strides, site.dtype)
        if graph.is_constant(v):
            numbers.append(site.constant(np.ascontiguousarray(graph.constants[v]), tensor))
        else:
            numbers.append(site.value(v, tensor))
    return Place(shape, merged, (0, 1, 2)), numbers[0], numbers[1]


def _summed(
    site: Site, place: Place, result: int, added: Sequence[tuple[str, tuple[int, ...]]], needs_bias: bool
) -> Description:
    """What is added to the result first, in the order in which cuDNN's own fused kernels want it (a whole
    value, then the bias), and then the steps that are left.

    added: names, and the shapes in which they broadcast. needs_bias: those kernels have one, always.
    """
    graph, chain = site.graph, site.chain
    assert chain.anchor is not None
    terms, steps, running = list(added), list(chain.steps), chain.anchor.outputs[0]
    while steps and steps[0].op_type == "Add" and running in steps[0].inputs:
        others = [v for v in steps[0].inputs if v != running]
        readers = [n for n in chain.steps if running in n.inputs]
        if len(others) != 1 or len(readers) > 1:
            break
        terms.append((others[0], graph.shape_of(others[0])))
        running = steps.pop(0).outputs[0]
    whole = [t for t in terms if t[1] == chain.shape]
    biases = [t for t in terms if t[1] != chain.shape]
    dims = place.tensor(chain.shape, site.dtype).dims
    for name, shape in (*whole, *biases):
        result = site.builder.step("add", (result, site.operand(name, place, site.dtype, shape)), dims)
    if needs_bias and not biases and (whole or steps):
        channels = tuple(n if d == place.groups[1][0] else 1 for d, n in enumerate(chain.shape))
        tensor = place.tensor(channels, site.dtype)
        nothing = site.constant(np.full(tensor.dims, _NOTHING), tensor)
        result = site.builder.step("add", (result, nothing), dims)
    if steps:
        result = site.follow(place, {running: result}, steps)
    return site.finish(result, place, multiplies=True)


def is_channels_last(site: Site) -> bool:
    """Whether the images of the group lie so. What is neither, having no pixels, is channels last."""
    shapes = {v: site.graph.shape_of(v) for v in site.formats}
    rank = len(site.chain.shape)
    last = (0, *range(2, rank), 1)
    images = [(v, f) for v, f in site.formats.items() if len(shapes[v]) == rank]
    return all(f.layout == type(f).of(f.dtype, shapes[v], last).layout for v, f in images)
