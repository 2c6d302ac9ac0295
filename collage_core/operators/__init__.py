"""Operators that `onnx.reference` computes element by element, or not as ONNX says: here with whole arrays.

Each class takes the place of the one that has its name there, at every opset. Known departures (onnx 1.23):
pooling reads `pads` in the order begin, end of each dimension, for images only; ConvTranspose keeps one
output per group; LRN normalises the first N channels only; Softmax and its kin take no notice of the opset,
and LogSoftmax underflows; GatherElements fails along more than 64 elements; Loop does not begin without a
condition, and gathers by `vstack`; Scan knows the first axis, forward, and no batches.
"""

from __future__ import annotations

from onnx.reference.op_run import OpRun

from collage_core.operators.control_flow import Loop, Scan
from collage_core.operators.convolution import Conv, ConvTranspose
from collage_core.operators.indexing import GatherElements
from collage_core.operators.normalization import LRN, Hardmax, LogSoftmax, Softmax
from collage_core.operators.pooling import AveragePool, MaxPool

__all__ = ["OPERATORS"]

OPERATORS: tuple[type[OpRun], ...] = (
    AveragePool,
    Conv,
    ConvTranspose,
    GatherElements,
    Hardmax,
    LRN,
    LogSoftmax,
    Loop,
    MaxPool,
    Scan,
    Softmax,
)
"""What the reference evaluator is given, for it to prefer to its own."""
