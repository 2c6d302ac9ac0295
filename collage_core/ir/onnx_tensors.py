"""Constants of ONNX models as arrays, those in external data too."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.external_data_helper
from onnx import helper, numpy_helper

from collage_core.errors import ModelError
from collage_core.formats import Array, empty, plain

__all__ = ["PACKED_BITS", "ExternalData", "constant_of", "dtype_of", "read_into", "tensor_array"]

_CHUNK_BYTES = 1 << 22

PACKED_BITS = {
    number: int(name[-1]) if name.endswith(("INT4", "INT2")) else 4
    for name, number in onnx.TensorProto.DataType.items()
    if name.endswith(("INT4", "INT2", "FLOAT4E2M1"))
}
"""Bits of the element types of which ONNX stores several in a byte, unlike numpy."""


class ExternalData:
    """Where a model's external data lies: in files of `folder`; or all of it is `content` (uint8), whatever
    file a tensor names.

    Files are read into memory, each once and as a whole, when something in them is first asked for: whoever
    cuts a mapped file short kills the process that uses it, by SIGBUS. mapped: for files that nobody else
    changes, of which a process needs a part.
    """

    def __init__(self, folder: Path, *, mapped: bool = False, content: Array | None = None) -> None:
        self._folder = folder
        self._mapped = mapped
        self._content = content
        self._read: dict[Path, Array] = {}
        self._copied_bytes = 0
        self._copies: dict[tuple[int, int, int], Array] = {}

    def bytes_of(self, location: str) -> Array:
        """The content of the external data file `location`, uint8, read-only; ModelError if it is outside the
        folder, missing or unreadable.
        """
        if self._content is not None:
            return self._content
        try:
            path = (self._folder / location).resolve()
            inside = path.is_relative_to(self._folder.resolve())
            missing = not location or not path.is_file()
        except (OSError, RuntimeError, ValueError):  # a name that no file can have, or links in a circle
            inside, missing = True, True
        if not inside:
            raise ModelError(f"external data {location!r} lies outside the model's folder")
        if missing:
            raise ModelError(f"external data file {location} is missing")
        if path not in self._read:
            try:
                with path.open("rb", buffering=0) as file:
                    self._read[path] = _mapped(file) if self._mapped else _whole(file)
            except (MemoryError, OSError) as error:
                said = getattr(error, "strerror", None) or error
                raise ModelError(f"external data file {location} cannot be read: {said}") from None
        return self._read[path]

    def copy(self, data: Array, element_type: int, made: Callable[[Array], Array]) -> Array:
        """What `made` copies of a part of a file (uint8), read-only, the same for tensors of one type that
        share that part. ModelError once these parts have more bytes than the file: tensors that lie one over
        the other could fill any memory.
        """
        key = (data.__array_interface__["data"][0], len(data), element_type)
        if key not in self._copies:
            self._copied_bytes += len(data)
            whole = [*self._read.values()] if self._content is None else [self._content]
            if self._copied_bytes > sum(map(len, whole)):
                raise ModelError("tensors lie one over the other in external data")
            self._copies[key] = made(data)
            self._copies[key].flags.writeable = False
        return self._copies[key]


def _whole(file: FileIO) -> Array:
    size_bytes = os.fstat(file.fileno()).st_size
    data = empty([size_bytes], plain("uint8", [size_bytes]))
    read_into(file, data)
    return data


def _mapped(file: FileIO) -> Array:
    return np.memmap(file, np.uint8, "r") if os.fstat(file.fileno()).st_size else np.empty(0, np.uint8)


def read_into(file: FileIO, data: Array, seen: Callable[[memoryview], object] = lambda part: None) -> None:
    """Fill `data` (uint8, dense) from where `file` stands, and make it read-only. Each part is `seen` when it
    is there. OSError if the file ends before.
    """
    filled = 0
    while filled < len(data):
        part = data.data[filled : filled + _CHUNK_BYTES]
        count = file.readinto(part)
        if not count:
            raise OSError(f"it has only {filled} of {len(data)} bytes")
        seen(part[:count])
        filled += count
    data.flags.writeable = False


def dtype_of(element_type: int, what: str) -> np.dtype[Any]:
    """numpy's dtype for an ONNX element type; ModelError says that `what` has one that nobody knows."""
    try:
        return helper.tensor_dtype_to_np_dtype(element_type)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{what} has the unknown element type {element_type}") from None


def tensor_array(tensor: onnx.TensorProto, external: ExternalData | None, what: str | None = None) -> Array:
    """The tensor's elements, read-only if they are external; ModelError, naming `what`, if they are not all
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
    except (OverflowError, TypeError, ValueError) as error:
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
    bits = PACKED_BITS.get(tensor.data_type, 8 * dtype.itemsize)
    size_bytes = (math.prod(shape) * bits + 7) // 8
    try:
        content = external.bytes_of(info.location)
        if not 0 <= start <= start + size_bytes <= len(content) or (length or size_bytes) < size_bytes:
            raise ModelError(f"external data file {info.location} is too short")
        return _elements(external, content[start : start + size_bytes], tensor.data_type, dtype, shape)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from None
    except ValueError as error:
        raise ModelError(f"{what} ({dtype.name}{list(shape)}) cannot be read: {error}") from None


def _elements(
    external: ExternalData, data: Array, element_type: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Array:
    if element_type in PACKED_BITS:

        def unpacked(packed: Array) -> Array:
            count = 8 * len(packed) // PACKED_BITS[element_type]
            return numpy_helper.to_array(
                onnx.TensorProto(data_type=element_type, dims=[count], raw_data=packed.tobytes())
            )

        return external.copy(data, element_type, unpacked)[: math.prod(shape)].reshape(shape)
    found: Array = data.view(dtype)
    # What is mapped is looked at in part, and would be read as a whole.
    if not found.flags.aligned and not isinstance(found, np.memmap):
        found = external.copy(data, element_type, lambda part: part.view(dtype).copy())
    return found.reshape(shape)


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
