"""`nvmath.bindings.cublasLt` as far as the plugin uses it, on the host's memory: it computes what the
documentation says that cublasLtMatmul computes from its descriptors.
https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ALGORITHMS", "EmulatedAlgorithm", "EmulatedBindings", "EmulatedError"]

_Array = npt.NDArray[Any]


class EmulatedError(Exception):
    """Of a status that is not success."""


class ComputeType(enum.IntEnum):
    COMPUTE_32F = 68
    COMPUTE_64F = 70


class Operation(enum.IntEnum):
    N = 0
    T = 1


class Epilogue(enum.IntEnum):
    DEFAULT = 1
    RELU = 2
    BIAS = 4
    RELU_BIAS = 6
    GELU = 32
    GELU_BIAS = 36


class MatmulDescAttribute(enum.IntEnum):
    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7
    BIAS_POINTER = 8


class MatrixLayoutAttribute(enum.IntEnum):
    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6


class MatmulPreferenceAttribute(enum.IntEnum):
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class ReductionScheme(enum.IntEnum):
    COMPUTE_TYPE = 2


@dataclass(frozen=True)
class EmulatedAlgorithm:
    """What the heuristic may recommend. cost_ms: of one call, as the emulated device tells it."""

    cost_ms: float = 1.0
    workspace_bytes: int = 0
    keeps_nan: bool = True
    runs: bool = True


ALGORITHMS = (
    EmulatedAlgorithm(cost_ms=2.0, workspace_bytes=4096),
    EmulatedAlgorithm(cost_ms=1.0, workspace_bytes=1 << 20),
)


@dataclass
class _Described:
    """A descriptor: what it was created with, and the attributes that were set."""

    facts: tuple[int, ...]
    set: dict[int, int] = field(default_factory=dict)


_TYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
_DESCRIPTION_DTYPES = {3: np.int32, 4: np.int32, 7: np.uint32, 8: np.int64}
_LAYOUT_DTYPES = {5: np.int32, 6: np.int64}
_PREFERENCE_DTYPES = {1: np.uint64, 3: np.uint32, 5: np.uint32, 6: np.uint32, 7: np.uint32, 8: np.uint32}
_HANDLE = 0xC0B1A5
_ALGORITHM = np.dtype([("data_", "<u8", (8,))])
_NOT_SUPPORTED = "the functionality requested is not supported (CUBLAS_STATUS_NOT_SUPPORTED)"


class EmulatedBindings:
    """The module. queue_of: from a stream's address to what takes (work, cost in ms)."""

    cuBLASLtError = EmulatedError  # noqa: N815
    Epilogue = Epilogue
    MatmulDescAttribute = MatmulDescAttribute
    MatrixLayoutAttribute = MatrixLayoutAttribute
    MatmulPreferenceAttribute = MatmulPreferenceAttribute
    ReductionScheme = ReductionScheme
    matmul_algo_dtype = _ALGORITHM
    matmul_heuristic_result_dtype = np.dtype(
        [
            ("algo", _ALGORITHM),
            ("workspace_size", "<u8"),
            ("state", "<i4"),
            ("waves_count", "<f4"),
            ("reserved", "<i4", (4,)),
        ]
    )

    def __init__(self, queue_of: Callable[[int], Callable[[Callable[[], None], float], None]]) -> None:
        self.algorithms: tuple[EmulatedAlgorithm, ...] = ALGORITHMS
        self.refuses_heuristics = False
        self.calls = 0
        self.products: list[dict[str, Any]] = []
        self.preferences: list[dict[str, int]] = []
        self._queue_of = queue_of
        self._alive: dict[int, _Described] = {}
        self._next = 1

    @property
    def descriptors(self) -> int:
        """How many have not been destroyed."""
        return len(self._alive)

    def get_version(self) -> int:
        return 130200

    def create(self) -> int:
        return _HANDLE

    def _new(self, *facts: int) -> int:
        self._next += 1
        self._alive[self._next] = _Described(tuple(map(int, facts)))
        return self._next

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        return self._new(compute_type, scale_type)

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        return self._new(type, rows, cols, ld)

    def matmul_preference_create(self) -> int:
        return self._new()

    def _destroy(self, descriptor: int) -> None:
        del self._alive[descriptor]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def get_matmul_desc_attribute_dtype(self, attr: int) -> Any:
        return _DESCRIPTION_DTYPES[attr]

    def get_matrix_layout_attribute_dtype(self, attr: int) -> Any:
        return _LAYOUT_DTYPES[attr]

    def get_matmul_preference_attribute_dtype(self, attr: int) -> Any:
        return _PREFERENCE_DTYPES[attr]

    def _set(self, dtypes: dict[int, Any], descriptor: int, attr: int, buf: int, size: int) -> None:
        dtype = np.dtype(dtypes[attr])
        assert size == dtype.itemsize, f"attribute {attr} is set with {size} bytes"
        self._alive[descriptor].set[int(attr)] = int(np.frombuffer(ctypes.string_at(buf, size), dtype)[0])

    def matmul_desc_set_attribute(self, desc: int, attr: int, buf: int, size: int) -> None:
        self._set(_DESCRIPTION_DTYPES, desc, attr, buf, size)

    def matrix_layout_set_attribute(self, layout: int, attr: int, buf: int, size: int) -> None:
        self._set(_LAYOUT_DTYPES, layout, attr, buf, size)

    def matmul_preference_set_attribute(self, preference: int, attr: int, buf: int, size: int) -> None:
        self._set(_PREFERENCE_DTYPES, preference, attr, buf, size)

    def matmul_algo_get_heuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int, *rest: int
    ) -> None:
        most, results_address, count_address = rest
        assert handle == _HANDLE
        if self.refuses_heuristics:
            raise EmulatedError(_NOT_SUPPORTED)
        self._checked(desc, a, b, c, d)
        wanted = self._alive[preference].set
        self.preferences.append({MatmulPreferenceAttribute(n).name: v for n, v in wanted.items()})
        limit = wanted[MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES]
        fitting = [i for i, known in enumerate(self.algorithms) if known.workspace_bytes <= limit][:most]
        results = np.zeros(len(fitting), self.matmul_heuristic_result_dtype)
        for result, i in zip(results, fitting, strict=True):
            alignments = [wanted[MatmulPreferenceAttribute[f"MIN_ALIGNMENT_{x}_BYTES"]] for x in "ABCD"]
            result["algo"]["data_"][:5] = [i, *alignments]
            result["workspace_size"] = self.algorithms[i].workspace_bytes
        ctypes.memmove(results_address, results.ctypes.data, results.nbytes)
        ctypes.memmove(count_address, np.array([len(fitting)], np.int32).ctypes.data, 4)

    def matmul_algo_check(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, algo: int, result: int
    ) -> None:
        assert handle == _HANDLE
        self._checked(desc, a, b, c, d)
        index = int(np.frombuffer(ctypes.string_at(algo, 64), np.uint64)[0])
        if index >= len(self.algorithms):
            raise EmulatedError(_NOT_SUPPORTED)
        told = np.zeros(1, self.matmul_heuristic_result_dtype)
        told["workspace_size"] = self.algorithms[index].workspace_bytes
        ctypes.memmove(result, told.ctypes.data, told.nbytes)

    def matmul(self, handle: int, desc: int, alpha: int, *rest: int) -> None:
        a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace, size, stream = rest
        assert handle == _HANDLE
        index, *alignments = np.frombuffer(ctypes.string_at(algo, 64), np.uint64)[:5].tolist()
        algorithm = self.algorithms[index]
        if not algorithm.runs:
            raise EmulatedError(_NOT_SUPPORTED)
        assert size >= algorithm.workspace_bytes
        assert workspace % 256 == 0
        for address, alignment in zip((a, b, c, d), alignments, strict=True):
            assert address % alignment == 0, f"{address} is not aligned to {alignment} bytes"
        problem = self._checked(desc, a_layout, b_layout, c_layout, d_layout)
        scale = np.dtype(problem["scale"])
        factors = [float(np.frombuffer(ctypes.string_at(f, scale.itemsize), scale)[0]) for f in (alpha, beta)]
        problem |= {"alpha": factors[0], "beta": factors[1]}
        self.products.append(problem)

        def work() -> None:
            self.calls += 1
            if algorithm.workspace_bytes:
                ctypes.memset(workspace, 0x77, algorithm.workspace_bytes)
            _compute(problem, (a, b, c, d), algorithm)

        self._queue_of(stream)(work, algorithm.cost_ms)

    def _checked(self, desc: int, *layouts: int) -> dict[str, Any]:
        """What the descriptors say; EmulatedError for what the library refuses."""
        described = self._alive[desc]
        given = described.set
        epilogue = Epilogue(given.get(MatmulDescAttribute.EPILOGUE, 1))
        problem: dict[str, Any] = {
            "compute": ComputeType(described.facts[0]).name,
            "scale": _TYPES[described.facts[1]],
            "epilogue": epilogue.name,
            "bias": given.get(MatmulDescAttribute.BIAS_POINTER, 0),
            "transa": bool(given.get(MatmulDescAttribute.TRANSA, 0)),
            "transb": bool(given.get(MatmulDescAttribute.TRANSB, 0)),
        }
        for name, layout in zip("abcd", layouts, strict=True):
            type, rows, columns, leading = self._alive[layout].facts
            batch = self._alive[layout].set
            problem[name] = (_TYPES[type], rows, columns, leading, batch.get(6, 0), batch.get(5, 1))
            if leading < rows:
                raise EmulatedError("an unsupported value was passed (CUBLAS_STATUS_INVALID_VALUE)")
        (m, k), (of_b, n) = (problem[x][1:3][:: -1 if problem[f"trans{x}"] else 1] for x in "ab")
        assert k == of_b
        assert problem["c"][1:3] == problem["d"][1:3] == (m, n)
        assert len({problem[x][5] for x in "abcd"}) == 1
        assert problem["a"][0] == problem["b"][0]
        assert problem["c"][0] == problem["d"][0]
        if "BIAS" in epilogue.name:
            assert problem["bias"]
        return problem


def _matrices(address: int, layout: tuple[Any, ...]) -> _Array:
    """[batch, rows, columns] at `address`."""
    name, rows, columns, leading, stride, batch = layout
    dtype = np.dtype(name)
    elements = (batch - 1) * stride + (columns - 1) * leading + rows
    memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    flat = np.frombuffer(memory, dtype)
    strides = [s * dtype.itemsize for s in (stride, 1, leading)]
    return np.lib.stride_tricks.as_strided(flat, (batch, rows, columns), strides)


def _compute(problem: dict[str, Any], addresses: tuple[int, ...], algorithm: EmulatedAlgorithm) -> None:
    a, b = (_matrices(at, problem[x]).astype(np.float64) for at, x in zip(addresses, "ab", strict=False))
    a = a.swapaxes(1, 2) if problem["transa"] else a
    b = b.swapaxes(1, 2) if problem["transb"] else b
    with np.errstate(all="ignore"):
        found = problem["alpha"] * (a @ b)
        if problem["beta"] != 0:
            found = found + problem["beta"] * _matrices(addresses[2], problem["c"]).astype(np.float64)
        if "BIAS" in problem["epilogue"]:
            rows = problem["d"][1]
            bias = _matrices(problem["bias"], (problem["d"][0], rows, 1, rows, 0, 1))
            found = found + bias.astype(np.float64)
        if problem["epilogue"].startswith("RELU"):
            found = np.maximum(found, 0) if algorithm.keeps_nan else np.fmax(found, 0)
        if "GELU" in problem["epilogue"]:
            inner = np.sqrt(2 / np.pi) * (found + 0.044715 * found**3)
            found = 0.5 * found * (1 + np.tanh(inner))
        _matrices(addresses[3], problem["d"])[...] = found.astype(np.dtype(problem["d"][0]))
