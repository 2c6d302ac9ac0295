"""What runs a case in each library: opened in a process of its own, checked against NumPy, then timed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from collage_benchmarks.kernels.batch import Batch, call_s, check
from collage_benchmarks.kernels.case import Case, results
from collage_benchmarks.kernels.catalogue import CASES
from collage_core.backend import Backend, Bound, Kernel, Variant
from collage_core.costs.seats import Contender
from collage_core.devices import IMMEDIATE
from collage_core.errors import BackendError, CollageError, Refusal
from collage_core.formats import Array, empty, plain
from collage_core.ir import Subgraph, TensorType
from collage_core.plugins import default_registry
from collage_core.target import Target

__all__ = [
    "COPIES",
    "LIBRARIES",
    "contender",
    "copied_bytes",
    "copy_contender",
    "missing",
    "open_backend",
    "open_numpy",
    "open_torch",
    "version",
]

LIBRARIES = ("tvm", "torch", "compile", "numpy", "dnnl")
"""Columns of the table: the backends by name, torch eagerly and compiled, NumPy."""

COPIES = ("copy torch", "copy tvm")
"""Contenders that copy as many bytes as the largest tensors have."""

_BACKENDS = ("tvm", "dnnl")
_COPIED_SHAPE = (25 << 20,)  # float32: 105 MB read and as many written


def missing(library: str) -> str | None:
    """Why a library cannot run here at all."""
    if library in _BACKENDS:
        return default_registry().backend(library).info().reason
    if library in ("torch", "compile") and importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if library == "compile" and shutil.which("g++") is None:
        return "torch.compile needs a C++ compiler, and there is no g++"
    return None


def version(library: str) -> str | None:
    """Of the library itself; None where it is not installed."""
    if library in _BACKENDS:
        return default_registry().backend(library).info().library_version
    try:
        return importlib.metadata.version("torch" if library == "compile" else library)
    except importlib.metadata.PackageNotFoundError:
        return None


def contender(library: str, case: Case, threads: int) -> Contender:
    """The case on one of `LIBRARIES`."""
    environment = _environment(library, threads)
    if library in _BACKENDS:
        return Contender(library, environment, _open_backend, (library, case.name, threads))
    if library == "numpy":
        return Contender(library, environment, _open_numpy, (case.name,))
    return Contender(library, environment, _open_torch, (case.name, threads, library == "compile"))


def copy_contender(name: str, threads: int) -> Contender:
    """One of `COPIES`."""
    library = name.removeprefix("copy ")
    opener = _copy_tvm if library == "tvm" else _copy_torch
    return Contender(name, _environment(library, threads), opener, (threads,))


_REUSED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Makes glibc keep what is freed, on huge pages, as NumPy's large arrays are. Otherwise every large result is
new memory from the system, and torch and NumPy would be charged for its page faults, ten times the work
itself."""


def copied_bytes() -> int:
    """What a copy of `COPIES` reads and writes."""
    return 2 * 4 * _COPIED_SHAPE[0]


def _environment(library: str, threads: int) -> Mapping[str, str]:
    if library in _BACKENDS:
        return default_registry().backend(library).environment(Target("cpu", threads))
    # One compiler at a time, in the process that needs it: there is nobody else to run beside.
    return {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_COMPILE_THREADS": "1", **_REUSED_MEMORY}


def _open_numpy(name: str) -> Batch:
    return open_numpy(CASES[name])


def open_numpy(case: Case) -> Batch:
    arrays = list(case.arrays().values())
    return Batch(lambda: case.numpy(*arrays))


def _open_torch(name: str, threads: int, compiled: bool) -> Batch:
    return open_torch(CASES[name], threads, compiled)


def open_torch(case: Case, threads: int, compiled: bool) -> Batch:
    """The case in torch as its users call it, results in fresh tensors."""
    import torch

    torch.set_num_threads(threads)
    arrays = case.arrays()
    tensors = [torch.from_numpy(a) for a in arrays.values()]
    if case.channels_last:  # weights, too, as its users have them then
        tensors = [t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in tensors]

    def function(*tensors: Any) -> Any:
        return case.torch(torch, *tensors)

    called = torch.compile(function, dynamic=False) if compiled else function
    with torch.inference_mode():
        answers = results(called(*tensors))
        check({o: a.numpy() for o, a in zip(case.outputs, answers, strict=True)}, case.expected(arrays))
    return Batch(partial(called, *tensors), within=torch.inference_mode)


def _open_backend(backend: str, name: str, threads: int) -> Batch:
    return open_backend(default_registry().backend(backend), CASES[name], Target("cpu", threads))


def open_backend(backend: Backend, case: Case, target: Target) -> Batch:
    """The fastest of the variants that a backend offers for the case's layouts.

    CollageError with the reason if it declines, if none of them can be built, or if one is wrong.
    """
    arrays = case.arrays()
    group = case.group(arrays)
    offered = backend.variants(group, target)
    if isinstance(offered, Refusal):
        raise CollageError(f"declined: {offered}")
    variants = [v for v in offered if _in_layout(case, group, v)]
    if not variants:
        raise CollageError("declined: no variant in the case's layout")
    if (declined := backend.supported([group], target)[0]) is not None:
        raise CollageError(f"declined: {declined}")
    expected = case.expected(arrays)
    built: list[tuple[float, Bound, Variant]] = []
    reasons: list[str] = []
    for variant in variants:
        try:
            kernel = backend.build(group, variant, target)
        except BackendError as error:
            reasons.append(str(error))
            continue
        bound = _bound(kernel, group, variant, arrays, expected)
        built.append((call_s(bound), bound, variant))
    if not built:
        raise CollageError("; ".join(dict.fromkeys(reasons)))
    _, bound, variant = min(built, key=lambda b: b[0])
    return Batch(bound, f"{variant}, the fastest of {len(built)}")


def _in_layout(case: Case, group: Subgraph, variant: Variant) -> bool:
    """Whether tensors go in and come out as the case has them."""
    formats = [*variant.inputs, *variant.outputs]
    types = [group.graph.type_of(v) for v in (*group.inputs, *group.outputs)]
    return all(f == case.format(t.dtype, t.static_shape) for f, t in zip(formats, types, strict=True))


def _bound(
    kernel: Kernel,
    group: Subgraph,
    variant: Variant,
    arrays: Mapping[str, Array],
    expected: Mapping[str, Array],
) -> Bound:
    """The kernel bound to buffers as an executable has them; CollageError if its answer is wrong."""
    outputs = [empty(group.graph.shape_of(v), f) for v, f in zip(group.outputs, variant.outputs, strict=True)]
    workspace = empty((kernel.workspace_bytes,), plain("uint8", (kernel.workspace_bytes,)))
    bound = kernel.bind([arrays[v] for v in group.inputs], outputs, workspace, IMMEDIATE)
    if code := bound():
        raise CollageError(f"the kernel returned error code {code!r}")
    check(dict(zip(group.outputs, outputs, strict=True)), expected)
    return bound


def _copied() -> tuple[Array, Array]:
    """Where a copy reads and where it writes, both touched."""
    format = plain("float32", _COPIED_SHAPE)
    source, destination = empty(_COPIED_SHAPE, format), empty(_COPIED_SHAPE, format)
    source[...] = np.arange(_COPIED_SHAPE[0], dtype=np.float32)
    destination[...] = 0
    return source, destination


def _copy_torch(threads: int) -> Batch:
    import torch

    torch.set_num_threads(threads)
    source, destination = _copied()
    call = partial(torch.from_numpy(destination).copy_, torch.from_numpy(source))
    call()
    check({"copy": destination}, {"copy": source})
    return Batch(call)


def _copy_tvm(threads: int) -> Batch:
    """The kernel that stores a value in another format, from one format to the same."""
    format = plain("float32", _COPIED_SHAPE)
    type = TensorType("float32", _COPIED_SHAPE)
    kernel = default_registry().backend("tvm").build_conversion(type, format, format, Target("cpu", threads))
    source, destination = _copied()
    bound = kernel.bind([source], [destination], np.empty(0, np.uint8), IMMEDIATE)
    bound()
    check({"copy": destination}, {"copy": source})
    return Batch(bound)
