"""Attention with several heads: projected within (`Attention`), or of projections (`MultiHeadAttention`).

Letters of shapes: B batch, N heads, S positions of queries, P positions of the past, T of keys in all, H
numbers of a head. As the library's kernels for the CPU compute it: what has no kernel there is not defined.
A mask adds `mask_filter_value` before Softmax, what hides later positions the least float.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage_core.ir import Call
from collage_onnxruntime.definitions.text import (
    AXES_SINCE,
    LEAST,
    State,
    float_type,
    function,
    integers,
    known_types,
    number,
    parts,
)

__all__ = ["STATED"]

_FILTER = -10000.0


def _attention(call: Call) -> str | None:
    """Inputs: x, weights, bias, mask, past (2, B, N, P, H), what is added to the scores."""
    heads = int(call.attributes.get("num_heads", 0))
    unusual = call.attributes.get("do_rotary", 0) or call.attributes.get("past_present_share_buffer", 0)
    unusual = unusual or call.has(6) or (call.has(4) and call.has(5))
    if call.opset < AXES_SINCE or heads < 1 or unusual or not float_type(call, 1):
        return None
    kept = _kept(call, 3, both_ends=True)
    if kept is None:
        return None
    sizes = call.attributes.get("qkv_hidden_sizes", ())
    steps = ["p = MatMul (x, w)", "projected = Add (p, b)" if call.has(2) else "projected = Identity (p)"]
    if sizes:
        steps += [integers("sizes", *sizes), "qs, ks, vs = Split <axis: int = 2> (projected, sizes)"]
    else:
        steps.append(parts(call, "projected", ("qs", "ks", "vs"), 2))
    steps += [_by_head(name, f"{name}s", heads) for name in "qkv"]
    steps += _with_past(
        "Gather <axis: int = 0> (past, none)", "Gather <axis: int = 0> (past, single)", call.has(4)
    )
    if call.asks(1):
        steps += [
            integers("front", 0)
            + " keys_front = Unsqueeze (keys, front) values_front = Unsqueeze (values, front)",
            "present = Concat <axis: int = 0> (keys_front, values_front)",
        ]
    steps += _attended(call, kept, bool(call.attributes.get("unidirectional", 0)), call.has(5))
    return function("(x, w, b, mask, past, added) => (y, present)", *steps)


def _multi_head_attention(call: Call) -> str | None:
    """Inputs: queries (B, S, N H), keys and values like them or by head, the bias of all three, mask, what is
    added to the scores, keys and values of the past (B, N, P, H).
    """
    heads = int(call.attributes.get("num_heads", 0))
    known = known_types(call, 0, 1, 2)
    if call.opset < AXES_SINCE or heads < 1 or known is None or any(call.given[8:]) or any(call.asked[3:]):
        return None
    queries, keys, values = known
    by_head = len(keys.shape) == 4
    if queries.dtype != "float32" or len(queries.shape) != 3 or len(keys.shape) not in (3, 4):
        return None
    causal = bool(call.attributes.get("unidirectional", 0))
    # Of positions that differ in number the library hides others than the text says.
    if causal and queries.shape[1] != keys.shape[2 if by_head else 1]:
        return None
    kept = _kept(call, 4, both_ends=False)
    if kept is None:
        return None
    steps, names = [], ["queries", "keys_given", "values_given"]
    if call.has(3):
        sizes = [queries.shape[2], queries.shape[2], values.shape[-1]]
        if by_head or not all(isinstance(size, int) for size in sizes):
            return None
        steps += [
            integers("sizes", *(int(size) for size in sizes)),
            "qb, kb, vb = Split <axis: int = 0> (b, sizes)",
            *(f"{new}s = Add ({old}, {new}b)" for new, old in zip("qkv", names, strict=True)),
        ]
        names = ["qs", "ks", "vs"]
    steps.append(_by_head("q", names[0], heads))
    if by_head:
        steps.append(f"k = Identity ({names[1]}) v = Identity ({names[2]})")
    else:
        steps += [_by_head("k", names[1], heads), _by_head("v", names[2], heads)]
    steps += _with_past("Identity (past_keys)", "Identity (past_values)", call.has(6))
    steps.append("present_keys = Identity (keys) present_values = Identity (values)")
    steps += _attended(call, kept, causal, call.has(5))
    head = "(queries, keys_given, values_given, b, mask, added, past_keys, past_values)"
    return function(f"{head} => (y, present_keys, present_values)", *steps)


def _by_head(name: str, whole: str, heads: int) -> str:
    """(B, N, S, H) of (B, S, N H)."""
    apart = integers(f"{name}_apart", 0, 0, heads, -1)
    turned = f"{name} = Transpose <perm: ints = [0, 2, 1, 3]> ({name}_wide)"
    return f"{apart} {name}_wide = Reshape ({whole}, {name}_apart) {turned}"


def _with_past(keys: str, values: str, has_past: bool) -> list[str]:
    """keys and values (B, N, T, H), behind those of the past; before, how many these are, and scalars."""
    scalars = " ".join(
        f"{name} = Constant <value_int = {value}> ()"
        for name, value in (("none", 0), ("single", 1), ("of_positions", 2))
    )
    if not has_past:
        return [scalars, "keys = Identity (k) values = Identity (v) before = Identity (none)"]
    return [
        scalars,
        f"old_keys = {keys} old_values = {values}",
        "keys = Concat <axis: int = 2> (old_keys, k) values = Concat <axis: int = 2> (old_values, v)",
        "old_shape = Shape (old_keys) before = Gather (old_shape, of_positions)",
    ]


def _kept(call: Call, place: int, *, both_ends: bool) -> list[str] | None:
    """kept, of bool, of a rank that fits scores (B, N, S, T), of the mask in that place; [] where it is
    absent, or of one column: one key alone has all the weight, and else the library ignores such a mask.
    None where the mask is of a kind that is not known. both_ends: as of `_kept_by_ends`.
    """
    if not call.has(place):
        return []
    known = known_types(call, place)
    dims = 0 if known is None else len(known[0].shape)
    if dims == 1:
        return _kept_by_ends(call, place, both_ends=both_ends)
    if known is None or dims not in (2, 3):
        return None
    if known[0].shape[-1] == 1:
        return []
    axes = integers("mask_axes", *((1, 2) if dims == 2 else (1,)))
    return [
        "of_zero = Cast <to: int = 6> (none) is_kept = Greater (mask, of_zero)",
        f"{axes} kept = Unsqueeze (is_kept, mask_axes)",
    ]


def _kept_by_ends(call: Call, place: int, *, both_ends: bool) -> list[str] | None:
    """mask: of each row the position at which padding begins, and then, where there may be `both_ends`, those
    at which it ends.
    """
    known = known_types(call, 0, place)
    if known is None:
        return None
    rows, count = known[0].shape[0], known[1].shape[0]
    if count == rows:
        ends, begins = "ends_of = Identity (mask)", ""
    elif both_ends and isinstance(rows, int) and count == 2 * rows:
        ends = parts(call, "mask", ("ends_of", "begins_of"), 0)
        begins = """begins_long = Cast <to: int = 7> (begins_of) begins = Unsqueeze (begins_long, beside)
          is_early = Less (columns, begins) is_late = Not (is_early) is_kept = And (is_before, is_late)"""
    else:
        return None
    return [
        f"{ends} ends_long = Cast <to: int = 7> (ends_of)",
        integers("beside", 1) + " ends = Unsqueeze (ends_long, beside) is_before = Less (columns, ends)",
        begins or "is_kept = Identity (is_before)",
        integers("mask_axes", 1, 2) + " kept = Unsqueeze (is_kept, mask_axes)",
    ]


def _attended(call: Call, kept: Sequence[str], causal: bool, has_added: bool) -> list[str]:
    """y (B, S, N H) of q, keys and values; the scores plus `added`, and plus what is not `kept`."""
    scale = float(call.attributes.get("scale", 0.0))
    steps = ["turned = Transpose <perm: ints = [0, 1, 3, 2]> (keys) products = MatMul (q, turned)"]
    if scale:
        steps += [number("scale", scale), "scores = Mul (products, scale)"]
    else:
        steps += [
            integers("of_head", 3) + " q_shape = Shape (q) width = Gather (q_shape, of_head)",
            "width_f = Cast <to: int = 1> (width) root = Sqrt (width_f) scores = Div (products, root)",
        ]
    terms = ["scores"]
    if has_added:
        terms.append("added")
    if kept or causal:
        steps += [
            "keys_shape = Shape (keys) total = Gather (keys_shape, of_positions)",
            "columns = Range (none, total, single)",
            number("nothing", 0.0),
        ]
        hidden = "nothing"
    if kept:
        steps += [*kept, number("filter", float(call.attributes.get("mask_filter_value", _FILTER)))]
        steps.append("padding = Where (kept, nothing, filter)")
        hidden = "padding"
    if causal:
        steps += [
            "rows_shape = Shape (q) count = Gather (rows_shape, of_positions) end = Add (before, count)",
            integers("below", 1) + " row = Range (before, end, single) rows = Unsqueeze (row, below)",
            "is_later = Greater (columns, rows)",
            number("least", LEAST) + f" hidden = Where (is_later, least, {hidden})",
        ]
        hidden = "hidden"
    if kept or causal:
        terms.append(hidden)
    for index, term in enumerate(terms[1:]):
        steps.append(f"sum_{index} = Add ({'scores' if index == 0 else f'sum_{index - 1}'}, {term})")
    last = f"sum_{len(terms) - 2}" if len(terms) > 1 else "scores"
    return [
        *steps,
        f"weights = Softmax <axis: int = -1> ({last}) context = MatMul (weights, values)",
        "by_position = Transpose <perm: ints = [0, 2, 1, 3]> (context)",
        integers("flat", 0, 0, -1) + " y = Reshape (by_position, flat)",
    ]


STATED: dict[str, State] = {"Attention": _attention, "MultiHeadAttention": _multi_head_attention}
"""By operator."""
