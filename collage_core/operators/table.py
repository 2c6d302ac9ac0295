"""Which classes take the place of the reference evaluator's own."""

from __future__ import annotations

from onnx.reference.op_run import OpRun

from collage_core.operators.attention import Attention
from collage_core.operators.control_flow import Loop, Scan
from collage_core.operators.convolution import Conv, ConvTranspose
from collage_core.operators.deformable import DeformConv
from collage_core.operators.detection import NonMaxSuppression
from collage_core.operators.drawing import (
    Bernoulli,
    Multinomial,
    RandomNormal,
    RandomNormalLike,
    RandomUniform,
    RandomUniformLike,
)
from collage_core.operators.earlier import DequantizeLinear, Dropout, MaxRoiPool, Scatter, Unsqueeze
from collage_core.operators.elementwise import Mean, Pow, PRelu, Softsign
from collage_core.operators.global_pooling import GlobalAveragePool, GlobalLpPool, GlobalMaxPool
from collage_core.operators.indexing import GatherElements, OneHot, Unique
from collage_core.operators.layers import (
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)
from collage_core.operators.normalization import (
    LRN,
    BatchNormalization,
    Hardmax,
    LogSoftmax,
    LpNormalization,
    MeanVarianceNormalization,
    Softmax,
)
from collage_core.operators.padding import Pad
from collage_core.operators.pooling import AveragePool, LpPool, MaxPool
from collage_core.operators.products import Det
from collage_core.operators.quantisation import QuantizeLinear
from collage_core.operators.recurrent import GRU, LSTM, RNN
from collage_core.operators.reduction import CumSum, ReduceL2, ReduceLogSum, ReduceLogSumExp, ReduceMean
from collage_core.operators.resize import Resize, Upsample
from collage_core.operators.roi import RoiAlign
from collage_core.operators.sampling import AffineGrid, GridSample
from collage_core.operators.sequences import (
    Optional,
    OptionalGetElement,
    OptionalHasElement,
    SequenceAt,
    SequenceErase,
    SequenceInsert,
)
from collage_core.operators.shapes import Flatten, Shape

__all__ = ["OPERATORS"]

OPERATORS: tuple[type[OpRun], ...] = (
    AffineGrid,
    Attention,
    AveragePool,
    BatchNormalization,
    Bernoulli,
    Conv,
    ConvTranspose,
    CumSum,
    DeformConv,
    DequantizeLinear,
    Det,
    Dropout,
    Flatten,
    GRU,
    GatherElements,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    GridSample,
    GroupNormalization,
    Hardmax,
    InstanceNormalization,
    LRN,
    LSTM,
    LayerNormalization,
    LogSoftmax,
    Loop,
    LpNormalization,
    LpPool,
    MaxPool,
    MaxRoiPool,
    Mean,
    MeanVarianceNormalization,
    Multinomial,
    NonMaxSuppression,
    OneHot,
    Optional,
    OptionalGetElement,
    OptionalHasElement,
    Pad,
    PRelu,
    Pow,
    RMSNormalization,
    QuantizeLinear,
    RNN,
    RandomNormal,
    RandomNormalLike,
    RandomUniform,
    RandomUniformLike,
    ReduceL2,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMean,
    Resize,
    RoiAlign,
    Scan,
    Scatter,
    SequenceAt,
    SequenceErase,
    SequenceInsert,
    Shape,
    Softmax,
    Softsign,
    Unique,
    Unsqueeze,
    Upsample,
)
"""What the reference evaluator is given, for it to prefer to its own."""
