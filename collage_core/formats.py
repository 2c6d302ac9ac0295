"""Formats: how the elements of a value lie in memory (`collage_run.formats`)."""

from collage_run.formats import (
    BFLOAT16,
    CPU,
    FLOATS,
    Array,
    Format,
    Layout,
    byte_strides,
    canonical_layout,
    channels_last,
    device_of,
    element_strides,
    empty,
    own,
    plain,
    row_major_bytes,
    view,
)

__all__ = [
    "BFLOAT16",
    "CPU",
    "FLOATS",
    "Array",
    "Format",
    "Layout",
    "byte_strides",
    "canonical_layout",
    "channels_last",
    "device_of",
    "element_strides",
    "empty",
    "own",
    "plain",
    "row_major_bytes",
    "view",
]
