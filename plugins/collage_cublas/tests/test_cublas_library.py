"""The real bindings, and the real library as far as it goes without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from collage_cublas import plugin
from collage_cublas.backend import CublasBackend
from cublas_emulated_library import ComputeType, EmulatedBindings, Operation

from collage_core.backend import BackendKind
from collage_core.plugins import Registry

_SIGNATURES = {
    "create": "() -> intptr_t",
    "matmul": "(intptr_t light_handle, intptr_t compute_desc, intptr_t alpha, intptr_t a, intptr_t adesc, "
    "intptr_t b, intptr_t bdesc, intptr_t beta, intptr_t c, intptr_t cdesc, intptr_t d, intptr_t ddesc, "
    "intptr_t algo, intptr_t workspace, size_t workspace_size_in_bytes, intptr_t stream)",
    "get_version": "() -> size_t",
    "matmul_algo_check": "(intptr_t light_handle, intptr_t operation_desc, intptr_t adesc, intptr_t bdesc, "
    "intptr_t cdesc, intptr_t ddesc, intptr_t algo, intptr_t result)",
    "matmul_algo_get_heuristic": "(intptr_t light_handle, intptr_t operation_desc, intptr_t adesc, "
    "intptr_t bdesc, intptr_t cdesc, intptr_t ddesc, intptr_t preference, int requested_algo_count, "
    "intptr_t heuristic_results_array, intptr_t return_algo_count)",
    "matmul_desc_create": "(int compute_type, int scale_type) -> intptr_t",
    "matmul_desc_destroy": "(intptr_t matmul_desc)",
    "matmul_desc_set_attribute": "(intptr_t matmul_desc, int attr, intptr_t buf, size_t size_in_bytes)",
    "matmul_preference_create": "() -> intptr_t",
    "matmul_preference_destroy": "(intptr_t pref)",
    "matmul_preference_set_attribute": "(intptr_t pref, int attr, intptr_t buf, size_t size_in_bytes)",
    "matrix_layout_create": "(int type, uint64_t rows, uint64_t cols, int64_t ld) -> intptr_t",
    "matrix_layout_destroy": "(intptr_t mat_layout)",
    "matrix_layout_set_attribute": "(intptr_t mat_layout, int attr, intptr_t buf, size_t size_in_bytes)",
}
"""Of all that `library` calls, as the bindings' docstrings begin."""

_ENUMS = ("Epilogue", "MatmulDescAttribute", "MatmulPreferenceAttribute", "MatrixLayoutAttribute")

_needs_bindings = pytest.mark.skipif(
    importlib.util.find_spec("nvmath") is None, reason="nvmath-python is not installed"
)


def test_it_is_found_by_discovery() -> None:
    info = Registry([plugin], entry_points=False).backend("cuBLAS").info()
    assert (info.name, info.kind, info.devices) == ("cublas", BackendKind.OPERATOR, ("cuda",))


def test_what_is_missing_is_told() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    assert "no NVIDIA GPU" in (CublasBackend().info().reason or "")


def test_offering_products_loads_nothing() -> None:
    code = """
import sys
import onnx
from collage_core.target import Target
from collage_core.ir import Subgraph, from_model
from collage_core.patterns import find_matches
from collage_cublas.backend import CublasBackend
value, target = onnx.helper.make_tensor_value_info, Target("cpu", 2, accelerators=("cuda",))
graph = onnx.helper.make_graph(
    [onnx.helper.make_node("MatMul", ["a", "b"], ["y"])], "test",
    [value(v, 1, (3, 3)) for v in "ab"], [value("y", 1, (3, 3))])
graph = from_model(onnx.helper.make_model(graph))
backend, subgraph = CublasBackend(), Subgraph(graph, graph.all_nodes)
backend.info(), backend.rules(), backend.environment(target)
assert [find_matches(graph, p.pattern) for p in backend.patterns()]
(variant,) = backend.variants(subgraph, target)
assert not {"nvmath", "cuda.bindings", "collage_cublas.library"} & {*sys.modules}
assert "libcublas" not in open("/proc/self/maps").read()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.ci
@_needs_bindings
def test_the_bindings_are_those_that_are_called() -> None:
    real = importlib.import_module("nvmath.bindings.cublasLt")
    for name, signature in _SIGNATURES.items():
        assert (getattr(real, name).__doc__ or "").splitlines()[0] == name + signature


@pytest.mark.ci
@_needs_bindings
def test_the_emulated_bindings_are_like_the_real_ones() -> None:
    """Names, values and sizes."""
    real = importlib.import_module("nvmath.bindings.cublasLt")
    cublas = importlib.import_module("nvmath.bindings.cublas")
    emulated = EmulatedBindings(lambda stream: lambda work, cost_ms: None)
    pairs = [(member, getattr(real, enum)) for enum in _ENUMS for member in getattr(emulated, enum)]
    pairs += [(member, cublas.ComputeType) for member in ComputeType]
    pairs += [(member, cublas.Operation) for member in Operation]
    for member, enum in pairs:
        assert enum[member.name] == member
    assert real.ReductionScheme.COMPUTE_TYPE == emulated.ReductionScheme.COMPUTE_TYPE
    for kind, enum in (
        ("matmul_desc", _ENUMS[1]),
        ("matmul_preference", _ENUMS[2]),
        ("matrix_layout", _ENUMS[3]),
    ):
        for member in getattr(emulated, enum):
            dtypes = [getattr(x, f"get_{kind}_attribute_dtype")(member) for x in (real, emulated)]
            assert dtypes[0] == dtypes[1]
    assert real.matmul_heuristic_result_dtype == emulated.matmul_heuristic_result_dtype
    assert issubclass(real.cuBLASLtError, Exception)


_STUB = """
int cuInit(unsigned flags) { return 100; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetProcAddress(const char *s, void **p, int v, unsigned long f) { *p = 0; return 500; }
int cuGetProcAddress_v2(const char *s, void **p, int v, unsigned long f, void *q) { *p = 0; return 500; }
"""
"""A driver without a GPU: the bindings load none of the libraries without one."""

_DESCRIBE = """
import numpy as np
from nvmath.bindings import cublas, cublasLt as lt
from collage_cublas.library import _Problem, _TYPES
from collage_cublas.product import Matrix, Product

a, b, d = Matrix(7, 6, 7, 42), Matrix(7, 5, 7, 35), Matrix(6, 5, 6, 30)
for dtype, out_dtype in (("float32",) * 2, ("float64",) * 2, ("bfloat16", "float32"), ("float16",) * 2):
    product = Product(dtype, out_dtype, 6, 5, 7, 3, a, b, d, d, True, False, 0.5, 2.0, True, "Relu",
                      ((0, 0, 0, 0),))
    problem = _Problem(lt, cublas, product, 4096)

    def told(kind, descriptor, name):
        enum = {"matmul_desc": lt.MatmulDescAttribute, "matrix_layout": lt.MatrixLayoutAttribute}[kind]
        got = np.zeros(1, getattr(lt, f"get_{kind}_attribute_dtype")(enum[name]))
        written = np.zeros(1, np.uint64)
        ask = getattr(lt, f"{kind}_get_attribute")
        ask(descriptor, enum[name], got.ctypes.data, got.nbytes, written.ctypes.data)
        return int(got[0])

    names = "COMPUTE_TYPE", "SCALE_TYPE", "TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "POINTER_MODE"
    scale = "float64" if dtype == "float64" else "float32"
    compute = {"float64": 70, "float32": 68}[scale]
    assert [told("matmul_desc", problem._description, n) for n in names] == [
        compute, _TYPES[scale], 1, 0, lt.Epilogue.RELU_BIAS, 4096, 0]
    names = "TYPE", "ORDER", "ROWS", "COLS", "LD", "BATCH_COUNT", "STRIDED_BATCH_OFFSET"
    assert [told("matrix_layout", problem._a, n) for n in names] == [_TYPES[dtype], 0, 7, 6, 7, 3, 42]
    assert [told("matrix_layout", problem._d, n) for n in names] == [_TYPES[out_dtype], 0, 6, 5, 6, 3, 30]
print(lt.get_version())
"""


@pytest.mark.ci
@_needs_bindings
def test_the_real_library_holds_what_it_is_told(tmp_path: Path) -> None:
    """Descriptors need no GPU, only something that is called libcuda."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "stub.c").write_text(_STUB)
    stub = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "stub.c"]
    subprocess.run(stub, cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIBE],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "cublasLt" in done.stderr and "not found" in done.stderr:
        pytest.skip("cuBLASLt is not installed")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 120000
