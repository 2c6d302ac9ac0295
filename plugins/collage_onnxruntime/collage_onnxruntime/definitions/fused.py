"""Products with what stood around them: transposes, a factor, a sum, an activation.

Sessions write them where they save the model that they have optimised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_core.ir import Call
from collage_onnxruntime.definitions.text import (
    State,
    attributes_text,
    float_type,
    function,
    listed,
    number,
    rank,
)

__all__ = ["STATED"]

_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "": (),
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""The names of their parameters, in the order in which a node lists the values."""


def _mat_mul(call: Call) -> str | None:
    steps, operands = [], []
    for place, name in enumerate(("a", "b")):
        perm = _perm(call, place)
        if perm is None:
            return None
        operands.append(f"{name}_turned" if perm else name)
        if perm:
            steps.append(f"{name}_turned = Transpose <perm: ints = [{listed(perm)}]> ({name})")
    alpha = call.attributes.get("alpha", 1.0)
    if alpha == 1.0:
        steps.append(f"y = MatMul ({', '.join(operands)})")
    elif float_type(call) or float_type(call, 1):
        steps += [number("alpha", alpha), f"z = MatMul ({', '.join(operands)})", "y = Mul (z, alpha)"]
    else:
        return None
    return function("(a, b) => (y)", *steps)


def _perm(call: Call, place: int) -> list[int] | None:
    """How an operand is transposed, [] where it is not; None where that hangs on what is not known."""
    side = "AB"[place]
    swaps, rolls = (bool(call.attributes.get(f"{name}{side}", 0)) for name in ("trans", "transBatch"))
    if not (swaps or rolls):
        return []
    dims = rank(call, place)
    if dims is None or (rolls and dims < 3):
        return None
    if dims < 2:
        return []
    perm = [*range(1, dims - 1), 0, dims - 1] if rolls else [*range(dims)]
    return [*perm[:-2], perm[-1], perm[-2]] if swaps else perm


def _conv(call: Call) -> str | None:
    """The sum with `z` comes before the activation."""
    attributes = dict(call.attributes)
    name, values = attributes.pop("activation", ""), attributes.pop("activation_params", ())
    activated = _activated(call, name, values)
    if activated is None:
        return None
    added = "s = Add (c, z)" if call.has(3) else "s = Identity (c)"
    return f"""(x, w, b, z) => (y) {{ c = Conv {attributes_text(attributes)} (x, w, b)
      {added} {activated} }}"""


def _gemm(call: Call) -> str | None:
    attributes = dict(call.attributes)
    name = attributes.pop("activation", "")
    given = {k: attributes.pop(f"activation_{k}", None) for k in ("alpha", "beta", "gamma")}
    values = [given.get(k) for k in _ACTIVATIONS.get(name, ())]
    activated = _activated(call, name, [v for v in values if v is not None])
    if activated is None:
        return None
    return f"(a, b, c) => (y) {{ s = Gemm {attributes_text(attributes)} (a, b, c) {activated} }}"


def _activated(call: Call, name: str, values: Sequence[float]) -> str | None:
    """A step that makes y of s; None for another activation, and where its values are not all there."""
    if name not in _ACTIVATIONS or len(values) != len(_ACTIVATIONS[name]):
        return None
    if not name:
        return "y = Identity (s)"
    if name == "Clip":
        if not float_type(call):
            return None
        return f"{number('least', values[0])} {number('most', values[1])} y = Clip (s, least, most)"
    stated = {k: float(v) for k, v in zip(_ACTIVATIONS[name], values, strict=True)}
    return f"y = {name} {attributes_text(stated)} (s)"


STATED: dict[str, State] = {"FusedMatMul": _mat_mul, "FusedConv": _conv, "FusedGemm": _gemm}
"""By operator."""
