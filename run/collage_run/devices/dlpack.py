"""What lies on a device, for libraries that take DLPack (https://dmlc.github.io/dlpack/latest/).

The header's structures, unversioned, as every consumer reads them: `dlpack.h`, DLManagedTensor.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

__all__ = ["CPU_DEVICE", "capsule"]

CPU_DEVICE = (1, 0)
"""kDLCPU: what the host may read."""

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_python = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)

_lent: dict[int, tuple[Any, ...]] = {}
"""By address of the structure: all that has to live until the consumer lets go of it."""


def _let_go(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


def _unused(capsule: int) -> None:
    """Whoever takes a capsule's tensor renames it, and calls the deleter: of others nobody does."""
    if _is_valid(capsule, _NAME):
        _lent.pop(_pointer(capsule, _NAME), None)


_deleter, _destructor = _Deleter(_let_go), _Destructor(_unused)
for _thunk in (_deleter, _destructor):
    # Consumers call them while the interpreter ends, when modules are gone.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_thunk))


def capsule(
    device: tuple[int, int],
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: str,
    owner: object,
) -> Any:
    """A "dltensor" capsule of elements that lie at `address`. device: DLDeviceType and number. strides: in
    bytes. owner: lives as long as whoever takes the capsule holds the elements.

    BufferError for a dtype that DLPack has not, or strides that are no multiple of an element.
    """
    kind = dtype.rstrip("0123456789")
    bits = 8 if kind == "bool" else int(dtype[len(kind) :] or 0)
    itemsize = math.ceil(bits / 8)
    if kind not in _CODES or bits < 8:
        raise BufferError(f"DLPack has no {dtype}")
    if any(s % itemsize for s in strides):
        raise BufferError(f"strides of {tuple(strides)} bytes are not of whole elements")
    rank = len(shape)
    sizes = (ctypes.c_int64 * rank)(*shape)
    steps = (ctypes.c_int64 * rank)(*(s // itemsize for s in strides))
    tensor = _Tensor(address, _Device(*device), rank, _DataType(_CODES[kind], bits, 1), sizes, steps, 0)
    managed = _Managed(tensor, None, _deleter)
    at = ctypes.addressof(managed)
    _lent[at] = (managed, sizes, steps, owner)
    return _new(at, _NAME, _destructor)
