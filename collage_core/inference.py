"""A bundle for a script that was written for `onnxruntime.InferenceSession`.

The methods and their arguments are those of ONNX Runtime's Python API
(https://onnxruntime.ai/docs/api/python/api_summary.html), as far as a placed model has what they are about.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from collage_core.errors import CollageError, InputError, StepError
from collage_core.formats import Array
from collage_core.ir import TensorType
from collage_core.runtime import Context, Executable, load

__all__ = ["IOBinding", "NodeArg", "Session"]

_TYPE_NAMES = {"float32": "float", "float64": "double"}
"""Where ONNX Runtime calls an element type otherwise than NumPy does."""


class NodeArg:
    """An input or output: `name`, `shape` (a list of sizes) and `type`, as in "tensor(float)"."""

    def __init__(self, name: str, type: TensorType) -> None:
        self.name = name
        self.shape = list(type.shape)
        self.type = f"tensor({_TYPE_NAMES.get(type.dtype, type.dtype)})"

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class Session:
    """A bundle, ready to run, in the shape of `onnxruntime.InferenceSession`.

        session = Session("model.collage")
        [scores] = session.run(None, {"x": x})

    May be called by several threads at once: each call has buffers of its own, which are kept for the next
    one. It is a context manager; `close` lets go of all.
    """

    def __init__(
        self,
        path: str | Path,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        allow_code: bool = False,
        expect: str | None = None,
    ) -> None:
        """Load a bundle, as `load` does, and run it once on zeros, so that the first request is no slower.

        sess_options: ONNX Runtime's, of which `intra_op_num_threads` is heard; None, or 0 threads, for what
        the placement was made for. providers, provider_options: not read, for the placement says who runs
        what. allow_code, expect: see `load`.
        """
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        self._executable = load(path, allow_code=allow_code, expect=expect, threads=threads)
        names = (call.name.partition(":")[0] for call in self._executable.program.calls)
        self._backends = tuple(dict.fromkeys(names))
        self._lock = threading.Lock()
        self._is_closed = False
        first = self._executable.context()
        first.warm_up()
        self._free = [first]

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of kernels and buffers. A call that is running ends well; another one is refused."""
        with self._lock:
            self._is_closed = True
            self._free.clear()
            self._executable.close()

    def get_inputs(self) -> list[NodeArg]:
        """In the model's order."""
        return [NodeArg(name, type) for name, type in self._executable.inputs.items()]

    def get_outputs(self) -> list[NodeArg]:
        """In the model's order."""
        return [NodeArg(name, type) for name, type in self._executable.outputs.items()]

    def get_providers(self) -> list[str]:
        """The backends that run something, by Collage's names, in the order in which they first do."""
        return list(self._backends)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """The outputs that are named, in that order, as fresh row-major arrays; all in the model's order for
        None or an empty list. One that is named twice is the same array twice.

        input_feed: arrays by name, of the model's shapes and dtypes. run_options: not read. InputError names
        what does not fit; BackendError the step that failed.
        """
        wanted = self._wanted(output_names)
        if not isinstance(input_feed, Mapping):
            raise InputError(f"input_feed is a {type(input_feed).__name__}, and not arrays by name")
        outputs = {name: _empty(self._executable.outputs[name]) for name in wanted}
        self._run_into({name: np.asarray(value) for name, value in input_feed.items()}, outputs)
        return [outputs[name] for name in wanted]

    def io_binding(self) -> IOBinding:
        """For `run_with_iobinding`: inputs and outputs in memory of the caller's."""
        return IOBinding(self._executable)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on what is bound; what is in the bound memory then is read, and outputs are written there.
        Allocates nothing, but for the first calls that run beside another.
        """
        self._run_into(iobinding.inputs, iobinding.outputs)

    def _run_into(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        with self._context() as context:
            context.run(inputs, outputs)

    @contextmanager
    def _context(self) -> Iterator[Context]:
        with self._lock:
            if self._is_closed:
                raise CollageError("this session is closed")
            context = self._free.pop() if self._free else None
        context = context or self._executable.context()
        try:
            yield context
        except StepError:  # its device may have to be started again: see `Executable`
            raise
        except BaseException:
            self._keep(context)
            raise
        self._keep(context)

    def _keep(self, context: Context) -> None:
        with self._lock:
            if not self._is_closed:
                self._free.append(context)

    def _wanted(self, names: Sequence[str] | None) -> Sequence[str]:
        known = self._executable.outputs
        if isinstance(names, str):
            raise InputError(f"output_names is {names!r}, and not a list of names")
        for name in names or ():
            if name not in known:
                raise InputError(f"the model has no output {name!r}; its outputs: {', '.join(known)}")
        return names or list(known)


class IOBinding:
    """Memory for a session's inputs and outputs, in the shape of `onnxruntime.IOBinding`. Nothing is copied
    when it is bound; the caller keeps what a pointer points to.
    """

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self.inputs: dict[str, Array] = {}
        """What is bound, by name."""
        self.outputs: dict[str, Array] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """An array, read when the session runs."""
        self._type(self._executable.inputs, "input", name)
        self.inputs[name] = arr_on_cpu

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: npt.DTypeLike,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Row-major memory at an address: a torch tensor's `data_ptr()`, say."""
        type = self._type(self._executable.inputs, "input", name)
        self.inputs[name] = _at(name, type, device_type, element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: npt.DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Row-major memory at an address, or an array of its own where there is none."""
        type = self._type(self._executable.outputs, "output", name)
        if buffer_ptr is None:
            self.outputs[name] = _empty(type)
            return
        wanted = type.static_shape if shape is None else shape
        self.outputs[name] = _at(name, type, device_type, element_type or type.dtype, wanted, buffer_ptr)

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Copies of the outputs that are bound, in the order in which they were."""
        return [array.copy() for array in self.outputs.values()]

    def clear_binding_inputs(self) -> None:
        """None is bound then."""
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """None is bound then."""
        self.outputs.clear()

    @staticmethod
    def _type(known: Mapping[str, TensorType], what: str, name: str) -> TensorType:
        if name not in known:
            raise InputError(f"the model has no {what} {name!r}; its {what}s: {', '.join(known)}")
        return known[name]


def _empty(type: TensorType) -> Array:
    return np.empty(type.static_shape, np.dtype(type.dtype))


def _at(
    name: str,
    type: TensorType,
    device_type: str,
    element_type: npt.DTypeLike,
    shape: Sequence[int],
    address: int,
) -> Array:
    if device_type != "cpu":
        raise CollageError(f"{name!r} is bound on {device_type!r}; inputs and outputs lie on 'cpu'")
    try:
        given = np.dtype(element_type), tuple(shape)
    except TypeError as error:
        raise InputError(f"{name!r} is {type}: {error}") from None
    if given != (np.dtype(type.dtype), type.static_shape):
        raise InputError(f"{name!r} is {type}, and was bound as {given[0]}{list(shape)}")
    if not type.size:
        return _empty(type)
    buffer: Any = (ctypes.c_byte * type.size_bytes).from_address(address)
    return np.frombuffer(buffer, np.dtype(type.dtype)).reshape(type.static_shape)
