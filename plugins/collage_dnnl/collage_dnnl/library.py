"""oneDNN through ctypes. The only file that touches the vendor's library; it is loaded on the first call of
`load`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from collage_run.errors import BackendError, BackendUnavailableError
from collage_run.formats import Array
from collage_run.shared_library import SharedLibrary, once

from collage_dnnl.enums import Alg, Arg, Query, status_name

__all__ = [
    "LIBRARY_FILE",
    "LIBRARY_VARIABLE",
    "Descriptor",
    "Library",
    "PostOp",
    "Primitive",
    "PrimitiveDescriptor",
    "load",
]

LIBRARY_VARIABLE = "COLLAGE_DNNL_LIBRARY"
LIBRARY_FILE = SharedLibrary("onednn-cpu-gomp", "libdnnl.so.3", LIBRARY_VARIABLE)
_TYPES = {"bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6}
_FORMAT_TAG_ANY = 1
_MAX_NDIMS = 12
_SCRATCHPAD_MODE_USER = 1
_STREAM_IN_ORDER = 1
_CPU = 1

_Dims = ctypes.c_int64 * _MAX_NDIMS
_NO_MASKS: Mapping[int, int] = MappingProxyType({})


class _ExecArg(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_int), ("memory", ctypes.c_void_p))


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


class _Handle:
    """An object of the library that is destroyed when nobody refers to it any more."""

    __slots__ = ("__weakref__", "pointer")

    def __init__(self, pointer: ctypes.c_void_p, destroy: Callable[[ctypes.c_void_p], object]) -> None:
        self.pointer = pointer
        weakref.finalize(self, destroy, pointer).atexit = False


class Descriptor(_Handle):
    """A memory descriptor."""


class PrimitiveDescriptor(_Handle):
    """An implementation that the library has chosen; not compiled yet."""


class Primitive(_Handle):
    """A compiled primitive. Thread-safe, as its scratchpad is the caller's."""


PostOp = tuple[Alg, float, float] | tuple[Alg, Descriptor] | None
"""Eltwise (alg, alpha, beta), binary (alg, descriptor of the second operand), or None for the sum with what
the destination held.
"""


class Library:
    """One loaded oneDNN with its CPU engine and an in-order stream (calls on the CPU are finished when they
    return).
    """

    def __init__(self, path: Path) -> None:
        try:
            self._dll = ctypes.CDLL(str(path))
        except OSError as error:
            raise BackendUnavailableError(f"cannot load {path}: {error}") from None
        # Called under the interpreter's lock, which takes less time than giving it away and back.
        self._openmp = ctypes.PyDLL(str(path))
        self._dll.dnnl_version.restype = ctypes.POINTER(_Version)
        self._dll.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self._dll.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        v = self._dll.dnnl_version().contents
        self.version = f"{v.major}.{v.minor}.{v.patch}"
        if v.major != 3:
            raise BackendError(
                f"{path} is oneDNN {self.version}; this plugin speaks the interface of version 3"
            )
        self._engine = self._new("dnnl_engine_create", _CPU, ctypes.c_size_t(0))
        self._stream = self._new("dnnl_stream_create", self._engine, _STREAM_IN_ORDER)

    @contextmanager
    def threads(self, threads: int) -> Iterator[None]:
        """How many OpenMP threads primitives that the calling thread makes and runs may use. As it was after
        that: whoever else has loaded the same OpenMP (PyTorch) asks it as well.
        """
        found = self._openmp.omp_get_max_threads()
        self._openmp.omp_set_num_threads(threads)
        try:
            yield
        finally:
            self._openmp.omp_set_num_threads(found)

    def descriptor(self, dims: Sequence[int], strides: Sequence[int] | None, dtype: str) -> Descriptor:
        """Memory of `dims` with `strides` in elements; None leaves the format to the primitive."""
        if dtype not in _TYPES:
            raise BackendError(f"oneDNN is given {', '.join(_TYPES)} here, not {dtype}")
        n, of = len(dims), _TYPES[dtype]
        if strides is None:
            pointer = self._new("dnnl_memory_desc_create_with_tag", n, _Dims(*dims), of, _FORMAT_TAG_ANY)
        else:
            pointer = self._new("dnnl_memory_desc_create_with_strides", n, _Dims(*dims), of, _Dims(*strides))
        return Descriptor(pointer, self._dll.dnnl_memory_desc_destroy)

    def size_bytes(self, descriptor: Descriptor) -> int:
        return int(self._dll.dnnl_memory_desc_get_size(descriptor.pointer))

    def equal(self, a: Descriptor, b: Descriptor) -> bool:
        return bool(self._dll.dnnl_memory_desc_equal(a.pointer, b.pointer))

    def attributes(self, post_ops: Sequence[PostOp], masks: Mapping[int, int] = _NO_MASKS) -> _Handle:
        """Primitive attributes: post-operations, and a scratchpad that the caller gives. masks: by argument,
        `ATTR_SCALES` or `ATTR_ZERO_POINTS` of another one, a bit for each dimension along which it varies.
        """
        attributes = _Handle(self._new("dnnl_primitive_attr_create"), self._dll.dnnl_primitive_attr_destroy)
        self._call("dnnl_primitive_attr_set_scratchpad_mode", attributes.pointer, _SCRATCHPAD_MODE_USER)
        ops = _Handle(self._new("dnnl_post_ops_create"), self._dll.dnnl_post_ops_destroy)
        for op in post_ops:
            if op is None:
                self._call("dnnl_post_ops_append_sum", ops.pointer, ctypes.c_float(1.0), ctypes.c_int32(0), 0)
            elif isinstance(op[1], Descriptor):
                self._call("dnnl_post_ops_append_binary", ops.pointer, int(op[0]), op[1].pointer)
            else:
                alg, alpha, beta = op[0], op[1], op[2]
                self._call(
                    "dnnl_post_ops_append_eltwise",
                    ops.pointer,
                    int(alg),
                    ctypes.c_float(alpha),
                    ctypes.c_float(beta),
                )
        self._call("dnnl_primitive_attr_set_post_ops", attributes.pointer, ops.pointer)
        for arg, mask in masks.items():
            what = "scales" if arg & Arg.ATTR_SCALES else "zero_points"
            of = arg & ~(Arg.ATTR_SCALES | Arg.ATTR_ZERO_POINTS)
            self._call(f"dnnl_primitive_attr_set_{what}_mask", attributes.pointer, of, mask)
        return attributes

    def primitive_descriptor(
        self, function: str, arguments: Sequence[object], attributes: _Handle
    ) -> PrimitiveDescriptor:
        """What `dnnl_<function>_primitive_desc_create` answers. Of `arguments`, ints pass as int, floats as
        float, Descriptors as they are, tuples of ints as dnnl_dims_t, lists of Descriptors as arrays of them,
        None as a null pointer. BackendError if there is no implementation."""
        keep = [_argument(a) for a in arguments]
        # concat and reorder name their descriptors before the engine or repeat it; their callers pass ENGINE
        # where it goes.
        engine = [] if any(a is ENGINE for a in arguments) else [self._engine]
        passed = [self._engine if a is ENGINE else k for a, k in zip(arguments, keep, strict=True)]
        pointer = self._new(f"dnnl_{function}_primitive_desc_create", *engine, *passed, attributes.pointer)
        return PrimitiveDescriptor(pointer, self._dll.dnnl_primitive_desc_destroy)

    def implementation(self, descriptor: PrimitiveDescriptor) -> str:
        """The library's name for the implementation that it has chosen."""
        text = ctypes.c_char_p()
        self._call(
            "dnnl_primitive_desc_query", descriptor.pointer, int(Query.IMPL_INFO_STR), 0, ctypes.byref(text)
        )
        return (text.value or b"").decode()

    def queried(self, descriptor: PrimitiveDescriptor, what: Query) -> Descriptor:
        """A copy of the memory descriptor that the implementation wants."""
        found = self._dll.dnnl_primitive_desc_query_md(descriptor.pointer, int(what), 0)
        return Descriptor(
            self._new("dnnl_memory_desc_clone", ctypes.c_void_p(found)), self._dll.dnnl_memory_desc_destroy
        )

    def primitive(self, descriptor: PrimitiveDescriptor) -> Primitive:
        """Compile."""
        return Primitive(
            self._new("dnnl_primitive_create", descriptor.pointer), self._dll.dnnl_primitive_destroy
        )

    def bind(
        self,
        primitive: Primitive,
        memories: Sequence[tuple[int, Descriptor, int]],
        threads: int,
        keep: object,
    ) -> Callable[[], int]:
        """A call that executes `primitive` on (argument, descriptor, address) and returns the status, 0 when
        it went well.

        It runs on the `threads` that the primitive was made for, whatever its caller's number is by then:
        each Python thread has its own in OpenMP, and other libraries set it, too. Scratchpads are sized for
        the threads at creation, and oneDNN does not vouch for any other number.

        What must outlive the call's memory objects (buffers of constants) goes into `keep`.
        """
        handles = []
        args = (_ExecArg * len(memories))()
        for slot, (arg, descriptor, address) in zip(args, memories, strict=True):
            pointer = self._new(
                "dnnl_memory_create", descriptor.pointer, self._engine, ctypes.c_void_p(address)
            )
            handles.append(_Handle(pointer, self._dll.dnnl_memory_destroy))
            slot.arg, slot.memory = arg, pointer.value
        execute: partial[int] = partial(
            self._dll.dnnl_primitive_execute,
            primitive.pointer,
            self._stream,
            ctypes.c_int(len(memories)),
            args,
        )
        execute.__dict__["keep"] = (primitive, handles, keep, self)
        threads_now, set_threads = self._openmp.omp_get_max_threads, self._openmp.omp_set_num_threads

        def bound() -> int:
            found = threads_now()  # as `self.threads`, without what a context manager takes in each call
            if found == threads:
                return execute()
            set_threads(threads)
            status = execute()
            set_threads(found)
            return status

        return bound

    def reorder(self, source: Array, source_descriptor: Descriptor, destination: Descriptor) -> Array:
        """`source`'s data in a new 64-byte aligned buffer, laid out as `destination` says."""
        raw = np.empty(self.size_bytes(destination) + 64, np.uint8)
        offset = -raw.ctypes.data % 64
        buffer = raw[offset : offset + self.size_bytes(destination)]
        attributes = self.attributes(())
        descriptor = self.primitive_descriptor(
            "reorder", (source_descriptor, ENGINE, destination, ENGINE), attributes
        )
        scratch = self.queried(descriptor, Query.SCRATCHPAD_MD)
        scratchpad = np.empty(self.size_bytes(scratch), np.uint8)
        memories = [
            (int(Arg.SRC), source_descriptor, source.ctypes.data),
            (int(Arg.DST), destination, buffer.ctypes.data),
            (int(Arg.SCRATCHPAD), scratch, scratchpad.ctypes.data),
        ]
        threads = self._openmp.omp_get_max_threads()
        if status := self.bind(self.primitive(descriptor), memories, threads, None)():
            raise BackendError(f"oneDNN's reorder of constants failed: {status_name(status)}")
        return buffer

    def _new(self, function: str, *arguments: object) -> ctypes.c_void_p:
        result = ctypes.c_void_p()
        self._call(function, ctypes.byref(result), *arguments)
        return result

    def _call(self, function: str, *arguments: object) -> None:
        if status := getattr(self._dll, function)(*arguments):
            raise BackendError(f"oneDNN's {function.removeprefix('dnnl_')} answers: {status_name(status)}")


ENGINE = object()
"""Stands for the engine among the arguments of `Library.primitive_descriptor`."""


def _argument(value: object) -> object:
    if isinstance(value, Descriptor):
        return value.pointer
    if isinstance(value, bool | int):
        return ctypes.c_int(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    if isinstance(value, tuple):
        return _Dims(*value)
    if isinstance(value, list):
        return (ctypes.c_void_p * len(value))(*(d.pointer.value for d in value))
    return value


@once
def load() -> Library:
    """The process's library, loaded on the first call. BackendUnavailableError if there is none or it does
    not load.
    """
    path = LIBRARY_FILE.find()
    if path is None:
        raise BackendUnavailableError(f"oneDNN's library is not found: {LIBRARY_FILE.missing()}")
    return Library(path)
