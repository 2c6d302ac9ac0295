"""What stands alone: normalisation, softmax, reductions, pooling, and conversions."""

from __future__ import annotations

import math

import numpy as np

from collage_core.errors import BackendError, Refusal
from collage_core.formats import Format, element_strides
from collage_core.ir import Node, Operator, TensorType
from collage_cudnn.description import Builder, Call, Description, Tensor
from collage_cudnn.geometry import pool_window
from collage_cudnn.place import Place, collapsed, image_place
from collage_cudnn.planning.contractions import is_channels_last
from collage_cudnn.planning.site import Site
from collage_cudnn.support import REDUCTIONS, reduced_axes, softmax_axis

__all__ = ["plan_conversion", "plan_layer_norm", "plan_pool", "plan_reduction", "plan_softmax"]


def plan_layer_norm(site: Site, node: Node) -> Description:
    """Rows of (rows, elements, 1, 1).
    https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Normalizations.html
    """
    graph, shape = site.graph, site.chain.shape
    axis = int(node.attributes.get("axis", -1)) % len(shape)
    groups = (tuple(range(axis)), tuple(range(axis, len(shape))), (), ())
    place = Place(shape, groups, (0, 1, 2, 3))
    normalised = shape[axis:]
    x = site.value(node.inputs[0], place.tensor(shape, site.dtype))
    scale = site.operand(node.inputs[1], place, "float32", normalised)
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = site.operand(node.inputs[2], place, "float32", normalised)
    else:
        bias = site.constant(np.zeros(normalised), place.tensor(normalised, "float32"))
    epsilon = site.builder.number(float(Operator(graph, node).attrs["epsilon"]), 4)
    dims = place.tensor(shape, site.dtype).dims
    return site.finish(site.builder.step("layernorm", (x, scale, bias, epsilon), dims), place)


def plan_softmax(site: Site, node: Node) -> Call:
    """https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-ops-library.html#cudnnsoftmaxforward"""
    shape, layout = site.chain.shape, site.formats[site.chain.output].layout
    axis = softmax_axis(site.graph, node)
    at = layout.index(axis)
    outer, inner = (math.prod(shape[d] for d in part) for part in (layout[:at], layout[at + 1 :]))
    dims = (outer, shape[axis], inner, 1)
    tensor = Tensor(dims, element_strides(dims, (0, 1, 2, 3)), site.dtype)
    return Call("softmax", tensor, tensor, {"is_log": node.op_type == "LogSoftmax"})


def plan_reduction(site: Site, node: Node) -> Call:
    """https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-ops-library.html#cudnnreducetensor"""
    shape = site.graph.shape_of(node.inputs[0])
    axes = reduced_axes(site.graph, node)
    if isinstance(axes, Refusal):
        raise BackendError(str(axes))
    layout = site.formats[node.inputs[0]].layout
    merged: list[list[int]] = []
    for d in layout:
        if shape[d] == 1:
            continue
        if merged and (merged[-1][-1] in axes) == (d in axes):
            merged[-1].append(d)
        else:
            merged.append([d])
    dims = [math.prod(shape[d] for d in group) for group in merged]
    left = [1 if group[0] in axes else size for group, size in zip(merged, dims, strict=True)]
    missing = [1] * (4 - len(dims))
    source, result = ((*missing, *sizes) for sizes in (dims, left))
    before, after = (Tensor(s, element_strides(s, range(len(s))), site.dtype) for s in (source, result))
    return Call("reduction", before, after, {"operator": REDUCTIONS[node.op_type]})


def plan_pool(site: Site, node: Node) -> Call:
    """https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-ops-library.html#cudnnpoolingforward"""
    window = pool_window(site.graph, node)
    if isinstance(window, Refusal):
        raise BackendError(str(window))
    flat = window.flat()
    is_last = is_channels_last(site)
    shapes = [site.graph.shape_of(v) for v in (node.inputs[0], node.outputs[0])]
    source, result = (image_place(s, is_last).tensor(s, site.dtype) for s in shapes)
    mode = "max"
    if node.op_type == "AveragePool":
        counts = int(node.attributes.get("count_include_pad", 0))
        mode = "average_include_padding" if counts else "average_exclude_padding"
    settings = {"mode": mode, "window": flat.kernel, "padding": flat.begin, "stride": flat.strides}
    return Call("pooling", source, result, settings)


def plan_conversion(type: TensorType, source: Format, destination: Format) -> Call | Description:
    """Another type is one pointwise step; another order of memory a call that moves elements.
    https://docs.nvidia.com/deeplearning/cudnn/backend/latest/api/cudnn-ops-library.html#cudnntransformtensor
    """
    shape = type.static_shape
    if source.layout == destination.layout:
        place = collapsed(shape, source.layout, [shape])
        assert place is not None
        builder = Builder()
        x = builder.tensor(place.tensor(shape, source.dtype))
        stored = place.tensor(shape, destination.dtype)
        return builder.finish(builder.step("identity", (x,), stored.dims), stored, {x: 0}, False)
    missing = (1,) * (4 - len(shape))
    dims = (*missing, *shape)

    def tensor(format: Format) -> Tensor:
        order = (*range(len(missing)), *(d + len(missing) for d in format.layout))
        return Tensor(dims, element_strides(dims, order), format.dtype)

    return Call("transform", tensor(source), tensor(destination), {})
