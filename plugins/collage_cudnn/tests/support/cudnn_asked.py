"""A process of its own: what the real cuDNN says of groups, for a GPU that is only described. Prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from collage_cudnn.library import load
from collage_cudnn.report import Report, groups, report

from collage_core import load_model, normalise
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import make_group, node

__all__ = ["CASES", "main"]

_TARGET = Target("cpu", 1, ("bfloat16", "float16"), ("cuda",))


def _numbers(*shape: int) -> Array:
    return np.random.default_rng(0).random(shape, np.float32)


def _conv(x: tuple[int, ...], w: tuple[int, ...], *after: str, **attributes: Any) -> Subgraph:
    nodes = [node("Conv", ["x", "w", "b"], "v0", **attributes)]
    nodes += [node(op, [f"v{i}"], f"v{i + 1}") for i, op in enumerate(after)]
    return make_group(nodes, {"x": _numbers(*x)}, {"w": _numbers(*w), "b": _numbers(w[0])})


def _one(op: str, *shapes: tuple[int, ...], **attributes: Any) -> Subgraph:
    inputs = {f"x{i}": _numbers(*s) for i, s in enumerate(shapes)}
    return make_group([node(op, list(inputs), "y", **attributes)], inputs)


def _normalised(shape: tuple[int, ...]) -> Subgraph:
    constants = {"s": _numbers(shape[-1]), "b": _numbers(shape[-1])}
    return make_group([node("LayerNormalization", ["x", "s", "b"], "y")], {"x": _numbers(*shape)}, constants)


CASES: Mapping[str, Callable[[], Subgraph]] = {
    "conv": lambda: _conv((1, 16, 14, 14), (32, 16, 3, 3), pads=[1, 1, 1, 1]),
    "conv, asymmetric": lambda: _conv((2, 6, 9, 8), (5, 6, 3, 2), pads=[1, 0, 2, 1], strides=[2, 1]),
    "conv, dilated": lambda: _conv((1, 6, 19, 19), (7, 6, 3, 3), dilations=[2, 3]),
    "conv, groups": lambda: _conv((1, 128, 14, 14), (128, 4, 3, 3), "Relu", group=32),
    "conv, depthwise": lambda: _conv((1, 32, 14, 14), (32, 1, 3, 3), "Relu", group=32),
    "conv, 1-D": lambda: _conv((2, 6, 11), (5, 6, 3), "Relu"),
    "conv, 3-D": lambda: _conv((1, 4, 5, 6, 7), (4, 4, 3, 1, 2)),
    "conv, Relu": lambda: _conv((1, 16, 14, 14), (32, 16, 3, 3), "Relu"),
    "conv, Tanh": lambda: _conv((1, 16, 14, 14), (32, 16, 3, 3), "Tanh"),
    "conv, Gelu": lambda: _conv((1, 16, 14, 14), (32, 16, 3, 3), "Gelu"),
    "Erf": lambda: _one("Erf", (2, 3, 4, 5)),
    "Gelu": lambda: _one("Gelu", (2, 3, 4, 5)),
    "Relu": lambda: _one("Relu", (2, 3, 4, 5)),
    "Add": lambda: _one("Add", (2, 3, 4, 5), (3, 1, 1)),
    "Mul": lambda: _one("Mul", (1, 128, 768), (768,)),
    "MatMul": lambda: _one("MatMul", (12, 128, 64), (12, 64, 128)),
    "LayerNormalization": lambda: _normalised((1, 128, 768)),
    "ConvTranspose": lambda: _one("ConvTranspose", (1, 6, 9, 9), (6, 4, 3, 3), strides=[2, 2]),
}
"""Groups by name."""


def main(path: str | None = None) -> None:
    """Of the cases, or of a model's groups: lists of those that are taken and those that are not."""
    found: dict[str, Report] = {}
    if path is None:
        found = {name: report(load(), [make()], _TARGET) for name, make in CASES.items()}
    else:
        found[path] = report(load(), groups(normalise(load_model(path))), _TARGET)
    said = {
        name: {
            "accepted": [str(v) for _, v, _ in of.accepted],
            "declined": [[str(v), reason] for _, v, reason in of.declined],
        }
        for name, of in found.items()
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
