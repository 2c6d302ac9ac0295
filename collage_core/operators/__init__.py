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

import lazy_loader

# What only the geometry of windows is asked of shall not load the reference evaluator (docs/adr/0022).
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
