"""Numbers of oneDNN 3.2's C interface (dnnl_types.h, dnnl_common_types.h), for those who must not load the
library.
"""

from __future__ import annotations

import enum

__all__ = ["FORWARD_INFERENCE", "Alg", "Arg", "NormFlag", "Query", "status_name"]

FORWARD_INFERENCE = 96


class Alg(enum.IntEnum):
    """dnnl_alg_kind_t."""

    CONVOLUTION_DIRECT = 0x1
    DECONVOLUTION_DIRECT = 0xA
    ELTWISE_RELU = 0x20
    ELTWISE_TANH = 0x21
    ELTWISE_ELU = 0x22
    ELTWISE_SQUARE = 0x23
    ELTWISE_ABS = 0x24
    ELTWISE_SQRT = 0x25
    ELTWISE_LINEAR = 0x26
    ELTWISE_SOFT_RELU = 0x27
    ELTWISE_HARDSIGMOID = 0x28
    ELTWISE_LOGISTIC = 0x29
    ELTWISE_EXP = 0x2A
    ELTWISE_GELU_TANH = 0x2B
    ELTWISE_SWISH = 0x2C
    ELTWISE_LOG = 0x2D
    ELTWISE_CLIP = 0x2E
    ELTWISE_POW = 0x30
    ELTWISE_GELU_ERF = 0x31
    ELTWISE_ROUND = 0x32
    ELTWISE_MISH = 0x33
    ELTWISE_HARDSWISH = 0x34
    POOLING_MAX = 0x1FF
    POOLING_AVG_INCLUDE_PADDING = 0x2FF
    POOLING_AVG_EXCLUDE_PADDING = 0x3FF
    LRN_ACROSS_CHANNELS = 0xAFF
    BINARY_ADD = 0x1FFF0
    BINARY_MUL = 0x1FFF1
    BINARY_MAX = 0x1FFF2
    BINARY_MIN = 0x1FFF3
    BINARY_DIV = 0x1FFF4
    BINARY_SUB = 0x1FFF5
    RESAMPLING_NEAREST = 0x2FFF0
    RESAMPLING_LINEAR = 0x2FFF1
    REDUCTION_MAX = 0x2FFF2
    REDUCTION_MIN = 0x2FFF3
    REDUCTION_SUM = 0x2FFF4
    REDUCTION_MUL = 0x2FFF5
    REDUCTION_MEAN = 0x2FFF6
    REDUCTION_NORM_LP_SUM = 0x2FFF8
    REDUCTION_NORM_LP_POWER_P_SUM = 0x2FFFA
    SOFTMAX_ACCURATE = 0x30000
    SOFTMAX_LOG = 0x30001


class Arg(enum.IntEnum):
    """DNNL_ARG_*: which operand of a primitive a memory is."""

    SRC = 1
    SRC_1 = 2
    DST = 17
    WEIGHTS = 33
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    SCRATCHPAD = 80
    MULTIPLE_SRC = 1024
    ATTR_SCALES = 4096
    ATTR_ZERO_POINTS = 8192
    MULTIPLE_POST_OP = 32768


class Query(enum.IntEnum):
    """dnnl_query_t, as far as it is asked here."""

    IMPL_INFO_STR = 8
    WEIGHTS_MD = 131
    SCRATCHPAD_MD = 136


class NormFlag(enum.IntFlag):
    """dnnl_normalization_flags_t."""

    NONE = 0
    USE_GLOBAL_STATS = 1
    USE_SCALE = 2
    USE_SHIFT = 4


_STATUS = (
    "success",
    "out of memory",
    "invalid arguments",
    "unimplemented",
    "last implementation reached",
    "runtime error",
    "not required",
    "invalid graph",
    "invalid graph operator",
    "invalid shape",
    "invalid data type",
)


def status_name(status: int) -> str:
    """Name of a dnnl_status_t."""
    return _STATUS[status] if 0 <= status < len(_STATUS) else f"status {status}"
