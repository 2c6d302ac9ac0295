"""OpenVINO's C API through ctypes: the one module that touches the library.

Its Python package is never imported: importing it sends a usage statistic over the network, and a call
through it costs more.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from collage_run.errors import BackendError, BackendUnavailableError
from collage_run.formats import Array
from collage_run.shared_library import installed_version, once

__all__ = [
    "DISTRIBUTION",
    "DTYPES",
    "CompiledModel",
    "Library",
    "Port",
    "Request",
    "find_library",
    "library_version",
    "load",
]

DISTRIBUTION = "openvino"

DTYPES = {
    "bool": 1,
    "bfloat16": 2,
    "float16": 3,
    "float32": 4,
    "float64": 5,
    "int8": 7,
    "int16": 8,
    "int32": 9,
    "int64": 10,
    "uint8": 16,
    "uint16": 17,
    "uint32": 18,
    "uint64": 19,
}
"""numpy dtype -> ov_element_type_e."""

_DEVICE = b"CPU"
_PLACES = re.compile(r"(Check '.*?' failed at|Exception from) \S+:\d+:")
_NOISE = (
    "FrontEnd API failed with",
    "Model wasn't fully converted",
    "Summary:",
    "To facilitate the conversion",
)


class _Shape(ctypes.Structure):
    """ov_shape_t"""

    _fields_ = (("rank", ctypes.c_int64), ("dims", ctypes.POINTER(ctypes.c_int64)))


class _Property(ctypes.Structure):
    """ov_property_t"""

    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_char_p))


class _Handle(ctypes.c_void_p):
    """An object of the library's, freed with this one."""

    free: Callable[[_Handle], object] | None = None

    def __del__(self) -> None:
        if self.value and self.free is not None:  # an interrupt may have come before it was known
            self.free(self)


class _Tensor(_Handle):
    array: Array


class Request(_Handle):
    """An inference request (ov_infer_request_t) and the tensors that are set in it."""

    library: Library
    tensors: list[_Tensor]

    def run(self) -> None:
        """BackendError, with what the library says, if it fails."""
        if self.library.infer(self):
            raise self.library.error()


class _PortHandle(_Handle):
    pass


class _Model(_Handle):
    pass


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a compiled model. name: one of those that its tensor has."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class CompiledModel(_Handle):
    """A model compiled for the CPU (ov_compiled_model_t); immutable."""

    library: Library

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """A call that runs the model on these C-contiguous arrays, which it reads and writes in place.
        BackendError, with what the library says, if it fails.
        """
        library = self.library
        request = library.new(
            Request, "ov_infer_request_free", "ov_compiled_model_create_infer_request", self
        )
        request.library, request.tensors = library, []
        for kind, arrays in (("input", inputs), ("output", outputs)):
            for k, array in enumerate(arrays):
                tensor = library.tensor(array)
                library.call(
                    f"ov_infer_request_set_{kind}_tensor_by_index", request, ctypes.c_size_t(k), tensor
                )
                request.tensors.append(tensor)
        return request.run

    def inputs(self) -> list[Port]:
        return self._ports("input")

    def outputs(self) -> list[Port]:
        return self._ports("output")

    def _ports(self, kind: str) -> list[Port]:
        count = ctypes.c_size_t()
        self.library.call(f"ov_compiled_model_{kind}s_size", self, ctypes.byref(count))
        return [self._port(kind, k) for k in range(count.value)]

    def _port(self, kind: str, index: int) -> Port:
        library = self.library
        port = library.new(
            _PortHandle,
            "ov_output_const_port_free",
            f"ov_compiled_model_{kind}_by_index",
            self,
            ctypes.c_size_t(index),
        )
        shape, code, text = _Shape(), ctypes.c_int(), ctypes.c_char_p()
        library.call("ov_port_get_any_name", port, ctypes.byref(text))
        name = (text.value or b"").decode()
        library.free_text(text)
        library.call("ov_port_get_element_type", port, ctypes.byref(code))
        dtypes = [d for d, c in DTYPES.items() if c == code.value]
        if not dtypes:
            raise BackendError(f"{kind} {index} has an element type without a NumPy dtype ({code.value})")
        try:
            library.call("ov_const_port_get_shape", port, ctypes.byref(shape))
        except BackendError as error:
            raise BackendError(f"OpenVINO knows no static shape of {kind} {index}") from error
        dims = tuple(shape.dims[: shape.rank])
        library.call("ov_shape_free", ctypes.byref(shape))
        return Port(name, dtypes[0], dims)


_AnyHandle = TypeVar("_AnyHandle", bound=_Handle)


class Library:
    """The loaded library and its one ov_core_t."""

    def __init__(self, path: Path) -> None:
        try:
            self._dll = ctypes.CDLL(str(path))
        except OSError as error:
            raise BackendUnavailableError(f"OpenVINO's library does not load: {error}") from error
        self._dll.ov_get_last_err_msg.restype = ctypes.c_void_p
        self.infer = self._dll.ov_infer_request_infer
        self._core = self.new(_Handle, "ov_core_free", "ov_core_create")

    def compiled(self, model: Path, properties: Mapping[str, str]) -> CompiledModel:
        """The model in an ONNX file, compiled. The library maps the file's external data into memory as long
        as it needs it; the files may be removed.

        BackendError with what the library says if it cannot read or run it.
        """
        read = self.new(_Model, "ov_model_free", "ov_core_read_model", self._core, str(model).encode(), None)
        pairs = (_Property * len(properties))(
            *[_Property(k.encode(), v.encode()) for k, v in properties.items()]
        )
        compiled = self.new(
            CompiledModel,
            "ov_compiled_model_free",
            "ov_core_compile_model_props",
            self._core,
            read,
            _DEVICE,
            ctypes.c_size_t(len(properties)),
            pairs,
        )
        compiled.library = self
        return compiled

    def tensor(self, array: Array) -> _Tensor:
        """A tensor on the array's own memory."""
        if not array.flags.c_contiguous:
            raise ValueError(
                f"an array of shape {array.shape} with strides {array.strides} is not contiguous"
            )
        shape = _Shape(array.ndim, (ctypes.c_int64 * max(1, array.ndim))(*array.shape))
        code, address = ctypes.c_int(DTYPES[str(array.dtype)]), ctypes.c_void_p(array.ctypes.data)
        create = "ov_tensor_create_from_host_ptr"
        tensor = self.new(_Tensor, "ov_tensor_free", create, code, shape, address)
        tensor.array = array
        return tensor

    def new(self, kind: type[_AnyHandle], free: str, create: str, *arguments: object) -> _AnyHandle:
        """The object that `create` hands out through its last argument."""
        handle = kind()
        self.call(create, *arguments, ctypes.byref(handle))
        handle.free = getattr(self._dll, free)
        return handle

    def call(self, function: str, *arguments: object) -> None:
        if getattr(self._dll, function)(*arguments):
            raise self.error()

    def free_text(self, text: ctypes.c_char_p) -> None:
        self._dll.ov_free(text)

    def error(self) -> BackendError:
        """With what the library said last."""
        return BackendError(f"OpenVINO: {self._last_message()}")

    def _last_message(self) -> str:
        """Without the places in its sources."""
        pointer = ctypes.c_void_p(self._dll.ov_get_last_err_msg())
        if not pointer.value:
            return "no reason given"
        text = ctypes.string_at(pointer.value).decode(errors="replace")
        self._dll.ov_free(pointer)
        lines = [line.strip() for line in _PLACES.sub("", text).splitlines()]
        said = [line.removeprefix("-- ") for line in lines if line and not line.startswith(_NOISE)]
        return " ".join(said) or text.strip()


@cache
def find_library() -> Path | None:
    """The file of the C API in the installed distribution, whose many files are looked through once."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.startswith("libopenvino_c.so"):
            path = Path(str(file.locate()))
            return path if path.is_file() else None
    return None


def library_version() -> str | None:
    return installed_version(DISTRIBUTION)


@once
def load() -> Library:
    """The process's library, loaded on the first call. BackendUnavailableError if there is none or it does
    not load.
    """
    path = find_library()
    if path is None:
        raise BackendUnavailableError(f"OpenVINO's library is not found: {DISTRIBUTION} is not installed")
    return Library(path)
