"""What a session is asked with: the model's inputs and outputs, and memory for them, in the shape of ONNX
Runtime's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collage_core.errors import CollageError, InputError
from collage_core.formats import Array
from collage_core.ir import TensorType
from collage_core.runtime import Executable

__all__ = ["OPEN", "IOBinding", "NodeArg", "empty_of"]

_TYPE_NAMES = {"float32": "float", "float64": "double"}
"""Where ONNX Runtime calls an element type otherwise than NumPy does."""


OPEN = "?"
"""What a dimension is called in which requests may differ."""


class NodeArg:
    """An input or output: `name`, `shape` (a list of sizes; of an open output also names; None where requests
    may differ) and `type`, as in "tensor(float)".
    """

    def __init__(self, name: str, type: TensorType) -> None:
        self.name = name
        self.shape = [None if d == OPEN else d for d in type.shape]
        self.type = f"tensor({_TYPE_NAMES.get(type.dtype, type.dtype)})"

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class IOBinding:
    """Memory for a session's inputs and outputs, in the shape of `onnxruntime.IOBinding`. Nothing is copied
    when it is bound; the caller keeps what a pointer points to.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self.inputs: dict[str, Array] = {}
        """What is bound, by name."""
        self.outputs: dict[str, Array] = {}
        self.valid: Mapping[str, Array] = {}
        """Of outputs whose shapes are known only when the session has run: what is valid of them."""

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """An array, read when the session runs."""
        self._type(self._executable.inputs, "input", name)
        self.inputs[name] = arr_on_cpu

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: npt.DTypeLike,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Row-major memory at an address: a torch tensor's `data_ptr()`, say."""
        type = self._type(self._executable.inputs, "input", name)
        self.inputs[name] = _at(name, type, device_type, element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: npt.DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Row-major memory at an address, or an array of its own where there is none: of the largest shape
        that the output can have.
        """
        type = self._type(self._executable.buffers, "output", name)
        asked = element_type or type.dtype, type.static_shape if shape is None else shape
        if buffer_ptr is None:
            _require_it(name, type, device_type, *asked)
            self.outputs[name] = empty_of(type)
        else:
            self.outputs[name] = _at(name, type, device_type, *asked, buffer_ptr)
        self.valid = {v: array for v, array in self.valid.items() if v != name}

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Copies of the outputs that are bound, in the order in which they were; of open ones of what is
        valid.
        """
        return [self.valid.get(name, array).copy() for name, array in self.outputs.items()]

    def clear_binding_inputs(self) -> None:
        """None is bound then."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """None is bound then."""
        self.outputs.clear()
        self.valid = {}

    @staticmethod
    def _type(known: Mapping[str, TensorType], what: str, name: str) -> TensorType:
        if name not in known:
            raise InputError(f"the model has no {what} {name!r}; its {what}s: {', '.join(known)}")
        return known[name]


def empty_of(type: TensorType) -> Array:
    return np.empty(type.static_shape, np.dtype(type.dtype))


def _require_it(
    name: str, type: TensorType, device_type: str, element_type: npt.DTypeLike, shape: Sequence[int]
) -> None:
    """CollageError where a value that is bound is another than the model's."""
    if device_type != "cpu":
        raise CollageError(f"{name!r} is bound on {device_type!r}; inputs and outputs lie on 'cpu'")
    try:
        given = np.dtype(element_type), tuple(shape)
    except TypeError as error:
        raise InputError(f"{name!r} is {type}: {error}") from None
    if given != (np.dtype(type.dtype), type.static_shape):
        raise InputError(f"{name!r} is {type}, and was bound as {given[0]}{list(shape)}")


def _at(
    name: str,
    type: TensorType,
    device_type: str,
    element_type: npt.DTypeLike,
    shape: Sequence[int],
    address: int,
) -> Array:
    _require_it(name, type, device_type, element_type, shape)
    if not type.size:
        return empty_of(type)
    if not address:
        raise InputError(f"{name!r} is bound at address 0, where there is no memory")
    buffer: Any = (ctypes.c_byte * type.size_bytes).from_address(address)
    return np.frombuffer(buffer, np.dtype(type.dtype)).reshape(type.static_shape)
