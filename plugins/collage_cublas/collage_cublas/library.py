"""cuBLASLt through nvmath-python's bindings. The only file that touches the vendor's library
(https://docs.nvidia.com/cuda/nvmath-python/latest/bindings/cublasLt.html); it is loaded on the first call of
`load`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from collage_core.errors import BackendError, BackendUnavailableError
from collage_core.formats import Array
from collage_cublas.product import NARROW, Matrix, Product

__all__ = ["WORKSPACE_ALIGNMENT_BYTES", "Addresses", "Algorithm", "Library", "load"]

WORKSPACE_ALIGNMENT_BYTES = 256

_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""cudaDataType_t, CUDA_R_*: https://docs.nvidia.com/cuda/cublas/#cudadatatype-t"""
_EPILOGUES = {"": "DEFAULT", "Relu": "RELU", "Gelu": "GELU"}
_SUCCESS = 0
_SOME_ADDRESS = 256
"""Of a bias that nobody reads."""
_WORKSPACE_SLACK_BYTES = 16
"""nvmath-python's own Matmul gives so much more where an epilogue and a workspace meet."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """data: a cublasLtMatmulAlgo_t, one element. workspace_bytes: what it needs."""

    data: Array
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the operands of a product lie; bias is 0 where there is none, c where beta is 0."""

    a: int
    b: int
    c: int
    d: int
    bias: int


class Library:
    """One handle, for the context that was current when it was made."""

    def __init__(self) -> None:
        try:
            from nvmath.bindings import cublas, cublasLt
        except ImportError as error:
            raise BackendUnavailableError(f"nvmath-python does not load: {error}") from None
        self._lt, self._cublas = cublasLt, cublas
        self.error: type[Exception] = cublasLt.cuBLASLtError
        """What a call raises that the library refuses."""
        self.chosen: dict[tuple[Product, ...], tuple[int, Algorithm]] = {}
        """By the ways to run a product: which is the fastest, and by which algorithm."""
        with _told():
            self.version = int(cublasLt.get_version())
            self._handle = cublasLt.create()

    def algorithms(self, product: Product, bias: int, most: int, workspace_bytes: int) -> list[Algorithm]:
        """Those that the library's heuristic ranks first, best first. bias: an address aligned as its own.

        BackendError where it has none.
        """
        with _told():
            problem = _Problem(self._lt, self._cublas, product, bias)
            return problem.algorithms(self._handle, most, workspace_bytes)

    def restored(self, product: Product, data: bytes) -> Algorithm:
        """The algorithm whose bytes these are, which this version of the library has recommended for this
        product on a GPU like this one. BackendError where it does not take it any more.

        https://docs.nvidia.com/cuda/cublas/#cublasltmatmulalgo-t: it "can be trivially serialized".
        """
        with _told():
            algorithm = np.frombuffer(bytearray(data), self._lt.matmul_algo_dtype)
            problem = _Problem(self._lt, self._cublas, product, _SOME_ADDRESS)
            return problem.checked(self._handle, algorithm)

    def bind(
        self,
        product: Product,
        algorithm: Algorithm,
        addresses: Addresses,
        workspace: tuple[int, int],
        stream: int,
    ) -> Callable[[], object]:
        """A call that queues the product on `stream`. workspace: address and bytes. It keeps alive all that
        it needs but the memory at these addresses.
        """
        with _told():
            problem = _Problem(self._lt, self._cublas, product, addresses.bias)
        calls = [
            problem.call(self._handle, algorithm, addresses, start, workspace, stream)
            for start in product.start_bytes
        ]
        return calls[0] if len(calls) == 1 else _Sequence(calls)


class _Sequence:
    """Calls, one behind the other."""

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = tuple(calls)

    def __call__(self) -> None:
        for call in self._calls:
            call()


class _Problem:
    """A product's descriptors, and its factors on the host. They live as long as it does."""

    def __init__(self, lt: Any, cublas: Any, product: Product, bias: int) -> None:
        self._lt, self._product = lt, product
        scale = product.scale_dtype
        # Not one of the FAST types: nothing is rounded to TF32.
        compute = cublas.ComputeType["COMPUTE_64F" if scale == "float64" else "COMPUTE_32F"]
        self._alpha, self._beta = np.array([product.alpha], scale), np.array([product.beta], scale)
        self._description = lt.matmul_desc_create(compute, _TYPES[scale])
        weakref.finalize(self, lt.matmul_desc_destroy, self._description)
        operations = {False: cublas.Operation.N, True: cublas.Operation.T}
        epilogue = _EPILOGUES[product.activation]
        if product.has_bias:
            epilogue = "BIAS" if epilogue == "DEFAULT" else f"{epilogue}_BIAS"
            self._describe("BIAS_POINTER", bias)
        self._describe("TRANSA", operations[product.transpose_a])
        self._describe("TRANSB", operations[product.transpose_b])
        self._describe("EPILOGUE", lt.Epilogue[epilogue])
        self._a = self._layout(product.a, product.dtype)
        self._b = self._layout(product.b, product.dtype)
        self._d = self._layout(product.d, product.out_dtype)
        self._c = self._d if product.c is None else self._layout(product.c, product.out_dtype)

    def _describe(self, name: str, value: int) -> None:
        lt = self._lt
        attribute = lt.MatmulDescAttribute[name]
        buffer = np.array([value], lt.get_matmul_desc_attribute_dtype(attribute))
        lt.matmul_desc_set_attribute(self._description, attribute, buffer.ctypes.data, buffer.nbytes)

    def _layout(self, matrix: Matrix, dtype: str) -> int:
        lt = self._lt
        layout: int = lt.matrix_layout_create(_TYPES[dtype], matrix.rows, matrix.columns, matrix.leading)
        weakref.finalize(self, lt.matrix_layout_destroy, layout)
        batch = self._product.batch
        for name, value in (("BATCH_COUNT", batch), ("STRIDED_BATCH_OFFSET", matrix.stride)):
            attribute = lt.MatrixLayoutAttribute[name]
            buffer = np.array([value], lt.get_matrix_layout_attribute_dtype(attribute))
            lt.matrix_layout_set_attribute(layout, attribute, buffer.ctypes.data, buffer.nbytes)
        return layout

    def algorithms(self, handle: int, most: int, workspace_bytes: int) -> list[Algorithm]:
        lt = self._lt
        preference = lt.matmul_preference_create()
        weakref.finalize(self, lt.matmul_preference_destroy, preference)
        wanted = {"MAX_WORKSPACE_BYTES": workspace_bytes}
        for letter, alignment_bytes in zip("ABCD", self._product.alignment_bytes, strict=True):
            wanted[f"MIN_ALIGNMENT_{letter}_BYTES"] = alignment_bytes
        if self._product.dtype in NARROW:
            # Parts of a sum are added in float32, not as the result is stored.
            wanted["REDUCTION_SCHEME_MASK"] = lt.ReductionScheme.COMPUTE_TYPE
        for name, value in wanted.items():
            attribute = lt.MatmulPreferenceAttribute[name]
            buffer = np.array([value], lt.get_matmul_preference_attribute_dtype(attribute))
            lt.matmul_preference_set_attribute(preference, attribute, buffer.ctypes.data, buffer.nbytes)
        results, count = np.zeros(most, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        lt.matmul_algo_get_heuristic(
            handle,
            self._description,
            self._a,
            self._b,
            self._c,
            self._d,
            preference,
            most,
            results.ctypes.data,
            count.ctypes.data,
        )
        found = results[: int(count[0])]
        return [
            _algorithm(found["algo"][i : i + 1], size)
            for i, size in enumerate(found["workspace_size"].tolist())
            if found["state"][i] == _SUCCESS
        ]

    def checked(self, handle: int, data: Array) -> Algorithm:
        lt = self._lt
        results = np.zeros(1, lt.matmul_heuristic_result_dtype)
        lt.matmul_algo_check(
            handle,
            self._description,
            self._a,
            self._b,
            self._c,
            self._d,
            data.ctypes.data,
            results.ctypes.data,
        )
        return _algorithm(data, int(results["workspace_size"][0]))

    def call(
        self,
        handle: int,
        algorithm: Algorithm,
        addresses: Addresses,
        start_bytes: tuple[int, ...],
        workspace: tuple[int, int],
        stream: int,
    ) -> Callable[[], object]:
        a, b, c, d = start_bytes
        d += addresses.d
        call = partial(
            self._lt.matmul,
            handle,
            self._description,
            self._alpha.ctypes.data,
            addresses.a + a,
            self._a,
            addresses.b + b,
            self._b,
            self._beta.ctypes.data,
            addresses.c + c if addresses.c else d,
            self._c,
            d,
            self._d,
            algorithm.data.ctypes.data,
            *workspace,
            stream,
        )
        call.__dict__["keep"] = (self, algorithm)
        return call


def _algorithm(data: Array, workspace_bytes: int) -> Algorithm:
    return Algorithm(data.copy(), workspace_bytes and workspace_bytes + _WORKSPACE_SLACK_BYTES)


@contextmanager
def _told() -> Iterator[None]:
    """The library's errors, and that it is not found, as Collage's."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise BackendUnavailableError(f"cuBLASLt does not load: {error}") from None
    except Exception as error:
        raise BackendError(f"cuBLASLt: {error}") from None


_loaded: list[Library] = []


def load() -> Library:
    """The process's library, loaded on the first call, with a CUDA context current."""
    if not _loaded:
        _loaded.append(Library())
    return _loaded[0]
