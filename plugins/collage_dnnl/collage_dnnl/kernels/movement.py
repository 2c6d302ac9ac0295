"""Plans that only move elements: concatenation and conversions between layouts."""

from __future__ import annotations

from collage_core.formats import Format
from collage_core.ir import Node, TensorType
from collage_dnnl.chain import Chain
from collage_dnnl.enums import Arg
from collage_dnnl.kernels.plan import Argument, Input, Output, Plan
from collage_dnnl.kernels.site import Site
from collage_dnnl.library import ENGINE
from collage_dnnl.tensor import Tensor, collapse, dense, regroup

__all__ = ["plan_concat", "plan_conversion", "plan_quantising"]


def plan_concat(site: Site, chain: Chain, node: Node) -> Plan:
    """Concatenation along one axis, the dimensions around it merged in the order of memory."""
    shape, layout = site.shape(chain.output), site.layout(chain.output)
    axis = int(node.attributes["axis"]) % len(shape)
    groups = collapse(shape, layout, [], barriers={axis})
    dst = regroup(site.tensor(chain.output, layout), groups)
    sources: list[Tensor] = []
    arguments: list[Argument] = []
    for i, v in enumerate(node.inputs):
        part = regroup(site.tensor(v, layout), groups)
        assert part is not None  # merged in the order of memory
        sources.append(part)
        arguments.append(Argument(Arg.MULTIPLE_SRC + i, part, site.source(v, layout)))
    assert dst is not None
    arguments.append(Argument(Arg.DST, dst, Output()))
    parameters = (dst, len(sources), groups.index([axis]), sources)
    return Plan("concat", parameters, tuple(arguments))


def plan_quantising(site: Site, chain: Chain) -> Plan:
    """The reorder of floats into whole numbers, or back, dimensions merged; its scales are not in it yet."""
    layout = site.layout(chain.output)
    groups = collapse(site.shape(chain.output), layout, [])
    src, dst = (regroup(site.tensor(v, layout), groups) for v in (chain.source, chain.output))
    assert src is not None  # merged in the order of memory
    assert dst is not None
    arguments = (Argument(Arg.SRC, src, site.source(chain.source)), Argument(Arg.DST, dst, Output()))
    return Plan("reorder", (src, ENGINE, dst, ENGINE), arguments)


def plan_conversion(type: TensorType, source: Format, destination: Format) -> Plan:
    """The reorder from one layout into another, rounded where that is stored so."""
    shape = type.static_shape
    src, dst = (dense(shape, f.layout, f.dtype) for f in (source, destination))
    arguments = (Argument(Arg.SRC, src, Input(0)), Argument(Arg.DST, dst, Output()))
    return Plan("reorder", (src, ENGINE, dst, ENGINE), arguments)
