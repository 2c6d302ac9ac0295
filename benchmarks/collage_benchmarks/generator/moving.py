"""Operators that move elements about."""

from __future__ import annotations

import numpy as np

from collage_benchmarks.generator.builder import Builder, Value
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()


@FAMILY.add("Transpose")
def transpose(b: Builder) -> None:
    x = b.some(b.dtype("Transpose"))
    b.node("Transpose", [x], perm=b.permuted(list(range(x.rank))) if x.rank and b.integer(0, 3) else None)


@FAMILY.add("Concat")
def concat(b: Builder) -> None:
    x = b.some(b.dtype("Concat"), 1, 5)
    axis = b.axis(x.rank)
    parts = [x]
    for _ in range(b.integer(0, 3)):
        sizes = list(x.shape)
        sizes[axis] = b.integer(1, 5)
        parts.append(b.operand(x.dtype, sizes))
    b.node("Concat", b.permuted(parts), axis=axis)


@FAMILY.add("Split")
def split(b: Builder) -> None:
    """In equal parts or in given ones; since opset 18 the number of parts may be told, the last smaller."""
    x = b.some(b.dtype("Split"), 1, 5)
    axis = b.axis(x.rank)
    whole = x.shape[axis]
    told = None if axis == 0 and b.flag() else axis
    if b.flag():
        cuts = sorted(b.integer(0, whole) for _ in range(b.integer(0, 3)))
        parts = np.diff([0, *cuts, whole]).tolist()
        b.node("Split", [x, b.parameter(parts)], len(parts), axis=told)
    elif b.opset >= 18:
        count = b.integer(1, min(4, whole)) if whole else 1
        size = -(-whole // count)
        count = max(1, -(-whole // size)) if size else 1
        b.node("Split", [x], count, axis=told, num_outputs=count)
    else:
        count = b.choice([c for c in (1, 2, 3, 4) if whole % c == 0])
        b.node("Split", [x], count, axis=told)


@FAMILY.add("Slice")
def cut(b: Builder) -> None:
    x = b.some(b.dtype("Slice"), 1, 5)
    kind = b.choice(["int64", "int32"])
    leave_axes, leave_steps = b.one_in(4), b.one_in(3)
    axes = list(range(b.integer(1, x.rank))) if leave_axes else b.axes(x.rank)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        step = 1 if leave_steps else b.choice([1, 1, 2, 3, -1, -2])
        first, last = sorted((b.integer(0, size - 1), b.integer(0, size - 1))) if size else (0, 0)
        far = np.iinfo(np.int32).max if b.one_in(3) else last + 1
        start, end = (first, far) if step > 0 else (last, first - 1 - size if first == 0 else first - 1)
        starts.append(start - size if b.one_in(3) else start)
        ends.append(end - size if 0 <= end < size and b.one_in(3) else end)
        steps.append(step)
    parameters: list[Value | None] = [b.parameter(starts, kind), b.parameter(ends, kind)]
    parameters.append(None if leave_axes else b.parameter(axes, kind))
    parameters.append(None if leave_steps else b.parameter(steps, kind))
    b.node("Slice", [x, *parameters])


@FAMILY.add("Pad")
def pad(b: Builder) -> None:
    """Negative amounts cut. Reflections stay within the array, about which ONNX is silent otherwise."""
    mode = b.choice([None, "constant", "edge", "reflect", *(["wrap"] if b.opset >= 19 else [])])
    x = b.some(b.dtype("Pad"), 1, 5, most=256)
    axes = b.axes(x.rank) if b.opset >= 18 and b.flag() else list(range(x.rank))
    before, after = [], []
    for axis in axes:
        size = x.shape[axis]
        most = min(3, size - 1) if mode in ("reflect", "wrap") else 3
        amounts = [b.integer(0, most), b.integer(0, most)]
        if size > 2 and b.one_in(4):
            amounts[b.integer(0, 1)] = -1
        before.append(amounts[0])
        after.append(amounts[1])
    fill = (
        b.constant(np.asarray(b.integer(0, 3), x.dtype)) if b.flag() and mode in (None, "constant") else None
    )
    told = b.parameter(axes) if b.opset >= 18 and (b.flag() or axes != list(range(x.rank))) else None
    b.node("Pad", [x, b.parameter([*before, *after]), fill, told], mode=mode)


@FAMILY.add("Tile")
def tile(b: Builder) -> None:
    x = b.some(b.dtype("Tile"), 1, 5, most=128)
    b.node("Tile", [x, b.parameter([b.integer(1, 3) for _ in x.shape])])


@FAMILY.add("DepthToSpace", "SpaceToDepth")
def depth(b: Builder, op: str) -> None:
    block = b.integer(1, 3)
    n, c, h, w = b.sizes((1, 2), (1, 3), (1, 4), (1, 4))
    shape = (n, c * block * block, h, w) if op == "DepthToSpace" else (n, c, h * block, w * block)
    x = b.operand(b.dtype(op), shape)
    mode = b.choice([None, "DCR", "CRD"]) if op == "DepthToSpace" else None
    b.node(op, [x], blocksize=block, mode=mode)


@FAMILY.add("Trilu")
def triangle(b: Builder) -> None:
    x = b.some(b.dtype("Trilu"), 2, 5)
    k = b.parameter(b.integer(-3, 3)) if b.flag() else None
    b.node("Trilu", [x, k], upper=b.choice([None, 0, 1]))


@FAMILY.add("ReverseSequence")
def reverse_sequence(b: Builder) -> None:
    x = b.some(b.dtype("ReverseSequence"), 2, 5)
    time = b.choice([None, 0, 1])
    time_axis = time or 0
    if not x.shape[time_axis]:
        return  # lengths are at least 1
    lengths = [b.integer(1, x.shape[time_axis]) for _ in range(x.shape[1 - time_axis])]
    batch = 1 - time_axis if time is not None or b.flag() else None
    b.node("ReverseSequence", [x, b.parameter(lengths)], time_axis=time, batch_axis=batch)


@FAMILY.add("CenterCropPad")
def center(b: Builder) -> None:
    x = b.some(b.dtype("CenterCropPad"), 1, 4)
    axes = b.axes(x.rank) if b.flag() else None
    target = [b.integer(1, 8) for _ in (axes or range(x.rank))]
    b.node("CenterCropPad", [x, b.parameter(target)], axes=axes)
