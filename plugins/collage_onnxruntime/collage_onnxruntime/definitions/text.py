"""Functions in ONNX's text format, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collage_core.ir import UNKNOWN, Call, TensorType

__all__ = [
    "AXES_SINCE",
    "LEAST",
    "State",
    "attributes_text",
    "float_type",
    "function",
    "integers",
    "known_types",
    "listed",
    "number",
    "parts",
    "rank",
]

State = Callable[[Call], str | None]
"""Of one node the function, as `Definition.state`."""

AXES_SINCE = 13
"""The opset from which Softmax is of one axis, and Unsqueeze and Split are told axes and sizes by inputs."""
LEAST = float(np.finfo(np.float32).min)
"""Of float32: what hides a score from Softmax."""
_COUNTED_SINCE = 18
"""The opset from which Split is told how many equal parts there are."""


def function(head: str, *steps: str) -> str:
    """head: inputs and outputs, as "(x) => (y)"."""
    return f"{head} {{ {' '.join(steps)} }}"


def known_types(call: Call, *places: int) -> list[TensorType] | None:
    """The types of these inputs; None where one is absent, or its rank is not known."""
    found = [call.types[place] if place < len(call.types) else None for place in places]
    known = [type for type in found if type is not None and type != UNKNOWN]
    return known if len(known) == len(places) else None


def rank(call: Call, place: int) -> int | None:
    """Of an input; None where it is absent, or that is not known."""
    known = known_types(call, place)
    return None if known is None else len(known[0].shape)


def float_type(call: Call, place: int = 0) -> bool:
    """Whether an input is known to be of float32, which the numbers in a function's text are."""
    known = known_types(call, place)
    return known is not None and known[0].dtype == "float32"


def number(name: str, value: float) -> str:
    """A scalar of float32."""
    return f"{name} = Constant <value_float = {float(value)!r}> ()"


def integers(name: str, *values: int) -> str:
    """A vector of int64."""
    return f"{name} = Constant <value_ints = [{listed(values)}]> ()"


def parts(call: Call, whole: str, names: Sequence[str], axis: int) -> str:
    """Equal ones of `whole`, from opset 13 on."""
    count = f", num_outputs: int = {len(names)}" if call.opset >= _COUNTED_SINCE else ""
    return f"{', '.join(names)} = Split <axis: int = {axis}{count}> ({whole})"


def attributes_text(attributes: Mapping[str, Any]) -> str:
    stated = ", ".join(f"{name}: {_typed(value)}" for name, value in attributes.items())
    return f"<{stated}>" if stated else ""


def _typed(value: Any) -> str:
    match value:
        case str():
            return f'string = "{value}"'
        case float():
            return f"float = {value}"
        case int():
            return f"int = {value}"
    return f"ints = [{listed(value)}]"


def listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
