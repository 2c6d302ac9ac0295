"""Graphs written out in ONNX's textual form, as optimising would see them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx.parser
from onnx import numpy_helper

from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.ir.passes import normalise

__all__ = ["written"]


def written(text: str, constants: Mapping[str, Array] = MappingProxyType({}), *, opset: int = 20) -> Graph:
    """The graph after all passes. text: from its inputs on, as in
    `"(float[2] x) => (float[2] y) { y = Relu (x) }"`. constants: in addition to those that it states.
    """
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> written {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), v) for v, a in constants.items())
    return normalise(from_model(model))
