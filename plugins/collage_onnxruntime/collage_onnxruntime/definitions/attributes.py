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
        "DequantizeLinear": ("axis",),
        "DynamicQuantizeMatMul": (),
        "EmbedLayerNormalization": ("epsilon", "mask_index_type"),
        "FastGelu": (),
        "FusedMatMul": ("alpha", "transA", "transB", "transBatchA", "transBatchB"),
        "Gelu": (),
        "GroupQueryAttention": (
            *("causal", "do_rotary", "k_norm_epsilon", "k_quant_type", "kv_cache_bit_width", "kv_num_heads"),
            *("local_window_size", "num_heads", "q_norm_epsilon", "qk_norm_epsilon", "qk_output"),
            *("rotary_interleaved", "scale", "sliding_window_cache", "smooth_softmax", "softcap"),
            "v_quant_type",
        ),
        "MatMulIntegerToFloat": (),
        "MatMulNBits": ("K", "N", "accuracy_level", "bits", "block_size", "weight_prepacked"),
        "MultiHeadAttention": ("mask_filter_value", "num_heads", "scale", "unidirectional"),
        "QGemm": ("alpha", "transA", "transB"),
        "QLinearAdd": (),
        "QLinearAveragePool": _POOLED,
        "QLinearConcat": ("axis",),
        "QLinearGlobalAveragePool": ("channels_last",),
        "QLinearLeakyRelu": ("alpha",),
        "QLinearMul": (),
        "QLinearSigmoid": (),
        "QLinearSoftmax": ("axis", "opset"),
        "QLinearWhere": (),
        "QuantizeLinear": ("axis",),
        "QuickGelu": ("alpha",),
        "RotaryEmbedding": (
            *("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim", "scale"),
        ),
        "SkipLayerNormalization": ("epsilon",),
        "SkipSimplifiedLayerNormalization": ("epsilon",),
    }.items()
}
"""By operator, as of ONNX Runtime 1.32; those that are not here hand theirs on to operators of ONNX."""
