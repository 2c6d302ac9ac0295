"""Constants of ONNX models as arrays. Those in external data are memory-mapped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.external_data_helper
from onnx import helper, numpy_helper

from collage_core.errors import ModelError
from collage_core.formats import Array

__all__ = ["PACKED_BITS", "ExternalData", "constant_of", "dtype_of", "tensor_array"]

PACKED_BITS = {
    number: int(name[-1]) if name.endswith(("INT4", "INT2")) else 4
    for name, number in onnx.TensorProto.DataType.items()
    if name.endswith(("INT4", "INT2", "FLOAT4E2M1"))
}
"""Bits of the element types of which ONNX stores several in a byte, unlike numpy."""


@dataclass(frozen=True, slots=True)
class ExternalData:
    """Where a model's external data lies: in files of `folder`, or all of it at `offset` inside the one file
    `archive`.
    """

    folder: Path
    archive: Path | None = None
    offset: int = 0

    def locate(self, location: str) -> tuple[Path, int]:
        """File and offset in it at which the external data file `location` starts; ModelError if that is
        outside the folder.
        """
        if self.archive is not None:
            return self.archive, self.offset
        path = (self.folder / location).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise ModelError(f"external data {location!r} lies outside the model's folder")
        return path, 0


def dtype_of(element_type: int, what: str) -> np.dtype[Any]:
    """numpy's dtype for an ONNX element type; ModelError says that `what` has one that nobody knows."""
    try:
        return helper.tensor_dtype_to_np_dtype(element_type)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{what} has the unknown element type {element_type}") from None


def tensor_array(tensor: onnx.TensorProto, external: ExternalData | None, what: str | None = None) -> Array:
    """The tensor's elements, read-only where they are mapped; ModelError, naming `what`, if they are not all
    there.
    """
    what = what or f"constant {tensor.name!r}"
    dtype = dtype_of(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has the shape {list(shape)}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, external, dtype, what)
    try:
        return numpy_helper.to_array(tensor)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{what} ({dtype.name}{list(shape)}) cannot be read: {error}") from None


def _external(
    tensor: onnx.TensorProto, external: ExternalData | None, dtype: np.dtype[Any], what: str
) -> Array:
    if external is None:
        raise ModelError(f"{what} lies in external data, and the model was not read from a file")
    try:
        info = onnx.external_data_helper.ExternalDataInfo(tensor)
        start, length = int(info.offset or 0), info.length and int(info.length)
    except ValueError as error:
        raise ModelError(f"{what}: where its external data lies is not readable: {error}") from None
    shape = tuple(tensor.dims)
    count = math.prod(shape)
    bits = PACKED_BITS.get(tensor.data_type, 8 * dtype.itemsize)
    size_bytes = (count * bits + 7) // 8
    path, beginning = external.locate(info.location)
    if not info.location or not path.is_file():
        raise ModelError(f"{what}: external data file {path} is missing")
    end = beginning + start + size_bytes
    if start < 0 or path.stat().st_size < end or (length or size_bytes) < size_bytes:
        raise ModelError(f"{what}: external data file {path} is too short")
    if count == 0:
        return np.empty(shape, dtype)
    start += beginning
    if tensor.data_type in PACKED_BITS:
        inside = onnx.TensorProto(data_type=tensor.data_type, dims=shape)
        inside.raw_data = np.memmap(path, np.uint8, "r", start, (size_bytes,)).tobytes()
        return numpy_helper.to_array(inside)
    return np.memmap(path, dtype, "r", start, shape)


def constant_of(node: onnx.NodeProto, external: ExternalData | None) -> Array:
    """The value of a Constant node; ModelError if it has none that is supported."""
    what = f"Constant {node.name or ', '.join(node.output)!r}"
    if len(node.attribute) != 1 or len(node.output) != 1:
        raise ModelError(f"{what} does not have one attribute and one output")
    attribute = node.attribute[0]
    if attribute.name == "value" and attribute.type == onnx.AttributeProto.TENSOR:
        return tensor_array(attribute.t, external, what)
    if attribute.name in ("value_float", "value_floats"):
        return np.asarray(helper.get_attribute_value(attribute), np.float32)
    if attribute.name in ("value_int", "value_ints"):
        return np.asarray(helper.get_attribute_value(attribute), np.int64)
    raise ModelError(f"{what}: attribute {attribute.name!r} is not supported")
