"""Cases that move elements: transposes, concat, split, slice, pad, gather, resize."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import helper

from collage_benchmarks.kernels.case import Case, floats, indices
from collage_core.formats import Array

__all__ = ["concat", "gather", "pad", "resize_linear", "resize_nearest", "slice_inner", "split", "transpose"]

_node = helper.make_node
_FLOAT_BYTES = 4


def transpose(size: str, perm: tuple[int, ...], *shape: int) -> Case:
    return Case(
        f"transpose/{size}",
        "transpose",
        [_node("Transpose", ["x"], ["o"], perm=perm)],
        {"x": floats(*shape)},
        lambda x: np.ascontiguousarray(x.transpose(perm)),
        lambda torch, x: x.permute(perm).contiguous(),
    )


def concat(size: str, axis: int, *shape: int) -> Case:
    """Two of this shape, one after the other."""
    return Case(
        f"concat/{size}",
        "concat",
        [_node("Concat", ["x", "y"], ["o"], axis=axis)],
        {"x": floats(*shape), "y": floats(*shape)},
        lambda x, y: np.concatenate([x, y], axis=axis),
        lambda torch, x, y: torch.cat([x, y], dim=axis),
    )


def split(size: str, rows: int, columns: int) -> Case:
    """Three parts of every row, as a joined projection to query, key and value is taken apart. torch's split
    alone would be views.
    """
    return Case(
        f"split/{size}",
        "movement",
        [_node("Split", ["x"], ["q", "k", "v"], axis=-1, num_outputs=3)],
        {"x": floats(rows, 3 * columns)},
        lambda x: tuple(np.ascontiguousarray(p) for p in np.split(x, 3, axis=-1)),
        lambda torch, x: tuple(p.contiguous() for p in torch.split(x, columns, dim=-1)),
        outputs=("q", "k", "v"),
    )


def slice_inner(size: str, *shape: int) -> Case:
    """An image without its border of one."""
    inner = math.prod(shape[:2]) * (shape[2] - 2) * (shape[3] - 2)
    return Case(
        f"slice_inner/{size}",
        "movement",
        [_node("Slice", ["x", "starts", "ends", "axes"], ["o"])],
        {"x": floats(*shape)},
        lambda x: np.ascontiguousarray(x[:, :, 1:-1, 1:-1]),
        lambda torch, x: x[:, :, 1:-1, 1:-1].contiguous(),
        constants={
            "starts": np.array([1, 1], np.int64),
            "ends": np.array([-1, -1], np.int64),
            "axes": np.array([2, 3], np.int64),
        },
        moved_bytes=2 * inner * _FLOAT_BYTES,
    )


def pad(size: str, *shape: int) -> Case:
    """An image with a border of one zero."""
    return Case(
        f"pad/{size}",
        "movement",
        [_node("Pad", ["x", "pads"], ["o"])],
        {"x": floats(*shape)},
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]),
        lambda torch, x: torch.nn.functional.pad(x, (1, 1, 1, 1)),
        constants={"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)},
    )


def gather(size: str, tokens: int, vocabulary: int, columns: int) -> Case:
    """Rows of a table, as an embedding looks them up; of the table only those rows count as read."""
    rows_bytes = tokens * columns * _FLOAT_BYTES
    return Case(
        f"gather/{size}",
        "movement",
        [_node("Gather", ["table", "ids"], ["o"], axis=0)],
        {"ids": indices(1, tokens, below=vocabulary)},
        lambda ids, table: np.take(table, ids, axis=0),
        lambda torch, ids, table: torch.nn.functional.embedding(ids, table),
        weights={"table": floats(vocabulary, columns)},
        moved_bytes=2 * rows_bytes + tokens * 8,
    )


def resize_nearest(size: str, *shape: int) -> Case:
    """Twice as high and as wide."""
    return Case(
        f"resize_nearest/{size}",
        "resize",
        [
            _node(
                "Resize",
                ["x", "", "scales"],
                ["o"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        {"x": floats(*shape)},
        lambda x: np.repeat(np.repeat(x, 2, axis=2), 2, axis=3),
        lambda torch, x: torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"),
        constants={"scales": np.array([1, 1, 2, 2], np.float32)},
    )


def _interpolated(x: Array, axis: int) -> Array:
    """Twice as long, the sample points at the middles of the elements."""
    extent = x.shape[axis]
    position = np.clip((np.arange(2 * extent, dtype=np.float32) + np.float32(0.5)) / 2 - 0.5, 0, extent - 1)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, extent - 1)
    shape = [1] * x.ndim
    shape[axis] = 2 * extent
    share = (position - low).astype(np.float32).reshape(shape)
    result: Array = np.take(x, low, axis=axis) * (1 - share) + np.take(x, high, axis=axis) * share
    return result


def resize_linear(size: str, *shape: int) -> Case:
    """Twice as high and as wide."""

    def in_torch(torch: Any, x: Any) -> Any:
        return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)

    return Case(
        f"resize_linear/{size}",
        "resize",
        [
            _node(
                "Resize",
                ["x", "", "scales"],
                ["o"],
                mode="linear",
                coordinate_transformation_mode="half_pixel",
            )
        ],
        {"x": floats(*shape)},
        lambda x: _interpolated(_interpolated(x, 2), 3),
        in_torch,
        constants={"scales": np.array([1, 1, 2, 2], np.float32)},
    )
