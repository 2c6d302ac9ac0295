"""Rotary embeddings: pairs of a head's numbers, turned by an angle that hangs on the position."""

from __future__ import annotations

from collage_core.ir import Call
from collage_onnxruntime.definitions.text import AXES_SINCE, State, function, integers, known_types

__all__ = ["STATED", "turned", "turning_constants"]

_ALL = 1 << 62
"""An end beyond every axis."""


def _rotary_embedding(call: Call) -> str | None:
    """Of (batch, positions, all heads' numbers), or of (batch, heads, positions, numbers of a head)."""
    known = known_types(call, 0, 1, 2)
    heads, rotated = (int(call.attributes.get(k, 0)) for k in ("num_heads", "rotary_embedding_dim"))
    plain = call.attributes.get("scale", 1.0) == 1.0 and not call.attributes.get("is_packed_batching", 0)
    if known is None or not plain or call.opset < AXES_SINCE:
        return None
    (whole, positions, half), dims = (known[0].shape, known[1].shape, known[2].shape[-1]), len(known[0].shape)
    place = len(positions)
    if dims not in (3, 4) or not (place == 2 or positions == (1,)) or not isinstance(half, int):
        return None
    # Without a part that is rotated, all of a head is.
    full = whole[-1] == 2 * half if dims == 4 else not heads or whole[-1] == heads * 2 * half
    if (not rotated and not full) or (rotated and (rotated != 2 * half or (dims == 3 and not heads))):
        return None
    return function(
        "(x, places, cosines, sines) => (y)",
        *turning_constants(half),
        *_heads_apart(dims, heads if rotated else 0, half),
        *_angles(dims, place),
        *turned("v", "z", interleaved=bool(call.attributes.get("interleaved", 0)), has_rest=bool(rotated)),
        integers("flat", 0, 0, -1) + (" y = Reshape (z, flat)" if dims == 3 else " y = Identity (z)"),
    )


def _heads_apart(dims: int, heads: int, half: int) -> list[str]:
    """v, in which heads have an axis of their own."""
    if dims == 4:
        return ["v = Identity (x)"]
    return [integers("apart", 0, 0, *((heads, -1) if heads else (-1, 2 * half))), "v = Reshape (x, apart)"]


def _angles(dims: int, place: int) -> list[str]:
    """c and s, as they are multiplied with v. places: of each position, or of the first of all rows."""
    steps = []
    if place == 1:
        axis = 1 if dims == 3 else 2
        steps = [
            f"shape = Shape (v) axis = Constant <value_int = {axis}> () count = Gather (shape, axis)",
            "begin = Constant <value_int = 0> () step = Constant <value_int = 1> ()",
            "steps = Range (begin, count, step) index = Add (steps, places)",
        ]
    # Rows have an axis in front only where each has positions of its own.
    heads_axis = (2 if dims == 3 else 1) - (place == 1)
    index = "index" if place == 1 else "places"
    beside = place == 2 or dims == 3
    for name, table in (("c", "cosines"), ("s", "sines")):
        steps.append(f"{name}_rows = Gather ({table}, {index})")
        new = ("zero", "one", "two")[heads_axis]
        steps.append(
            f"{name} = Unsqueeze ({name}_rows, {new})" if beside else f"{name} = Identity ({name}_rows)"
        )
    return steps


def turning_constants(half: int) -> list[str]:
    """What `turned` reads beside the angles. half: of how many numbers of a head are turned."""
    return [
        integers("zero", 0) + integers(" one", 1) + integers(" two", 2) + integers(" last", 3),
        integers("behind", -1) + integers(" half", half) + integers(" full", 2 * half),
        integers("end", _ALL),
    ]


def turned(whole: str, result: str, *, interleaved: bool, has_rest: bool) -> list[str]:
    """result: pairs of the numbers of `whole`, of four axes, turned by the angles of cosine c and sine s. A
    pair are neighbours, or as far apart as half of what is turned.
    """
    p, q, first, second, together = (f"{result}_{part}" for part in ("p", "q", "first", "second", "together"))
    if interleaved:
        halves = [
            f"{result}_turning = Slice ({whole}, zero, full, last)",
            f"{p} = Slice ({result}_turning, zero, end, last, two)",
            f"{q} = Slice ({result}_turning, one, end, last, two)",
        ]
        joined = [
            f"{first}_beside = Unsqueeze ({first}, behind) {second}_beside = Unsqueeze ({second}, behind)",
            f"{result}_pairs = Concat <axis: int = -1> ({first}_beside, {second}_beside)",
            integers(f"{result}_joined", 0, 0, 0, -1),
            f"{together} = Reshape ({result}_pairs, {result}_joined)",
        ]
    else:
        halves = [f"{p} = Slice ({whole}, zero, half, last) {q} = Slice ({whole}, half, full, last)"]
        joined = [f"{together} = Concat <axis: int = -1> ({first}, {second})"]
    rest = f"{result}_rest = Slice ({whole}, full, end, last)"
    return [
        *halves,
        f"{p}_c = Mul ({p}, c) {q}_s = Mul ({q}, s) {first} = Sub ({p}_c, {q}_s)",
        f"{q}_c = Mul ({q}, c) {p}_s = Mul ({p}, s) {second} = Add ({q}_c, {p}_s)",
        *joined,
        f"{rest} {result} = Concat <axis: int = -1> ({together}, {result}_rest)"
        if has_rest
        else f"{result} = Identity ({together})",
    ]


STATED: dict[str, State] = {"RotaryEmbedding": _rotary_embedding}
"""By operator."""
