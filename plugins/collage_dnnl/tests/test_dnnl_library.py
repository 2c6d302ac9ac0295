"""Finding and loading the library, conversions, and the views that descriptors are made from."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collage_dnnl import plugin
from collage_dnnl.library import LIBRARY_FILE, LIBRARY_VARIABLE, load
from collage_dnnl.tensor import Tensor, collapse, dense, regroup
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_core.backend import BackendKind
from collage_core.devices import IMMEDIATE
from collage_core.formats import Format, empty
from collage_core.ir import TensorType
from collage_core.plugins import Registry
from collage_core.target import Target


def test_it_is_found_by_discovery() -> None:
    registry = Registry([plugin], entry_points=False)
    info = registry.backend("DNNL").info()
    assert (info.name, info.kind, info.available) == ("dnnl", BackendKind.OPERATOR, True)


def test_telling_about_itself_loads_nothing() -> None:
    code = """
import numpy as np
from onnx import helper
from collage_core.target import Target
from collage_dnnl.backend import DnnlBackend
b = DnnlBackend()
b.info(), b.patterns(), b.rules(), b.environment(Target("cpu", 2))
import collage_dnnl.kernels
assert "libdnnl" not in open("/proc/self/maps").read()
from collage_dnnl.library import load
load()
assert "libdnnl" in open("/proc/self/maps").read()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_setting_names_the_library(monkeypatch: pytest.MonkeyPatch, backend: Any, tmp_path: Path) -> None:
    found = LIBRARY_FILE.find()
    assert found is not None
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "missing.so"))
    assert LIBRARY_FILE.find() is None
    assert "missing.so" in backend.info().reason
    monkeypatch.setenv(LIBRARY_VARIABLE, str(found))
    assert LIBRARY_FILE.find() == found
    assert backend.info().available


def test_version() -> None:
    assert load().version.startswith("3.")


def test_environment_sets_one_number_of_threads(backend: Any) -> None:
    environment = backend.environment(Target("cpu", 3))
    assert environment["OMP_NUM_THREADS"] == "3"
    assert "OMP_WAIT_POLICY" not in environment


def test_a_call_runs_on_the_threads_that_its_kernel_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratchpads are sized for them; the calling thread may have been given another number since. It keeps
    that: PyTorch may have loaded the same OpenMP.
    """
    from collage_dnnl.backend import DnnlBackend

    openmp, library, ran_on = ctypes.PyDLL(str(LIBRARY_FILE.find())), load(), []
    execute = library._dll.dnnl_primitive_execute

    def spying(*arguments: Any) -> Any:
        ran_on.append(openmp.omp_get_max_threads())
        return execute(*arguments)

    monkeypatch.setattr(library._dll, "dnnl_primitive_execute", spying)
    before = openmp.omp_get_max_threads()
    openmp.omp_set_num_threads(5)
    backend, shape = DnnlBackend(), (2, 3)
    type, formats = TensorType("float32", shape), [Format.of("float32", shape, o) for o in ((0, 1), (1, 0))]
    bound = []
    for threads in (1, 2):
        kernel = backend.build_conversion(type, formats[0], formats[1], Target("cpu", threads))
        arrays = [empty(shape, f) for f in formats]
        bound.append(
            kernel.bind(arrays[:1], arrays[1:], np.empty(kernel.workspace_bytes, np.uint8), IMMEDIATE)
        )
    ran_on.clear()
    for call in (bound[0], bound[1], bound[0]):
        assert not call()
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(openmp.omp_get_max_threads).result()
        assert not other.submit(bound[1]).result()
        assert other.submit(openmp.omp_get_max_threads).result() == theirs
    assert ran_on == [1, 2, 1, 2]
    assert openmp.omp_get_max_threads() == 5
    openmp.omp_set_num_threads(before)


_SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(_SHAPES, st.data())
@settings(max_examples=60, deadline=None)
def test_conversions_between_any_layouts(shape: list[int], data: st.DataObject) -> None:
    from collage_dnnl.backend import DnnlBackend

    backend, target = DnnlBackend(), Target("cpu", 2)
    order = st.permutations(range(len(shape)))
    source, destination = (Format.of("float32", shape, data.draw(order)) for _ in range(2))
    type = TensorType("float32", tuple(shape))
    assert backend.converts(type, source, destination, target)
    kernel = backend.build_conversion(type, source, destination, target)
    x, y = (empty(shape, f) for f in (source, destination))
    x[...] = np.random.default_rng(0).standard_normal(shape)
    assert not kernel.bind([x], [y], np.empty(kernel.workspace_bytes, np.uint8), IMMEDIATE)()
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("int64", (2, 3)), ("float32", ()), ("float32", (0, 3)), ("float32", ("n", 3))]
)
def test_conversions_not_offered(backend: Any, target: Target, dtype: str, shape: tuple[Any, ...]) -> None:
    layout = tuple(range(len(shape)))
    format = Format(dtype, layout)
    assert not backend.converts(TensorType(dtype, shape), format, format, target)


def _array(tensor: Tensor, data: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.lib.stride_tricks.as_strided(data, tensor.dims, [s * 8 for s in tensor.strides])


@given(_SHAPES, st.data())
def test_merging_dimensions_keeps_every_element_in_place(shape: list[int], data: st.DataObject) -> None:
    """`collapse` and `regroup` against numpy: transposed into the order of memory and reshaped, it is the
    same array.
    """
    layout = tuple(data.draw(st.permutations(range(len(shape)))))
    kept = [data.draw(st.booleans()) for _ in shape]
    operand = dense([n if keep else 1 for n, keep in zip(shape, kept, strict=True)], layout)
    whole = dense(shape, layout)
    groups = collapse(shape, layout, [operand])
    for tensor in (whole, operand):
        seen = regroup(tensor, groups)
        assert seen is not None
        elements = np.arange(np.prod(tensor.dims))
        expected = _array(tensor, elements).transpose(layout).reshape(seen.dims)
        np.testing.assert_array_equal(_array(seen, elements), expected)
    for before, after in itertools.pairwise(groups):
        assert (operand.dims[before[-1]] == 1) != (operand.dims[after[0]] == 1)
