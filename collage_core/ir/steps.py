"""The steps in which QuantizeLinear and DequantizeLinear count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir.graph import Graph
from collage_core.ir.types import Node

__all__ = ["Steps", "are_ordinary", "steps_of"]

_EIGHT_BITS = frozenset(["int8", "uint8"])
_SMALLEST, _LARGEST = 1e-30, 1e30


@dataclass(frozen=True, slots=True)
class Steps:
    """value = scale * (number - zero_point), one scale for all elements, a float32. dtype: of the number."""

    scale: float
    zero_point: int
    dtype: str


def steps_of(graph: Graph, node: Node) -> Steps | Refusal:
    """Those of a QuantizeLinear or DequantizeLinear of eight bits; the Refusal says why they are no constant
    ones, the same for all elements, and ordinary.
    """
    number = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    scale = graph.constants.get(node.inputs[1])
    zero = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
    if scale is None or zero is None:
        return Refusal("a scale or zero point that is computed", node.name)
    if (dtype := graph.type_of(number).dtype) not in _EIGHT_BITS:
        return Refusal(f"{dtype}, not int8 or uint8", node.name)
    if scale.size != 1 or zero.size != 1:
        return Refusal("several scales of what is no weight", node.name)
    if scale.dtype != np.float32 or node.attributes.get("precision", 0):
        return Refusal(f"a scale of {scale.dtype}, not float32", node.name)
    if not are_ordinary(scale):
        return Refusal(f"a scale of {scale.item():g}", node.name)
    return Steps(float(scale.item()), int(zero.item()), dtype)


def are_ordinary(scales: Array) -> bool:
    """Whether neither they nor what is computed with them is zero, denormal or infinite, and the largest
    number stands for the largest value.
    """
    return bool(((scales > _SMALLEST) & (scales < _LARGEST)).all())
