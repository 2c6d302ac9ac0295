"""From a group and a variant to the kernel of its convolution."""

from __future__ import annotations

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_ncnn.kernel import ConvolutionKernel, Settings
from collage_ncnn.library import load
from collage_ncnn.parsing import parse
from collage_ncnn.variants import strip_rows, tile

__all__ = ["build_kernel", "constants_of"]


def build_kernel(subgraph: Subgraph, variant: Variant, threads: int) -> ConvolutionKernel:
    """The kernel of a variant that is offered; BackendError with the reason for another group."""
    convolution = parse(subgraph)
    if isinstance(convolution, Refusal):
        raise BackendError(str(convolution))
    # An image of one pixel is in both orders, and its variant is known by the other image.
    is_plain = variant.inputs[0].is_plain and variant.outputs[0].is_plain
    settings = Settings(convolution, is_plain, tile(variant), strip_rows(variant), threads)
    weights, *bias = constants_of(subgraph)
    return ConvolutionKernel(load(), settings, weights, bias[0] if bias else None)


def constants_of(subgraph: Subgraph) -> list[Array]:
    """Of its convolution: weights, and a bias if there is one."""
    return [subgraph.graph.constants[v] for v in subgraph.nodes[0].inputs[1:] if v]
