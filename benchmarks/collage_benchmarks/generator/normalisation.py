"""Normalisation by means and sums."""

from __future__ import annotations

from collage_benchmarks.generator.builder import FLOATS, Builder
from collage_benchmarks.generator.domains import POSITIVE
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()

_EPSILONS = (None, 1e-5, 1e-3, 0.1)


@FAMILY.add("BatchNormalization")
def batch_normalization(b: Builder) -> None:
    """At inference the statistics are given; in training they are those of the batch, and are returned."""
    x = b.some(b.dtype("BatchNormalization", None, FLOATS), 2, 5)
    channels = (x.shape[1],)
    statistics = [x.dtype] * 2
    if b.opset >= 14 and b.one_in(4):
        kind = b.dtype("BatchNormalization", "U" if b.opset == 14 else "T2", FLOATS)
        statistics = [kind] * 2
    scales = [b.operand(x.dtype, channels, POSITIVE), b.operand(x.dtype, channels)]
    means = [b.operand(statistics[0], channels), b.operand(statistics[1], channels, POSITIVE)]
    training = b.choice([None, None, 0, 1]) if b.opset >= 14 else None
    b.node(
        "BatchNormalization",
        [x, *scales, *means],
        3 if training else 1,
        epsilon=b.choice(_EPSILONS),
        momentum=b.choice([None, 0.5]),
        training_mode=training,
    )


@FAMILY.add("InstanceNormalization")
def instance_normalization(b: Builder) -> None:
    x = b.some(b.dtype("InstanceNormalization"), 3, 5, exact=True)
    scale, shift = (b.operand(x.dtype, (x.shape[1],)) for _ in range(2))
    b.node("InstanceNormalization", [x, scale, shift], epsilon=b.choice([1e-3, 0.1, None]))


@FAMILY.add("LayerNormalization")
def layer_normalization(b: Builder) -> None:
    """Its outputs are the result, the mean, and one over the deviation."""
    x = b.some(b.dtype("LayerNormalization", None, FLOATS), 1, 5, exact=True)
    axis = b.axis(x.rank)
    tail = x.shape[axis:]
    scale = b.operand(x.dtype, tail)
    shift = b.operand(x.dtype, tail) if b.flag() else None
    outputs: int | list[bool] = 1 if b.flag() else [True, b.flag(), b.flag()]
    told = None if axis == -1 and b.flag() else axis
    b.node("LayerNormalization", [x, scale, shift], outputs, axis=told, epsilon=b.choice([1e-3, 0.1, None]))


@FAMILY.add("RMSNormalization")
def rms_normalization(b: Builder) -> None:
    x = b.some(b.dtype("RMSNormalization", None, FLOATS), 1, 5)
    axis = b.axis(x.rank)
    scale = b.operand(x.dtype, b.broadcastable(x.shape[axis:]))
    told = None if axis == -1 and b.flag() else axis
    b.node("RMSNormalization", [x, scale], axis=told, epsilon=b.choice([1e-3, 0.1, None]))


@FAMILY.add("GroupNormalization")
def group_normalization(b: Builder) -> None:
    groups, size = b.sizes((1, 3), (1, 3))
    channels = groups * size
    dtype = b.dtype("GroupNormalization", None, FLOATS)
    x = b.operand(dtype, (b.integer(1, 2), channels, *b.shape(1, 3, 64)))
    scale, shift = (b.operand(dtype, (channels,)) for _ in range(2))
    b.node("GroupNormalization", [x, scale, shift], num_groups=groups, epsilon=b.choice([1e-3, 0.1, None]))


@FAMILY.add("LpNormalization")
def lp_normalization(b: Builder) -> None:
    x = b.some(b.dtype("LpNormalization"), 1, 5)
    axis = None if b.one_in(4) else b.axis(x.rank)
    b.node("LpNormalization", [x], axis=axis, p=b.choice([None, 1, 2]))


@FAMILY.add("MeanVarianceNormalization")
def mean_variance(b: Builder) -> None:
    """A variance of zero divides by almost nothing, so each mean is over many numbers. ONNX's own
    check of types fails on the function that stands for it without axes, or in other dtypes.
    """
    x = b.operand("float32", (2, b.integer(1, 3), *b.sizes((3, 7), (3, 7))))
    axes = b.choice([[0, 2, 3], [2, 3], [0, 1, 2, 3], [-1, -2]])
    b.node("MeanVarianceNormalization", [x], axes=axes)


@FAMILY.add("LRN")
def local_response(b: Builder) -> None:
    x = b.some(b.dtype("LRN", None, FLOATS), 3, 5)
    b.node(
        "LRN",
        [x],
        size=b.integer(1, 5),
        alpha=b.choice([None, 0.5]),
        beta=b.choice([None, 0.5]),
        bias=b.choice([None, 2.0]),
    )
