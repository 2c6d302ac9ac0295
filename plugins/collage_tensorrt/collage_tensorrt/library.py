"""TensorRT's Python bindings: the one module that touches the library.
https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/index.html
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collage_core.errors import BackendError, BackendUnavailableError
from collage_core.shared_library import once
from collage_tensorrt.editions import Edition, chosen_here

__all__ = ["BUILT", "Context", "Engine", "Library", "Parsed", "Tensor", "load", "loaded"]

_DTYPES = {
    "BF16": "bfloat16",
    "BOOL": "bool",
    "FLOAT": "float32",
    "HALF": "float16",
    "INT32": "int32",
    "INT64": "int64",
    "INT8": "int8",
    "UINT8": "uint8",
}
"""tensorrt.DataType -> NumPy's."""

BUILT = "no TF32, strict NaN, 1 GiB of workspace, one stream"
"""How `Library.engine` builds: to be changed with it, for what is kept is of the same name."""
_WORKSPACE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a network."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Parsed:
    """A network that the parser has taken. It refers to the weights in `model`."""

    def __init__(self, network: Any, parser: Any, model: bytes) -> None:
        self.network, self._parser, self._model = network, parser, model

    def inputs(self) -> list[Tensor]:
        return [_tensor(self.network.get_input(i)) for i in range(self.network.num_inputs)]

    def outputs(self) -> list[Tensor]:
        return [_tensor(self.network.get_output(i)) for i in range(self.network.num_outputs)]


class Context:
    """An engine on addresses of its own. Not for two calls at once."""

    def __init__(self, context: Any, error: Callable[[str], BackendError]) -> None:
        self._context, self._error = context, error

    def place(self, name: str, address: int) -> None:
        """Where an input or output lies. BackendError for an address that is not aligned to 256 bytes."""
        if not self._context.set_tensor_address(name, address):
            raise self._error(f"it does not take {name!r} at {address:#x}")

    def queue(self, stream: int) -> None:
        """Queue a run on a stream. BackendError, with what the library says, if it cannot be."""
        if not self._context.execute_async_v3(stream):
            raise self._error("a run cannot be queued")


class Engine:
    """memory_bytes: of the scratch memory that each context needs while it runs."""

    def __init__(self, trt: Any, engine: Any, error: Callable[[str], BackendError]) -> None:
        self._trt, self._engine, self._error = trt, engine, error
        self.memory_bytes = int(engine.device_memory_size_v2)

    def context(self, memory_address: int) -> Context:
        """On scratch memory at an address that is aligned to 256 bytes."""
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        if context is None:
            raise self._error("an engine cannot be opened")
        if self.memory_bytes:
            context.set_device_memory(memory_address, self.memory_bytes)
        return Context(context, self._error)


class Library:
    """One edition, loaded."""

    def __init__(self, trt: Any, edition: Edition) -> None:
        self._trt, self.edition = trt, edition
        self.version = str(trt.__version__)
        self._said: list[str] = []
        self._logger = _logger(trt, self._said)
        # A builder serves one thread at a time, and what is said is of the last call.
        self._lock = threading.RLock()

    @cached_property
    def _builder(self) -> Any:
        return self._made(self._trt.Builder, "it does not start")

    @cached_property
    def _runtime(self) -> Any:
        return self._made(self._trt.Runtime, "its runtime does not start")

    def parsed(self, model: bytes) -> Parsed:
        """The network of an ONNX model, its constants inside; every value keeps the type that it has there.
        BackendError with what the parser says if it does not take it.
        """
        with self._lock:
            trt = self._trt
            self._said.clear()
            network = self._builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
            parser = trt.OnnxParser(network, self._logger)
            if not parser.parse(model):
                reasons = [str(parser.get_error(i).desc()) for i in range(parser.num_errors)]
                raise self.error("; ".join(dict.fromkeys(reasons)))
            return Parsed(network, parser, model)

    def engine(self, parsed: Parsed, capability: str | None) -> bytes:
        """Built for one compute capability ("8.9"), or for the GPU that is here where None, on one stream,
        without TF32, nor identities that do not hold of NaN (`x - x` is 0). BackendError with what the
        library says if it has no kernels.
        """
        with self._lock:
            trt = self._trt
            self._said.clear()
            config = self._builder.create_builder_config()
            config.clear_flag(trt.BuilderFlag.TF32)
            config.set_flag(trt.BuilderFlag.STRICT_NANS)
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
            config.max_aux_streams = 0
            if self.edition.capabilities is not None:
                name = "CURRENT" if capability is None else f"SM{capability.replace('.', '')}"
                config.num_compute_capabilities = 1
                config.set_compute_capability(getattr(trt.ComputeCapability, name), 0)
            built = self._builder.build_serialized_network(parsed.network, config)
            if built is None:
                raise self.error("it builds no engine")
            return bytes(built)

    def opened(self, engine: bytes) -> Engine:
        """On the GPU that is here. BackendError where it does not fit the GPU, or the version."""
        with self._lock:
            self._said.clear()
            opened = self._runtime.deserialize_cuda_engine(engine)
            if opened is None:
                raise self.error("an engine is not taken")
            return Engine(self._trt, opened, self.error)

    def error(self, what: str) -> BackendError:
        """With what the library has said last."""
        return BackendError(f"{self.edition.title}: {': '.join([what, *self._said[-1:]])}")

    def _made(self, make: Callable[[Any], Any], failing: str) -> Any:
        try:
            made = make(self._logger)
        except (RuntimeError, TypeError) as error:  # it returns nothing, or cannot
            raise BackendUnavailableError(str(self.error(f"{failing}: {error}"))) from None
        if made is None:
            raise BackendUnavailableError(str(self.error(failing)))
        return made


def _tensor(tensor: Any) -> Tensor:
    return Tensor(tensor.name, _DTYPES.get(tensor.dtype.name, tensor.dtype.name), tuple(tensor.shape))


def _logger(trt: Any, said: list[str]) -> Any:
    """Keeps errors; all else is for nobody."""

    class Kept(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                said.append(message)

    return Kept()


@once
def load() -> Library:
    """The process's library, of the edition for the GPU that is here, loaded on the first call.
    BackendUnavailableError if there is none.
    """
    edition = chosen_here()
    if edition is None:
        raise BackendUnavailableError("no TensorRT is installed: pip install 'collage-tensorrt[gpu]'")
    return loaded(edition)


def loaded(edition: Edition) -> Library:
    """BackendUnavailableError where its bindings or its libraries do not load."""
    try:
        return Library(importlib.import_module(edition.module), edition)
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendUnavailableError(f"{edition.title} does not load: {error}") from error
