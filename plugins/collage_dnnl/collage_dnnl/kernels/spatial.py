"""Plans of what has spatial dimensions: convolution, transposed convolution, pooling, LRN, resampling."""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.errors import BackendError, Refusal
from collage_core.formats import Layout, canonical_layout
from collage_core.ir import Node
from collage_dnnl.chain import Chain
from collage_dnnl.enums import FORWARD_INFERENCE, Alg, Arg
from collage_dnnl.geometry import Window, conv_window, deconv_window, pool_window
from collage_dnnl.kernels.plan import (
    Argument,
    BinaryPostOp,
    Constant,
    Eltwise,
    Int64,
    Output,
    Plan,
    packed_weights,
)
from collage_dnnl.kernels.site import Site
from collage_dnnl.steps import Binary, Step
from collage_dnnl.tensor import Tensor, dense

__all__ = ["plan_conv", "plan_lrn", "plan_pool", "plan_resize", "take_bias"]


def _last(rank: int) -> Layout:
    return (0, *range(2, rank), 1)


def spatial_layouts(site: Site, source: str, output: str) -> tuple[Layout, Layout]:
    """Layouts of a primitive's source and destination. Where the sizes leave open whether a value is
    channels-last or plain, it is what the other one is: implementations recognise a format by its strides."""
    found: list[bool | None] = []
    for v in (source, output):
        shape, layout = site.shape(v), site.layout(v)
        last = canonical_layout(shape, _last(len(shape)))
        plain = tuple(range(len(shape)))
        found.append(None if last == plain else layout == last)
    src, dst = found
    src_last = src if src is not None else dst is not False
    dst_last = dst if dst is not None else src is not False

    def layout_of(name: str, is_last: bool) -> Layout:
        rank = len(site.shape(name))
        return _last(rank) if is_last else tuple(range(rank))

    return layout_of(source, src_last), layout_of(output, dst_last)


def take_bias(
    site: Site, steps: Sequence[Step], output: str, channel: int
) -> tuple[Constant | None, tuple[Step, ...]]:
    """The constant that a first step adds per channel (the dimension `channel` of the output) as a bias, and
    the other steps.
    """
    if not steps or not isinstance(steps[0], Binary) or steps[0].alg != Alg.BINARY_ADD:
        return None, tuple(steps)
    name = steps[0].operand
    shape, out = site.shape(name), site.shape(output)
    missing = len(out) - len(shape)
    full = (1,) * missing + shape
    per_channel = all(s == (out[d] if d == channel else 1) for d, s in enumerate(full))
    if site.index(name) is not None or not per_channel:
        return None, tuple(steps)
    data = site.graph.constants[name].reshape(-1)
    return Constant(data, (0,)), tuple(steps[1:])


def _window(found: Window | Refusal) -> Window:
    if isinstance(found, Refusal):
        raise BackendError(str(found))
    return found


def _post_ops(
    site: Site, steps: Sequence[Step], output: str, layout: Layout
) -> tuple[Eltwise | BinaryPostOp, ...]:
    result = site.post_ops(steps, output, layout)
    assert result is not None  # only groups of dimensions can make it None
    return result


def plan_conv(site: Site, chain: Chain, node: Node) -> Plan:
    """Conv and ConvTranspose. Weights are grouped where there are groups; constant ones are packed."""
    transposed = node.op_type == "ConvTranspose"
    window = _window((deconv_window if transposed else conv_window)(site.graph, node))
    x, w = node.inputs[0], node.inputs[1]
    src_layout, dst_layout = spatial_layouts(site, x, chain.output)
    src, dst = site.tensor(x, src_layout), site.tensor(chain.output, dst_layout)
    weights = _weights(site, w, int(node.attributes.get("group", 1)), transposed)
    packed = site.index(w) is None
    arguments = [
        Argument(Arg.SRC, src, site.source(x, src_layout)),
        Argument(Arg.WEIGHTS, weights, site.source(w), packed),
    ]
    bias_tensor: Tensor | None = None
    steps: tuple[Step, ...] = chain.steps
    if len(node.inputs) > 2 and node.inputs[2]:
        bias_tensor = site.tensor(node.inputs[2])
        arguments.append(Argument(Arg.BIAS, bias_tensor, site.source(node.inputs[2])))
    else:
        bias, steps = take_bias(site, steps, chain.output, 1)
        if bias is not None:
            bias_tensor = dense((dst.dims[1],), (0,))
            arguments.append(Argument(Arg.BIAS, bias_tensor, bias))
    arguments.append(Argument(Arg.DST, dst, Output()))
    parameters = (
        FORWARD_INFERENCE,
        int(Alg.DECONVOLUTION_DIRECT if transposed else Alg.CONVOLUTION_DIRECT),
        src,
        packed_weights(weights, src) if packed else weights,
        bias_tensor,
        dst,
        window.strides,
        tuple(d - 1 for d in window.dilations),
        window.begin,
        window.end,
    )
    function = "deconvolution_forward" if transposed else "convolution_forward"
    return Plan(function, parameters, tuple(arguments), _post_ops(site, steps, chain.output, dst_layout))


def _weights(site: Site, name: str, groups: int, transposed: bool) -> Tensor:
    """ONNX's weights [O, I/g, k...], or [I, O/g, k...] of a transposed convolution, as oneDNN's [g,] O/g,
    I/g, k...
    """
    stored = site.tensor(name)
    outer, inner, *kernel = stored.dims
    per_group = outer // groups
    strides = (per_group * stored.strides[0], *stored.strides)
    split = Tensor((groups, per_group, inner, *kernel), strides, stored.dtype)
    if transposed:
        split = split.permuted((0, 2, 1, *range(3, split.rank)))
    return split if groups > 1 else Tensor(split.dims[1:], split.strides[1:], split.dtype)


def plan_pool(site: Site, chain: Chain, node: Node) -> Plan:
    window = _window(pool_window(site.graph, node))
    if node.op_type in ("GlobalMaxPool", "MaxPool"):
        alg = Alg.POOLING_MAX
    else:
        include = bool(node.attributes.get("count_include_pad", 0)) or not any((*window.begin, *window.end))
        alg = Alg.POOLING_AVG_INCLUDE_PADDING if include else Alg.POOLING_AVG_EXCLUDE_PADDING
    x = node.inputs[0]
    src_layout, dst_layout = spatial_layouts(site, x, chain.output)
    src, dst = site.tensor(x, src_layout), site.tensor(chain.output, dst_layout)
    parameters = (
        FORWARD_INFERENCE,
        int(alg),
        src,
        dst,
        window.strides,
        window.kernel,
        tuple(d - 1 for d in window.dilations),
        window.begin,
        window.end,
    )
    arguments = (Argument(Arg.SRC, src, site.source(x)), Argument(Arg.DST, dst, Output()))
    return Plan(
        "pooling_forward", parameters, arguments, _post_ops(site, chain.steps, chain.output, dst_layout)
    )


def plan_lrn(site: Site, chain: Chain, node: Node) -> Plan:
    x = node.inputs[0]
    src_layout, dst_layout = spatial_layouts(site, x, chain.output)
    src, dst = site.tensor(x, src_layout), site.tensor(chain.output, dst_layout)
    parameters = (
        FORWARD_INFERENCE,
        int(Alg.LRN_ACROSS_CHANNELS),
        src,
        dst,
        Int64(int(node.attributes["size"])),
        float(node.attributes.get("alpha", 1e-4)),
        float(node.attributes.get("beta", 0.75)),
        float(node.attributes.get("bias", 1.0)),
    )
    arguments = (Argument(Arg.SRC, src, site.source(x)), Argument(Arg.DST, dst, Output()))
    return Plan("lrn_forward", parameters, arguments)


def plan_resize(site: Site, chain: Chain, node: Node) -> Plan:
    x = node.inputs[0]
    src_layout, dst_layout = spatial_layouts(site, x, chain.output)
    src, dst = site.tensor(x, src_layout), site.tensor(chain.output, dst_layout)
    linear = str(node.attributes.get("mode", "nearest")) == "linear"
    alg = Alg.RESAMPLING_LINEAR if linear else Alg.RESAMPLING_NEAREST
    arguments = (Argument(Arg.SRC, src, site.source(x)), Argument(Arg.DST, dst, Output()))
    return Plan(
        "resampling_forward",
        (FORWARD_INFERENCE, int(alg), None, src, dst),
        arguments,
        _post_ops(site, chain.steps, chain.output, dst_layout),
    )
