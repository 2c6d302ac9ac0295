"""Intel MKL through ctypes. The only file that touches the vendor's library; it is loaded on the first call
of `load`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from collage_run.errors import BackendUnavailableError
from collage_run.formats import Array
from collage_run.shared_library import SharedLibrary, once

from collage_mkl.product import Matrix, Product

__all__ = ["LIBRARY_FILE", "LIBRARY_VARIABLE", "Library", "load"]

LIBRARY_VARIABLE = "COLLAGE_MKL_LIBRARY"
LIBRARY_FILE = SharedLibrary("mkl", "libmkl_rt.so.*", LIBRARY_VARIABLE)

_LP64 = 0
_GNU_THREADING = 3
_ROW_MAJOR, _COLUMN_MAJOR = 101, 102
_PLAIN, _TRANSPOSED, _PACKED = 111, 112, 151
_PACK_LEFT, _PACK_RIGHT = 161, 162
_ALIGNMENT_BYTES = 64

# Sizes are 64 bits wide in the functions whose names end so, whatever interface layer is chosen.
_Int = ctypes.c_int64
_PREFIXES: dict[str, tuple[str, type[ctypes.c_float] | type[ctypes.c_double]]] = {
    "float32": ("cblas_s", ctypes.c_float),
    "float64": ("cblas_d", ctypes.c_double),
}


class Library:
    """One loaded MKL, on GNU OpenMP's threads."""

    def __init__(self, path: Path) -> None:
        try:
            self._dll = ctypes.CDLL(str(path))
        except OSError as error:
            raise BackendUnavailableError(f"cannot load {path}: {error}") from None
        # Called under the interpreter's lock, which takes less time than giving it away and back.
        self._service = ctypes.PyDLL(str(path))
        self._service.MKL_Set_Interface_Layer(_LP64)
        # What runs from here on: another part of the process may have chosen before.
        layer = self._service.MKL_Set_Threading_Layer(_GNU_THREADING)
        if layer != _GNU_THREADING:
            raise BackendUnavailableError(
                f"{path} runs in this process with threading layer {layer}, not on GNU OpenMP "
                f"({_GNU_THREADING}); MKL_THREADING_LAYER must be GNU"
            )
        if not hasattr(self._dll, "cblas_sgemm_batch_64"):
            raise BackendUnavailableError(f"{path} is an MKL without functions of 64-bit sizes")
        # Otherwise it takes fewer threads than it is told where it thinks that better.
        self._service.MKL_Set_Dynamic(0)

    def set_threads(self, threads: int) -> None:
        """How many threads MKL uses when the calling thread calls it, whatever OpenMP has been told."""
        self._service.MKL_Set_Num_Threads_Local(threads)

    def packed(self, product: Product, data: Array, right: bool) -> Array:
        """The constant operand `data` (as stored), times alpha, in the order in which the product's kernel
        reads it. For the number of threads that is set.
        """
        side = _PACK_RIGHT if right else _PACK_LEFT
        sizes = [_Int(v) for v in (product.m, product.n, product.k)]
        name, number = _PREFIXES[product.dtype]
        size_of = getattr(self._dll, f"{name}gemm_pack_get_size_64")
        size_of.restype = ctypes.c_size_t
        buffer = _aligned(size_of(side, *sizes))
        matrix = product.right if right else product.left
        getattr(self._dll, f"{name}gemm_pack_64")(
            _order(product),
            side,
            _flag(matrix),
            *sizes,
            number(product.alpha),
            _pointer(data.ctypes.data),
            _Int(matrix.leading),
            _pointer(buffer.ctypes.data),
        )
        return buffer

    def bind(
        self,
        product: Product,
        addresses: tuple[int, int, int],
        packed: tuple[bool, bool],
        threads: int,
        keep: object,
    ) -> Callable[[], None]:
        """A call of the product on matrices at these addresses (left, right, out), of which left or right may
        be packed. What must outlive the call (the memory at these addresses) goes into `keep`.

        It runs on `threads`, whatever its caller's number is by then: each thread of the process has its own
        in MKL, and other parts of the process set it, too.
        """
        if any(packed):
            execute = self._packed_call(product, addresses, packed)
        elif product.batch == 1:
            execute = self._single_call(product, addresses)
        else:
            execute = self._batch_call(product, addresses)
        execute.__dict__["keep"] = keep
        threads_now, set_threads = self._service.MKL_Get_Max_Threads, self._service.MKL_Set_Num_Threads_Local

        def bound() -> None:
            if threads_now() != threads:
                set_threads(threads)
            execute()

        return bound

    def _packed_call(
        self, product: Product, addresses: tuple[int, int, int], packed: tuple[bool, bool]
    ) -> partial[object]:
        name, number = _PREFIXES[product.dtype]
        flags = [
            _Int(_PACKED if is_packed else _flag(m))
            for m, is_packed in zip((product.left, product.right), packed, strict=True)
        ]
        left, right, out = _operands(product, addresses)
        sizes = [_Int(v) for v in (product.m, product.n, product.k)]
        beta = number(product.beta)
        function = getattr(self._dll, f"{name}gemm_compute_64")
        return partial(function, _order(product), *flags, *sizes, *left, *right, beta, *out)

    def _single_call(self, product: Product, addresses: tuple[int, int, int]) -> partial[object]:
        name, number = _PREFIXES[product.dtype]
        flags = [ctypes.c_int(_flag(m)) for m in (product.left, product.right)]
        left, right, out = _operands(product, addresses)
        sizes = [_Int(v) for v in (product.m, product.n, product.k)]
        alpha, beta = number(product.alpha), number(product.beta)
        function = getattr(self._dll, f"{name}gemm_64")
        return partial(function, _order(product), *flags, *sizes, alpha, *left, *right, beta, *out)

    def _batch_call(self, product: Product, addresses: tuple[int, int, int]) -> partial[object]:
        """Pointers of one group of equal products. Strides in place of them could express neither broadcast
        operands of several batch dimensions nor results that interleave.
        """
        name, number = _PREFIXES[product.dtype]
        bytes_each = ctypes.sizeof(number)

        def pointers(matrix: Matrix, address: int) -> tuple[object, object]:
            each = [address + offset * bytes_each for offset in matrix.offsets]
            return (ctypes.c_void_p * len(each))(*each), (_Int * 1)(matrix.leading)

        flags = [(ctypes.c_int * 1)(_flag(m)) for m in (product.left, product.right)]
        sizes = [(_Int * 1)(v) for v in (product.m, product.n, product.k)]
        left, right, out = map(pointers, (product.left, product.right, product.out), addresses)
        alpha, beta = (number * 1)(product.alpha), (number * 1)(product.beta)
        groups = (_Int(1), (_Int * 1)(product.batch))
        function = getattr(self._dll, f"{name}gemm_batch_64")
        return partial(function, _order(product), *flags, *sizes, alpha, *left, *right, beta, *out, *groups)


def _order(product: Product) -> ctypes.c_int:
    return ctypes.c_int(_COLUMN_MAJOR if product.column_major else _ROW_MAJOR)


def _flag(matrix: Matrix) -> int:
    return _TRANSPOSED if matrix.transposed else _PLAIN


def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def _operands(
    product: Product, addresses: tuple[int, int, int]
) -> list[tuple[ctypes.c_void_p, ctypes.c_int64]]:
    """(address, leading dimension) of left, right and out."""
    matrices = (product.left, product.right, product.out)
    return [(_pointer(a), _Int(m.leading)) for a, m in zip(addresses, matrices, strict=True)]


def _aligned(size_bytes: int) -> Array:
    raw = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[offset : offset + size_bytes]


@once
def load() -> Library:
    """The process's library, loaded on the first call. BackendUnavailableError if there is none or it does
    not load.
    """
    path = LIBRARY_FILE.find()
    if path is None:
        raise BackendUnavailableError(f"MKL's library is not found: {LIBRARY_FILE.missing()}")
    return Library(path)
