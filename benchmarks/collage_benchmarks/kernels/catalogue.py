"""The cases by name, from tensors of 10 kB to tensors of 100 MB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_benchmarks.kernels import arithmetic, movement, reductions, windows
from collage_benchmarks.kernels.case import Case

__all__ = ["CASES", "chosen"]

_IMAGE = (1, 256, 56, 56)  # 3.2 MB
_IMAGES = (32, 256, 56, 56)  # 103 MB
_EARLY_IMAGE = (1, 64, 112, 112)  # 3.2 MB
_EARLY_IMAGES = (32, 64, 112, 112)  # 103 MB
_HIDDEN = (128, 3072)  # 1.6 MB
_MANY_ROWS = (32768, 768)  # 101 MB

CASES: Mapping[str, Case] = {
    c.name: c
    for c in (
        arithmetic.add_relu("10kB", 16, 160),
        arithmetic.add_relu("3MB", *_IMAGE),
        arithmetic.add_relu("100MB", *_IMAGES),
        arithmetic.several_in_and_out("3MB", *_IMAGE),
        arithmetic.several_in_and_out("100MB", *_IMAGES),
        arithmetic.long_chain("10kB", 16, 160),
        arithmetic.long_chain("3MB", *_IMAGE),
        arithmetic.long_chain("100MB", *_IMAGES),
        arithmetic.diamond("3MB", *_IMAGE),
        arithmetic.diamond("100MB", *_IMAGES),
        arithmetic.bias("1.5MB", *_HIDDEN),
        arithmetic.bias("100MB", *_MANY_ROWS),
        arithmetic.rows_and_columns("1.5MB", *_HIDDEN),
        arithmetic.rows_and_columns("100MB", *_MANY_ROWS),
        arithmetic.gelu_erf("1.5MB", *_HIDDEN),
        arithmetic.gelu_tanh("1.5MB", *_HIDDEN),
        arithmetic.gelu_tanh("100MB", *_MANY_ROWS),
        arithmetic.silu("3MB", *_IMAGE),
        arithmetic.silu("100MB", *_IMAGES),
        arithmetic.hard_swish("3MB", *_IMAGE),
        arithmetic.mish("3MB", *_IMAGE),
        reductions.mean("rows_3MB", (1,), 1024, 768),
        reductions.mean("rows_100MB", (1,), *_MANY_ROWS),
        reductions.mean("columns_3MB", (0,), 1024, 768),
        reductions.mean("columns_100MB", (0,), *_MANY_ROWS),
        reductions.mean("middle_3MB", (1, 2), 4, 28, 28, 256),
        reductions.mean("middle_100MB", (1,), 256, 128, 768),
        reductions.mean("all_3MB", (0, 1), 1024, 768),
        reductions.mean("all_100MB", (0, 1), *_MANY_ROWS),
        reductions.softmax("12x128x128", 12, 128, 128),
        reductions.softmax("wide_16MB", 128, 30522),
        reductions.log_softmax("wide_16MB", 128, 30522),
        reductions.masked_softmax("12x128x128", 12, 128),
        reductions.layer_norm("128x768", 128, 768),
        reductions.layer_norm("100MB", *_MANY_ROWS),
        reductions.layer_norm_decomposed("128x768", 128, 768),
        reductions.layer_norm_decomposed("100MB", *_MANY_ROWS),
        reductions.argmax("128x1000", 128, 1000),
        reductions.argmax("wide_16MB", 128, 30522),
        reductions.cumsum("2MB", 128, 4096),
        windows.max_pool("nchw_3MB", *_EARLY_IMAGE),
        windows.max_pool("nchw_100MB", *_EARLY_IMAGES),
        windows.max_pool("nhwc_3MB", *_EARLY_IMAGE, channels_last=True),
        windows.max_pool("nhwc_100MB", *_EARLY_IMAGES, channels_last=True),
        windows.average_pool("nchw_1.2MB", 1, 256, 35, 35),
        windows.average_pool("nchw_100MB", *_IMAGES),
        windows.average_pool("nhwc_1.2MB", 1, 256, 35, 35, channels_last=True),
        windows.average_pool("nhwc_100MB", *_IMAGES, channels_last=True),
        windows.global_average_pool("nchw_0.4MB", 1, 2048, 7, 7),
        windows.global_average_pool("nchw_100MB", *_IMAGES),
        windows.global_average_pool("nhwc_0.4MB", 1, 2048, 7, 7, channels_last=True),
        movement.transpose("2d_9MB", (1, 0), 768, 3072),
        movement.transpose("2d_100MB", (1, 0), 5120, 5120),
        movement.transpose("nchw_to_nhwc_3MB", (0, 2, 3, 1), *_IMAGE),
        movement.transpose("nchw_to_nhwc_100MB", (0, 2, 3, 1), *_IMAGES),
        movement.transpose("attention_0.4MB", (0, 2, 1, 3), 1, 128, 12, 64),
        movement.concat("channels_3MB", 1, 1, 128, 56, 56),
        movement.concat("channels_100MB", 1, 32, 128, 56, 56),
        movement.concat("last_100MB", 1, 32768, 384),
        movement.split("1.2MB", 128, 768),
        movement.split("100MB", 10923, 768),
        movement.slice_inner("3MB", *_IMAGE),
        movement.pad("3MB", *_EARLY_IMAGE),
        movement.pad("100MB", *_EARLY_IMAGES),
        movement.gather("128_tokens", 128, 30522, 768),
        movement.gather("100MB", 32768, 30522, 768),
        movement.resize_nearest("3MB", 1, 256, 28, 28),
        movement.resize_linear("3MB", 1, 256, 28, 28),
        windows.convolution("3MB", 256, 256, 56),
        windows.convolution("1.6MB", 128, 32, 56),
        windows.batched_matmul("12x128x64x128", 12, 128, 64, 128),
    )
}


def chosen(wanted: Sequence[str]) -> list[Case]:
    """The cases of these names or families, in the catalogue's order; all where none is named.

    ValueError for a name that is neither.
    """
    for name in wanted:
        if not any(name in (c.name, c.family) for c in CASES.values()):
            families = ", ".join(dict.fromkeys(c.family for c in CASES.values()))
            raise ValueError(f"no case or family {name!r}; families are {families}")
    return [c for c in CASES.values() if not wanted or c.name in wanted or c.family in wanted]
