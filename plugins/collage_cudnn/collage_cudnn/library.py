"""cuDNN through its Python frontend and, for what its graphs leave out, through ctypes. The only file that
touches the vendor's library; it is loaded on the first call of `load`.
"""

from __future__ import annotations

import ctypes
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from collage_core.errors import BackendError, BackendUnavailableError, DeclinedError
from collage_cudnn.description import Call, Description, Step, Tensor
from collage_cudnn.presence import described_device
from collage_cudnn.stream_handles import Held, StreamHandles

__all__ = ["Graph", "Library", "OldCall", "load"]

_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
_PORTS = {
    "conv_dgrad": ("loss", "filter"),
    "conv_fprop": ("image", "weight"),
    "layernorm": ("input", "scale", "bias", "epsilon"),
    "matmul": ("A", "B"),
    "sdpa": ("q", "k", "v"),
}
_UNTRUE_FLOAT32 = (
    "TENSOR_CORE",
    "DOWN_CONVERT_INPUTS",
    "REDUCED_PRECISION_REDUCTION",
    "FFT",
    "NONDETERMINISTIC",
)
_UNTRUE_HALF = ("REDUCED_PRECISION_REDUCTION", "FFT", "WINOGRAD", "NONDETERMINISTIC")
_TILINGS = 16
_MOST_ENGINES = 10_000
"""From here on the frontend counts kernels of its own, which are none of cuDNN's."""

_OLD_TYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
_UNTELLING = re.compile(r"deviceVer|Blackwell|CUDNN_STATUS|isSupported|finalize|check_|_check|init_")
"""Reasons that are about other GPUs, or name a function of the library's."""
_POOLING_MODES = {"max": 0, "average_include_padding": 1, "average_exclude_padding": 2}
_REDUCTIONS = {"ADD": 0, "MUL": 1, "MIN": 2, "MAX": 3, "AVG": 5, "NORM1": 6, "NORM2": 7}
_PROPAGATE_NAN = 1
_ACCURATE, _LOG = 1, 2
_INSTANCE, _CHANNEL = 0, 1
_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)
_Pointer = ctypes.c_void_p


class Library:
    """One loaded cuDNN, asked for the GPU that is here or for one that a file describes."""

    def __init__(self, described: str | None) -> None:
        try:
            import cudnn
        except Exception as error:
            raise BackendUnavailableError(f"cannot load cuDNN: {error}") from error
        self.cudnn: Any = cudnn
        self.dll = ctypes.CDLL("libcudnn.so.9")
        self.dll.cudnnGetErrorString.restype = ctypes.c_char_p
        self._handles = StreamHandles(cudnn.create_handle, cudnn.set_stream)
        self._own: Held | None = None
        self._properties = None
        if described is not None:
            self._properties = cudnn.create_device_properties(Path(described).read_text("utf-8"))

    def handle(self, stream: int) -> Held:
        """What queues work on that stream; one for each, as long as somebody holds it."""
        return self._handles.of(stream)

    def graph(self, description: Description) -> Graph:
        """The graph with its plans, ranked, without those that round what they multiply. DeclinedError with
        the library's own reason where there is none.
        """
        return Graph(self, description)

    def check(self, description: Description) -> None:
        """DeclinedError where `graph` raises it."""
        self.graph(description)

    def old_call(self, call: Call) -> OldCall:
        return OldCall(self, call)

    def place(self) -> dict[str, Any]:
        """For which GPU graphs are made, as `cudnn.pygraph` is told."""
        if self._properties is not None:
            return {"device_property": self._properties}
        return {"handle": self.own_handle()}

    def own_handle(self) -> Any:
        """For what only asks."""
        if self._own is None:
            self._own = self.handle(0)
        return self._own.handle

    def data_type(self, dtype: str) -> Any:
        return getattr(self.cudnn.data_type, _TYPES[dtype])

    def succeed(self, status: int) -> None:
        if status:
            raise BackendError(f"cuDNN: {self.dll.cudnnGetErrorString(status).decode()}")

    def descriptor(self, kind: str) -> Any:
        """A new descriptor, destroyed when nobody holds it."""
        descriptor = _Pointer()
        self.succeed(getattr(self.dll, f"cudnnCreate{kind}Descriptor")(ctypes.byref(descriptor)))
        destroy = getattr(self.dll, f"cudnnDestroy{kind}Descriptor")
        weakref.finalize(descriptor, destroy, _Pointer(descriptor.value))
        return descriptor

    def tensor(self, tensor: Tensor) -> Any:
        descriptor = self.descriptor("Tensor")
        rank = len(tensor.dims)
        dims, strides = _ints(tensor.dims), _ints(tensor.strides)
        dtype = _OLD_TYPES[tensor.dtype]
        self.succeed(self.dll.cudnnSetTensorNdDescriptor(descriptor, dtype, rank, dims, strides))
        return descriptor


class Graph:
    """One graph of the frontend's, validated, and its plans. count: how many there are, those that are left
    out included.
    """

    def __init__(self, library: Library, description: Description) -> None:
        self._library = library
        cudnn = library.cudnn
        compute = library.data_type("float32")
        self._graph = cudnn.pygraph(
            io_data_type=compute, intermediate_data_type=compute, compute_data_type=compute, **library.place()
        )
        self._unsupported = (
            cudnn.cudnnGraphNotSupportedError,
            NotImplementedError,
            RuntimeError,
            ValueError,
        )
        self._graph._candidates = []  # those kernels, which take seconds to import
        self._write(description)
        try:
            self._graph.validate()
            self._graph.build_operation_graph()
            self._graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            if description.multiplies:
                self._leave_out(_UNTRUE_FLOAT32 if description.is_float32 else _UNTRUE_HALF)
                if description.is_float32:
                    self._ask_each_engine()
            self._graph.check_support()
        except self._unsupported as error:
            raise DeclinedError(_reason(error)) from error
        self.count = int(self._graph.get_execution_plan_count())
        self._built: set[str] = set()

    def build(self, index: int) -> bool:
        """Compile a plan; whether that was possible, and no other one is the same."""
        try:
            engine, _ = self._graph.get_engine_and_knobs_at_index(index)
            name = self.plan_name(index)
            if not 0 <= engine < _MOST_ENGINES or name in self._built:
                return False
            self._graph.build_plan_at_index(index)
        except self._unsupported:
            return False
        self._built.add(name)
        return True

    def select(self, index: int) -> None:
        """Let `selected` run a plan that is built."""
        self._graph.build_plan_at_index(index)

    def plan_name(self, index: int) -> str:
        return str(self._graph.get_plan_name_at_index(index))

    def workspace_bytes(self, index: int) -> int:
        return int(self._graph.get_workspace_size_plan_at_index(index))

    def runner(
        self, index: int, addresses: Mapping[int, int], workspace: int | None, handle: Any
    ) -> Callable[[], object]:
        """What queues a plan that is built. addresses: by the numbers of the description's tensors."""
        return partial(self._graph.execute_plan_at_index, dict(addresses), workspace, index, handle)

    def selected(
        self, addresses: Mapping[int, int], workspace: int | None, handle: Any
    ) -> Callable[[], object]:
        """As `runner`, of the plan that was selected."""
        return partial(self._graph.execute, dict(addresses), workspace, handle)

    def _leave_out(self, notes: Sequence[str]) -> None:
        known = self._library.cudnn.numerical_note
        self._graph.deselect_numeric_notes([getattr(known, note) for note in notes])

    def _ask_each_engine(self) -> None:
        """Heuristics rank TF32 first, and leave hardly anything else: engines are asked one by one, in all
        their tilings. Nothing is compiled by that.
        """
        tiling = self._library.cudnn.knob_type.TILE_SIZE
        for engine in range(self._graph.get_engine_count()):
            for knobs in ({}, *({tiling: tile} for tile in range(_TILINGS))):
                try:
                    self._graph.create_execution_plan(engine, knobs)
                except self._unsupported:
                    if not knobs:
                        break

    def _write(self, description: Description) -> None:
        made: dict[int, Any] = {}
        stored = description.tensors[description.output]
        for number, tensor in description.tensors.items():
            if number != description.output:
                made[number] = self._graph.tensor(
                    name=f"t{number}",
                    dim=list(tensor.dims),
                    stride=list(tensor.strides),
                    data_type=self._library.data_type(tensor.dtype),
                    is_pass_by_value=number in description.numbers,
                    uid=number,
                )
        for step in description.steps:
            result = self._step(step, [made[n] for n in step.inputs])
            if step.kind == "conv_dgrad":
                result.set_dim(list(step.dims)).set_stride(list(stored.strides))
            made[step.output] = result
        output = made[description.output]
        output.set_output(True).set_uid(description.output).set_data_type(
            self._library.data_type(stored.dtype)
        )
        output.set_dim(list(stored.dims)).set_stride(list(stored.strides))

    def _step(self, step: Step, inputs: Sequence[Any]) -> Any:
        method = getattr(self._graph, step.kind)
        attributes = {k: list(v) if isinstance(v, tuple) else v for k, v in step.attributes.items()}
        if step.kind not in _PORTS:
            return method(*inputs, **attributes)
        ports = dict(zip(_PORTS[step.kind], inputs, strict=True))
        if step.kind == "layernorm":
            phase = self._library.cudnn.norm_forward_phase.INFERENCE
            return method(norm_forward_phase=phase, **ports)[0]
        if step.kind == "sdpa":
            return method(generate_stats=False, **ports, **attributes)[0]
        return method(**ports, **attributes)


class OldCall:
    """One function of the older interface, with its descriptors. workspace_bytes: what it wants beside."""

    def __init__(self, library: Library, call: Call) -> None:
        self._library, self._settings = library, call.settings
        self._source, self._result = library.tensor(call.source), library.tensor(call.result)
        self._outer = call.source.dims
        self.workspace_bytes = 0
        self._make: Callable[[Any, int, int, int], Callable[[], int]] = getattr(self, f"_{call.kind}")()

    def runner(self, handle: Any, source: int, result: int, workspace: int | None) -> Callable[[], int]:
        """What queues it, and returns the library's status."""
        return self._make(_Pointer(handle.backend_handle), source, result, workspace or 0)

    def _pooling(self) -> Callable[..., Callable[[], int]]:
        library, settings = self._library, self._settings
        descriptor = library.descriptor("Pooling")
        sizes = [_ints(settings[name]) for name in ("window", "padding", "stride")]
        mode, rank = _POOLING_MODES[settings["mode"]], len(settings["window"])
        set_up = library.dll.cudnnSetPoolingNdDescriptor
        library.succeed(set_up(descriptor, mode, _PROPAGATE_NAN, rank, *sizes))
        return lambda handle, x, y, workspace: partial(
            library.dll.cudnnPoolingForward, handle, descriptor, *self._ends(x, y)
        )

    def _softmax(self) -> Callable[..., Callable[[], int]]:
        algorithm = _LOG if self._settings["is_log"] else _ACCURATE
        mode = _INSTANCE if self._outer[2] == 1 else _CHANNEL
        return lambda handle, x, y, workspace: partial(
            self._library.dll.cudnnSoftmaxForward, handle, algorithm, mode, *self._ends(x, y)
        )

    def _transform(self) -> Callable[..., Callable[[], int]]:
        return lambda handle, x, y, workspace: partial(
            self._library.dll.cudnnTransformTensor, handle, *self._ends(x, y)
        )

    def _reduction(self) -> Callable[..., Callable[[], int]]:
        library = self._library
        descriptor = library.descriptor("ReduceTensor")
        kind = _REDUCTIONS[self._settings["operator"]]
        set_up = library.dll.cudnnSetReduceTensorDescriptor
        library.succeed(set_up(descriptor, kind, _OLD_TYPES["float32"], _PROPAGATE_NAN, 0, 0))
        size, own = ctypes.c_size_t(), _Pointer(library.own_handle().backend_handle)
        ask = library.dll.cudnnGetReductionWorkspaceSize
        library.succeed(ask(own, descriptor, self._source, self._result, ctypes.byref(size)))
        self.workspace_bytes = size.value

        def make(handle: Any, x: int, y: int, workspace: int) -> Callable[[], int]:
            beside = (None, ctypes.c_size_t(0), _Pointer(workspace), size)
            return partial(library.dll.cudnnReduceTensor, handle, descriptor, *beside, *self._ends(x, y))

        return make

    def _ends(self, source: int, result: int) -> tuple[Any, ...]:
        """Factor, descriptor and address of both."""
        one, zero = ctypes.byref(_ONE), ctypes.byref(_ZERO)
        return (one, self._source, _Pointer(source), zero, self._result, _Pointer(result))


def _ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def _reason(error: Exception) -> str:
    """One line of what the library says."""
    text = str(error)
    if "Deselecting execution plan" in text:
        return "cuDNN's plans multiply in another precision than float32"
    found = [r for r in re.findall(r"Reason: (.+)", text) if not _UNTELLING.search(r)]
    first = text.strip().splitlines()[0][:160] if text.strip() else type(error).__name__
    if "Reason: " in text and not found:
        return "no engine of cuDNN's supports the graph"
    return f"cuDNN has no plan: {'; '.join(dict.fromkeys(found[:3])) or first}"


_LOCK = threading.Lock()
_LOADED: list[Library] = []


def load() -> Library:
    """The one of this process; BackendUnavailableError with the reason where it cannot be loaded."""
    with _LOCK:
        if not _LOADED:
            _LOADED.append(Library(described_device()))
        return _LOADED[0]
