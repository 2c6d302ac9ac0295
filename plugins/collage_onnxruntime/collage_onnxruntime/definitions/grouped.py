"""Attention in which several heads of queries share one of keys and values, with those of the past.

Letters of shapes: B batch, S positions of queries, N heads of queries, K of keys and values, G = N / K, H
numbers of a head, P positions that the past has room for, L those that there are room for then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from collage_core.ir import Call
from collage_onnxruntime.definitions.rotary import turned, turning_constants
from collage_onnxruntime.definitions.text import (
    AXES_SINCE,
    LEAST,
    State,
    float_type,
    function,
    integers,
    known_types,
    number,
)

__all__ = ["STATED"]

_KNOWN = {
    "causal",
    "num_heads",
    "kv_num_heads",
    "scale",
    "softcap",
    "local_window_size",
    "do_rotary",
    "rotary_interleaved",
}


def _group_query_attention(call: Call) -> str | None:
    """Inputs: queries (B, S, N H), keys and values (B, S, K H), or all three in the first one, side by side;
    keys and values of the past (B, K, P, H); of each row how many keys it has then, less one; the most of
    these; cosines and sines by position; positions (B, S).

    A prompt, where S is all that there is, begins anew, whatever the past holds. Room that a row does not
    need holds zeros. Queries behind the end of their row see all of it.
    """
    stated = call.attributes
    known = known_types(call, 0)
    unusual = {k: v for k, v in stated.items() if k not in _KNOWN and v not in (0, -1, "NONE")}
    if call.opset < AXES_SINCE or known is None or not float_type(call) or unusual:
        return None
    if stated.get("local_window_size", -1) == 0:  # nothing is attended to: nobody means that
        return None
    if stated.get("causal", 1) != 1:
        return None
    if (
        any(call.given[10:])
        or any(call.asked[3:])
        or call.has(1) != call.has(2)
        or call.has(3) != call.has(4)
    ):
        return None
    heads, shared = (int(stated.get(key, 0)) for key in ("num_heads", "kv_num_heads"))
    width = known[0].shape[-1] if len(known[0].shape) == 3 else None
    if min(heads, shared) < 1 or heads % shared or not isinstance(width, int):
        return None
    size, rest = divmod(width, heads if call.has(1) else heads + 2 * shared)
    turning = _turning(call, size)
    if not size or rest or turning is None:
        return None
    return function(
        "(queries, keys, values, past_keys, past_values, lasts, most, cosines, sines, positions)"
        " => (y, present_keys, present_values)",
        *_numbers(),
        *_by_position(call.has(1), heads, shared, size),
        *turning,
        *_places(call.has(3)),
        *_present("keys", "k_turned", shared, size, has_past=call.has(3)),
        *_present("values", "v", shared, size, has_past=call.has(3)),
        *_attended(stated, heads, shared, size),
    )


def _numbers() -> list[str]:
    """Scalars; of each row the position of its first query and where it ends, (B, 1); places, (B, S)."""
    scalars = {"none": 0, "single": 1, "of_positions": 2}
    return [
        *(f"{name} = Constant <value_int = {value}> ()" for name, value in scalars.items()),
        "whole_shape = Shape (queries) count = Gather (whole_shape, single)",
        integers("beside", -1, 1),
        "most_single = Squeeze (most) total = Cast <to: int = 7> (most_single)",
        "lasts_long = Cast <to: int = 7> (lasts) lasts_beside = Reshape (lasts_long, beside)",
        "ends = Add (lasts_beside, single) before = Sub (ends, count)",
        "is_prompt = Equal (total, count) begins = Where (is_prompt, none, before)",
        "row = Range (none, count, single) places = Add (begins, row)",
    ]


def _by_position(are_apart: bool, heads: int, shared: int, size: int) -> list[str]:
    """q (B, S, N, H), k and v (B, S, K, H)."""
    names = ["queries", "keys", "values"]
    steps = []
    if not are_apart:
        names = ["q_wide", "k_wide", "v_wide"]
        steps = [
            integers("sizes", heads * size, shared * size, shared * size),
            f"{', '.join(names)} = Split <axis: int = 2> (queries, sizes)",
        ]
    for name, wide, many in zip("qkv", names, (heads, shared, shared), strict=True):
        steps.append(f"{integers(f'{name}_apart', 0, 0, many, size)} {name} = Reshape ({wide}, {name}_apart)")
    return steps


def _turning(call: Call, size: int) -> list[str] | None:
    """q_turned and k_turned; None where the size of the tables is not known."""
    if not call.attributes.get("do_rotary", 0):
        return ["q_turned = Identity (q) k_turned = Identity (k)"]
    tables = known_types(call, 7, 8)
    half = None if tables is None else tables[0].shape[-1]
    if not isinstance(half, int):
        return None
    there = "there = Identity (places)"
    if call.has(9):
        # Of a prompt the first position alone is read.
        there = f"""{integers("in_line", -1)} positions_in_line = Reshape (positions, in_line)
          begin = Gather (positions_in_line, none) from_begin = Add (begin, row)
          there = Where (is_prompt, from_begin, positions)"""
    interleaved = bool(call.attributes.get("rotary_interleaved", 0))
    return [
        *turning_constants(half),
        there,
        "c_rows = Gather (cosines, there) c = Unsqueeze (c_rows, two)",
        "s_rows = Gather (sines, there) s = Unsqueeze (s_rows, two)",
        *turned("q", "q_turned", interleaved=interleaved, has_rest=2 * half < size),
        *turned("k", "k_turned", interleaved=interleaved, has_rest=2 * half < size),
    ]


def _places(has_past: bool) -> list[str]:
    """columns (L), and for each row and column the place in what `_present` chooses from, (B, L, 1)."""
    kept = "past_shape = Shape (past_keys) kept = Gather (past_shape, of_positions)"
    return [
        kept if has_past else "kept = Identity (none)",
        "room = Max (total, kept) columns = Range (none, room, single)",
        "since = Sub (columns, begins) of_given = Add (since, kept) nowhere = Add (kept, count)",
        "after = Add (begins, count) is_given = Less (columns, after)",
        "later = Where (is_given, of_given, nowhere)",
        "is_old = Less (columns, begins) source = Where (is_old, columns, later)",
        integers("at_end", -1) + " source_beside = Unsqueeze (source, at_end)",
        integers("first", 0) + " rows = Gather (whole_shape, first)",
        number("nothing", 0.0),
    ]


def _present(name: str, given: str, shared: int, size: int, *, has_past: bool) -> list[str]:
    """present_NAME (B, K, L, H): the past's as far as it goes, what is given (B, S, K, H), then zeros."""
    past = f"{name}_old = Transpose <perm: ints = [0, 2, 1, 3]> (past_{name})" if has_past else ""
    parts = [*([f"{name}_old"] if has_past else []), given, f"{name}_blank"]
    return [
        past,
        integers(f"{name}_one", 1, shared, size),
        f"{name}_shape = Concat <axis: int = 0> (rows, {name}_one)",
        f"{name}_blank = Expand (nothing, {name}_shape)",
        f"{name}_all = Concat <axis: int = 1> ({', '.join(parts)})",
        f"{name}_there = GatherND <batch_dims: int = 1> ({name}_all, source_beside)",
        f"present_{name} = Transpose <perm: ints = [0, 2, 1, 3]> ({name}_there)",
    ]


def _attended(stated: Mapping[str, Any], heads: int, shared: int, size: int) -> list[str]:
    """y (B, S, N H): each query with the keys up to its own, or the last `local_window_size` of these."""
    scale, most, window = (stated.get(key, 0) for key in ("scale", "softcap", "local_window_size"))
    hidden = "hidden = Identity (is_outside)"
    if window > 0:
        hidden = f"""window = Constant <value_int = {window}> () gone_at = Sub (places_beside, window)
          is_gone = LessOrEqual (columns, gone_at) hidden = Or (is_gone, is_outside)"""
    capped = "scores = Identity (scaled)"
    if most > 0:
        capped = f"{number('cap', most)} part = Div (scaled, cap) bent = Tanh (part) scores = Mul (bent, cap)"
    return [
        "q_heads = Transpose <perm: ints = [0, 2, 1, 3]> (q_turned)",
        integers("grouped", 0, shared, -1, size) + " q_grouped = Reshape (q_heads, grouped)",
        "turned_keys = Transpose <perm: ints = [0, 1, 3, 2]> (present_keys)",
        "products = MatMul (q_grouped, turned_keys)",
        number("scale", scale or 1 / math.sqrt(size)) + " scaled = Mul (products, scale)",
        capped,
        integers("by_group", 0, shared, heads // shared) + integers(" remaining", -1),
        integers("of_count", 1) + " counted = Gather (whole_shape, of_count)",
        "by_query = Concat <axis: int = 0> (by_group, counted, remaining)",
        "scores_apart = Reshape (scores, by_query)",
        "places_beside = Unsqueeze (places, at_end) is_later = Greater (columns, places_beside)",
        "ends_beside = Unsqueeze (ends, at_end) is_beyond = GreaterOrEqual (columns, ends_beside)",
        "is_outside = Or (is_later, is_beyond)",
        hidden,
        integers("of_heads", 1, 2) + " hidden_beside = Unsqueeze (hidden, of_heads)",
        number("least", LEAST) + " shown = Where (hidden_beside, least, scores_apart)",
        "weights = Softmax <axis: int = -1> (shown)",
        "scores_shape = Shape (scores) weights_grouped = Reshape (weights, scores_shape)",
        "context = MatMul (weights_grouped, present_values)",
        integers("ungrouped", 0, heads, -1, size) + " by_head = Reshape (context, ungrouped)",
        "by_place = Transpose <perm: ints = [0, 2, 1, 3]> (by_head)",
        integers("flat", 0, 0, -1) + " y = Reshape (by_place, flat)",
    ]


STATED: dict[str, State] = {"GroupQueryAttention": _group_query_attention}
"""By operator."""
