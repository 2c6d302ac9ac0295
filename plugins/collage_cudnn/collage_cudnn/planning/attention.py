"""Attention as one step."""

from __future__ import annotations

from collage_core.backend import Variant
from collage_core.formats import Format, element_strides
from collage_core.ir import Subgraph
from collage_cudnn.attention import Attention
from collage_cudnn.description import Builder, Description, Tensor

__all__ = ["plan_attention"]


def plan_attention(subgraph: Subgraph, variant: Variant, attention: Attention) -> Description:
    """https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html"""
    graph, builder = attention.graph, Builder()
    formats = dict(zip(subgraph.inputs, variant.inputs, strict=True))
    (of_output,) = variant.outputs

    def tensor(name: str, format: Format, is_transposed: bool = False) -> Tensor:
        shape = graph.shape_of(name)
        strides = element_strides(shape, format.layout)
        order = (0, 1, 3, 2) if is_transposed else (0, 1, 2, 3)
        return Tensor(tuple(shape[d] for d in order), tuple(strides[d] for d in order), format.dtype)

    names = (attention.queries, attention.keys, attention.values)
    numbers = [builder.tensor(tensor(v, formats[v], v == attention.keys)) for v in names]
    stored = tensor(attention.output, of_output)
    result = builder.step("sdpa", numbers, stored.dims, attn_scale=attention.scale)
    inputs = {n: subgraph.inputs.index(v) for n, v in zip(numbers, names, strict=True)}
    return builder.finish(result, stored, inputs, multiplies=True)
