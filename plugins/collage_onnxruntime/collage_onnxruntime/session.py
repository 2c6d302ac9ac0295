"""The one module that touches the library: sessions, their options, and buffers bound to them."""

from __future__ import annotations

import enum
import functools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from collage_run.errors import BackendError, BackendUnavailableError
from collage_run.formats import Array
from collage_run.kernel import Bound
from collage_run.shared_library import installed_version

if TYPE_CHECKING:
    import onnxruntime

__all__ = [
    "DISTRIBUTION",
    "NOTHING_ELSE",
    "Setting",
    "Waiting",
    "affinities",
    "bind",
    "check",
    "library_version",
    "open_session",
]

DISTRIBUTION = "onnxruntime"
_PROVIDERS = ["CPUExecutionProvider"]
_TELEMETRY_VARIABLE = "ORT_DISABLE_TELEMETRY"
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
"""Which class of exception it is, before what it says."""
_UNASKED = ["WeightBiasQuantization"]
"""Optimisations that change answers: this one quantises weights that are floats, beside data that is not."""
_EXACT = {"session.qdq_matmulnbits_accuracy_level": "1", "session.x64quantprecision": "1"}
"""Products with weights of four or eight bits in blocks are computed in float32. By default (4) the library
rounds the other operand to int8, which the model does not say. Those of whole numbers use sums that do not
saturate, where the processor's own for signed weights would
(https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html, "when and why").
"""
_FATAL = 4
"""Log nothing less: what goes wrong is raised as well."""


_ONNX_TYPES = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
"""What NumPy does not bring itself, as onnx.TensorProto numbers it."""


class Waiting(enum.Enum):
    """What a session's threads do while there is nothing to do (see docs/adr/0015)."""

    SPIN = "spin"
    """The library's default: they spin for some 30 ms, after a run too."""
    SPIN_WITHIN = "spin within runs"
    """They spin until the run returns, and sleep from then on."""
    SPIN_BRIEFLY = "spin briefly"
    """They go on spinning for a fifth of a millisecond after a run, in case the next one follows at once."""
    SLEEP = "sleep"
    """They sleep whenever there is nothing to do, within a run too."""


_ALLOWED, _STOPPED, _DURATION_US = (
    "session.intra_op.allow_spinning",
    "session.force_spinning_stop",
    "session.intra_op.spin_duration_us",
)
_AFFINITIES = "session.intra_op_thread_affinities"
_SPINNING = {
    Waiting.SPIN: {_ALLOWED: "1"},
    Waiting.SPIN_WITHIN: {_ALLOWED: "1", _STOPPED: "1"},
    Waiting.SPIN_BRIEFLY: {_ALLOWED: "1", _DURATION_US: "200"},
    Waiting.SLEEP: {_ALLOWED: "0"},
}


Setting = str | int | None
NOTHING_ELSE: Mapping[str, Setting] = MappingProxyType({})


def library_version() -> str | None:
    """None where the library is not installed. Loads nothing."""
    return installed_version(DISTRIBUTION)


def open_session(
    model: Path | bytes,
    threads: int,
    waiting: Waiting,
    constants: Mapping[str, Array] | None = None,
    settings: Mapping[str, Setting] = NOTHING_ELSE,
) -> onnxruntime.InferenceSession:
    """A session at the library's best: all graph optimisations, nodes one after the other, each with
    `threads` threads, of which it starts all but one itself.

    constants: data of the initializers that `model` declares as external. They are read while the session is
    made (packed into the library's own layouts, or copied where it has none) and not needed after that.
    settings: in place of what it would be: `SessionOptions`' attributes, enumerators by name, and
    configuration entries, which have a dot in theirs; None for what is left to the library. BackendError,
    with what it says, if it cannot load the model or has no such setting.
    """
    options = _options(threads)
    with _told():
        for name, value in {**_EXACT, **_SPINNING[waiting], **_pinned(threads, waiting), **settings}.items():
            if value is not None:
                _set(options, name, value)
        return _session(model, options, constants or {})


def _pinned(threads: int, waiting: Waiting) -> dict[str, str]:
    """Threads that are woken for every group get a processor each (docs/adr/0015): else the system may wake
    them where the caller runs. Only where they take all that this process may use: processes with
    fewer would all have the first ones.
    """
    if waiting is not Waiting.SPIN_WITHIN or not 1 < threads == len(os.sched_getaffinity(0)):
        return {}
    return affinities(threads)


def affinities(threads: int) -> dict[str, str]:
    """The setting that gives each of a session's own threads a processor of those this process may use; the
    first is left to the caller.

    threads: the caller's among them, from two to as many as there are processors.
    """
    # The library counts processors from 1, and the calling thread as none of its own.
    numbers = [number + 1 for number in sorted(os.sched_getaffinity(0))]
    return {_AFFINITIES: ";".join(map(str, numbers[1:threads]))}


def _set(options: onnxruntime.SessionOptions, name: str, value: str | int) -> None:
    if "." in name:
        options.add_session_config_entry(name, str(value))
        return
    kind = type(getattr(options, name))
    setattr(options, name, getattr(kind, value) if isinstance(value, str) else value)


def check(model: bytes, constants: Mapping[str, Array]) -> None:
    """Return if the library has implementations for all of the model's nodes as they are; BackendError, with
    what it says, otherwise. Optimises and packs nothing, starts no threads.
    """
    onnxruntime = _library()
    options = _options(threads=1)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    with _told():
        _session(model, options, constants)


def bind(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Bound:
    """A call that runs the session once, from and to these arrays: C-contiguous, of the shapes and dtypes
    that the session's inputs and outputs have. It keeps them, and may be made several times for one session.
    """
    binding = session.io_binding()
    given, wanted = ({name: _value(array) for name, array in arrays.items()} for arrays in (inputs, outputs))
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in wanted.items():
        binding.bind_ortvalue_output(name, value)
    call = functools.partial(session.run_with_iobinding, binding)
    # The binding knows addresses only
    call.__dict__["keep"] = (dict(inputs), dict(outputs), given, wanted)
    return call


def _value(array: Array) -> onnxruntime.OrtValue:
    """The array's own memory. What NumPy has from another package (bfloat16) is handed over as bits."""
    made = _library().OrtValue
    if array.dtype.isbuiltin == 1:
        return made.ortvalue_from_numpy(array)
    code = _ONNX_TYPES[array.dtype.name]
    return made.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.itemsize}"), code)


def _library() -> Any:
    """The library; BackendUnavailableError, with the reason, where it cannot be loaded."""
    # Since 1.29 it reports to its vendor over the network, from its import on and unless told not to: nothing
    # that a person who places a model has asked for. Whoever wants it sets the variable to 0.
    os.environ.setdefault(_TELEMETRY_VARIABLE, "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendUnavailableError(f"onnxruntime cannot be loaded: {error}") from error
    return onnxruntime


def _options(threads: int) -> onnxruntime.SessionOptions:
    onnxruntime = _library()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _FATAL
    return options


def _session(
    model: Path | bytes, options: onnxruntime.SessionOptions, constants: Mapping[str, Array]
) -> onnxruntime.InferenceSession:
    onnxruntime = _library()
    values = [_value(np.require(a, None, ["C", "A"])) for a in constants.values()]
    if values:
        options.add_external_initializers(list(constants), values)
    return onnxruntime.InferenceSession(
        model, options, providers=_PROVIDERS, disabled_optimizers=_UNASKED, enable_fallback=0
    )


@contextmanager
def _told() -> Iterator[None]:
    """What the library raises as a BackendError, in one line."""
    try:
        yield
    except Exception as error:  # the library's exceptions share no base but this one
        said = _CODE.sub("", " ".join(str(error).split()))
        raise BackendError(f"onnxruntime: {said}") from error
