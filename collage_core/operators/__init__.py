"""Operators that `onnx.reference` computes element by element, or not as ONNX says: here with whole arrays.

Each class takes the place of the one that has its name there, at every opset. What is wrong there (onnx
1.23), beside what docs/operators-decisions.json says was mended, case by case: pooling reads `pads` in the
order begin, end of each dimension, for images only; ConvTranspose keeps one output per group; LRN normalises
the first N channels only; Softmax and its kin take no notice of the opset, and LogSoftmax underflows;
GatherElements fails along more than 64 elements; recurrent operators take no notice of activations, lengths
or clip; Loop does not begin without a condition, and gathers by `vstack`; Scan knows the first axis, forward,
and no batches.

Refused there though ONNX allows it: pads that remove elements; GlobalMaxPool but of images; logarithms of
sums of integers; ReduceLogSumExp, Softsign and random numbers of rank 0; a Mean whose first operand is
broadcast; DequantizeLinear before opset 19; GlobalLpPool, MaxRoiPool, Multinomial and Scatter at all.
"""

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
    Shape,
    Softmax,
    Softsign,
    Unique,
    Unsqueeze,
    Upsample,
)
"""What the reference evaluator is given, for it to prefer to its own."""
