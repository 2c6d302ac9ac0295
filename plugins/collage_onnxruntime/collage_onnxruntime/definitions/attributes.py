"""Attributes that operators have, so that a node with a further one is not taken for what it was before.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ATTRIBUTES"]

_POOLED = ("auto_pad", "ceil_mode", "channels_last", "count_include_pad", "kernel_shape", "pads", "strides")

ATTRIBUTES: Mapping[str, frozenset[str]] = {
    name: frozenset(attributes)
    for name, attributes in {
        "Attention": (
            *("do_rotary", "mask_filter_value", "num_heads", "past_present_share_buffer"),
            *("qkv_hidden_sizes", "rotary_embedding_dim", "scale", "unidirectional"),
        ),
        "BiasGelu": (),
        "EmbedLayerNormalization": ("epsilon", "mask_index_type"),
        "FastGelu": (),
        "FusedMatMul": ("alpha", "transA", "transB", "transBatchA", "transBatchB"),
        "Gelu": (),
        "MultiHeadAttention": ("mask_filter_value", "num_heads", "scale", "unidirectional"),
        "QLinearAdd": (),
        "QLinearAveragePool": _POOLED,
        "QLinearConcat": ("axis",),
        "QLinearGlobalAveragePool": ("channels_last",),
        "QLinearLeakyRelu": ("alpha",),
        "QLinearMul": (),
        "QLinearSigmoid": (),
        "QLinearSoftmax": ("axis", "opset"),
        "QLinearWhere": (),
        "QuickGelu": ("alpha",),
        "RotaryEmbedding": (
            *("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim", "scale"),
        ),
        "SkipLayerNormalization": ("epsilon",),
        "SkipSimplifiedLayerNormalization": ("epsilon",),
    }.items()
}
"""By operator; those that are not here look at all their attributes themselves, or hand them on to ONNX's."""
