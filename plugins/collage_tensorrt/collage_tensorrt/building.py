"""From a group to an engine, and from that to a kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from collage_core.backend import Kernel, Variant
from collage_core.errors import BackendError, BackendUnavailableError, DeclinedError
from collage_core.formats import Format
from collage_core.ir import Subgraph, subgraph_model
from collage_tensorrt import NAME
from collage_tensorrt.kernel import EngineKernel
from collage_tensorrt.library import BUILT, Engine, Library, Parsed, Tensor, load

__all__ = ["kernel_of", "opened", "parsed"]


class Kept(Protocol):
    """`collage_cuda.choices.Choices` for this version of the library."""

    def known(self, kernel: str) -> bytes | None: ...

    def keep(self, kernel: str, choice: bytes) -> None: ...


def kernel_of(subgraph: Subgraph, variant: Variant) -> Kernel:
    """For the GPU that is here. DeclinedError with the parser's reason; BackendError where there is no
    engine.
    """
    from collage_cuda.choices import Choices
    from collage_cuda.context import context

    gpu = context()
    gpu.current()
    library = load()
    kept = Choices([NAME, library.edition.module, library.version, BUILT], are_built=True)
    return EngineKernel(opened(library, subgraph, variant, kept), gpu, subgraph)


def opened(library: Library, subgraph: Subgraph, variant: Variant, kept: Kept) -> Engine:
    """The group's engine: the one that was built for this GPU before, or a new one, which is kept. TensorRT
    times its kernels when it builds: the next process is to run what was measured.
    """
    model = _model(subgraph, variant)
    key = hashlib.sha256(model).hexdigest()
    if (engine := kept.known(key)) is not None:
        try:
            return library.opened(engine)
        except BackendUnavailableError:
            raise
        except BackendError:
            pass  # of another make; what is built now takes its place
    try:
        taken = _parsed(library, model, subgraph, variant)
    except BackendError as error:
        raise DeclinedError(str(error)) from error
    engine = library.engine(taken, None)
    found = library.opened(engine)
    kept.keep(key, engine)
    return found


def parsed(library: Library, subgraph: Subgraph, variant: Variant) -> Parsed:
    """The group as the parser takes it. BackendError with its reason if it does not, or takes it for
    something else.
    """
    return _parsed(library, _model(subgraph, variant), subgraph, variant)


def _model(subgraph: Subgraph, variant: Variant) -> bytes:
    model = subgraph_model(subgraph, variant.inputs, variant.outputs)
    return bytes(model.SerializeToString(deterministic=True))


def _parsed(library: Library, model: bytes, subgraph: Subgraph, variant: Variant) -> Parsed:
    found = library.parsed(model)
    _check(subgraph, "input", subgraph.inputs, variant.inputs, found.inputs())
    _check(subgraph, "output", subgraph.outputs, variant.outputs, found.outputs())
    return found


def _check(
    subgraph: Subgraph, kind: str, names: Sequence[str], formats: Sequence[Format], found: Sequence[Tensor]
) -> None:
    """BackendError where the library has other types than ONNX."""
    if len(found) != len(names):
        raise BackendError(f"TensorRT's network has {len(found)} {kind}s; the group has {len(names)}")
    told = {t.name: t for t in found}
    for name, format in zip(names, formats, strict=True):
        shape = subgraph.graph.shape_of(name)
        expected = Tensor(name, format.dtype, tuple(shape[d] for d in format.layout))
        if told.get(name) != expected:
            raise BackendError(f"TensorRT takes {kind} {name!r} for {told.get(name)}, which is {expected}")
