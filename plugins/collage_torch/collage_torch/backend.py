"""The backend that `torch.compile` calls, and what became of each graph that it was given."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from collage_run.formats import Array
from torch.autograd import forward_ad

from collage_core import Optimization, Placement, Target, optimize
from collage_core.costs.check import Within, compare
from collage_core.errors import CollageError
from collage_core.pipeline.effort import QUICK, effort_named
from collage_core.plugins import default_registry
from collage_torch.exporting import DTYPES, NotExportedError, export, shared_memory
from collage_torch.placed import Placed, array_of

__all__ = ["Part", "collage", "parts"]

_MOST_OFF = 1e-3
"""From PyTorch's answer, over its largest element: twenty times what our own checks allow float32."""
_MOST_SHAPES, _MOST_NUMBERS, _MOST_WEIGHTS, _MOST_PARTS = 16, 3, 256, 256
"""Choices of shapes of one graph that are placed, each with buffers and kernels of its own; of its further
inputs for the same shapes; sets of parameters that it is placed with; and parts of which is told.
"""
_STATIC = "_dynamo_static_input_type"
"""Where PyTorch's tracer marks parameters and buffers of modules that it made inputs of a graph."""


@dataclass(frozen=True, slots=True)
class Part:
    """What became of one graph at one choice of shapes.

    operations: calls in the FX graph. shapes: of the inputs that are no parameters. reason: why it is left to
    PyTorch, None where it is placed. placement: who runs what then.
    """

    operations: int
    shapes: tuple[tuple[int, ...], ...]
    reason: str | None
    placement: Placement | None
    seconds: float


_graphs: weakref.WeakSet[_Graph] = weakref.WeakSet()


def parts() -> list[Part]:
    """Of all graphs that are alive and have been called, the newest of each."""
    return [part for graph in _graphs for part in graph.parts]


def collage(
    graph_module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What `torch.compile(model, backend="collage", options=...)` calls for each graph of the model.

    Each is placed when it is first called, with the inputs of that call, for each choice of their shapes.
    Parameters are constants then; where they change, the graph is placed anew. What cannot be exported or
    placed runs in PyTorch, and a warning says why. No gradients are computed: a backward pass is an error.
    Answers share no memory with anything.

    options: `effort` ("quick" unless it is given), `budget_s`, `threads` (PyTorch's otherwise), `backends`,
    `costs` and `max_error`, as of `collage_core.optimize`. ValueError for others, and for a mode.
    """
    if mode not in (None, "default"):
        raise ValueError(f"collage has no mode {mode!r}; options={{'effort': 'thorough'}} tries longer")
    known = [f.name for f in fields(_Options)]
    if unknown := sorted(set(options or {}) - set(known)):
        raise ValueError(f"collage has no option {unknown[0]!r}; it has {', '.join(known)}")
    return _Graph(graph_module, _Options(**(options or {})))


@dataclass(frozen=True, slots=True)
class _Options:
    """As `collage` has them. ValueError for one that cannot be."""

    backends: Sequence[str] | None = None
    budget_s: float | None = None
    costs: str | Path | None = None
    effort: str = QUICK.name
    max_error: float | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        try:
            effort_named(self.effort)
            if isinstance(self.backends, str) or self.backends == []:
                raise ValueError(f"collage's option backends is {self.backends!r}, and not a list of names")
            if self.backends is not None:
                default_registry().available(self.backends)
        except CollageError as error:
            raise ValueError(str(error)) from None
        for name, least in (("budget_s", 0), ("max_error", 0), ("threads", 1)):
            value = getattr(self, name)
            kind = int if name == "threads" else (int, float)
            if value is not None and (not isinstance(value, kind) or value < least):
                raise ValueError(f"collage's option {name} is {value!r}")


_NO_GRADIENT = (
    "collage computes no gradients: it runs models for inference. Train the model itself, "
    "and call what torch.compile returned under torch.no_grad()"
)


class _NoGradient(torch.autograd.Function):  # type: ignore[misc]
    """Answers; going back through it is refused."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Sequence[Any]], Any], wanted: Sequence[bool], *inputs: Any) -> Any:
        answers = run(inputs)
        without = [a for a, w in zip(answers, wanted, strict=True) if isinstance(a, torch.Tensor) and not w]
        ctx.mark_non_differentiable(*without)
        return answers

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(_NO_GRADIENT)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(_NO_GRADIENT)


_Runs = Callable[[Sequence[Any]], Any]
_Key = tuple[tuple[object, ...], tuple[object, ...]]
"""Shapes and types of the tensors, and the numbers."""
_making = threading.RLock()
"""PyTorch's exporter, and what it warns of, are of the whole process."""


class _Weights:
    """The parameters that a graph was called with, and how it runs with them, by shapes and numbers of the
    rest. It does not keep them: when one goes, as where a module is given another, `gone` is called.
    """

    def __init__(self, tensors: Mapping[int, Any], gone: Callable[[object], object]) -> None:
        self._held = {i: weakref.ref(x, gone) for i, x in tensors.items()}
        self.ways: dict[_Key, _Runs] = {}
        # Fused optimisers and statistics write without a word. What they write, they write everywhere.
        self._samples = [_ends(x) for x in tensors.values()]
        self._state = self._now()

    @property
    def tensors(self) -> dict[int, Any]:
        """By position; of use while the caller has them."""
        return {i: held() for i, held in self._held.items()}

    def are(self, inputs: Sequence[Any]) -> bool:
        return all(inputs[i] is held() for i, held in self._held.items())

    def are_written(self) -> bool:
        """Whether one was, since it was looked at."""
        return self._now() != self._state

    def renew(self) -> None:
        """Forget how it ran, where one was written since."""
        if self.are_written():
            self.ways.clear()
            self._samples = [_ends(x) for x in self.tensors.values()]
            self._state = self._now()

    def _now(self) -> list[tuple[int, int, bytes]]:
        both = zip(self.tensors.values(), self._samples, strict=True)
        return [(x._version, x.data_ptr(), sample.tobytes()) for x, sample in both]


def _ends(tensor: Any) -> Array:
    """A view of its first and last element, where NumPy has one."""
    if tensor.dtype not in DTYPES or not tensor.is_contiguous() or tensor.device.type != "cpu":
        return np.empty(0)
    flat = tensor.detach().numpy().reshape(-1)
    return flat[:: max(1, flat.size - 1)]  # type: ignore[no-any-return]


class _Graph:
    """One FX graph, in place of its `forward`. Layers of one class may share it, each with weights. Threads
    take turns.
    """

    def __init__(self, module: Any, options: _Options) -> None:
        self.parts: deque[Part] = deque(maxlen=_MOST_PARTS)
        self._module = module
        self._options = options
        self._reason = shared_memory(module)  # why it is left to PyTorch, whatever the shapes
        self._refused: dict[_Key, str] = {}  # why it is at some
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._marked = [_STATIC in (n.meta.get("tensor_dict") or {}) for n in placeholders]
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        answers = output.args[0] if isinstance(output.args[0], tuple | list) else [output.args[0]]
        self._wanted = [_may_need(a) for a in answers]
        self._known: dict[tuple[int, ...], _Weights] = {}
        self._last: _Weights | None = None
        self._given: tuple[int, ...] = ()
        self._numbers: tuple[int, ...] = ()
        self._is_told = False
        self._process = os.getpid()
        self._alone = threading.RLock()
        _graphs.add(self)

    def __call__(self, *inputs: Any) -> Any:
        if forward_ad._current_level >= 0 and any(map(_has_tangent, inputs)):
            raise RuntimeError(_NO_GRADIENT)
        if os.getpid() != self._process:
            return self._module(*inputs)  # threads of libraries have stayed behind
        with self._alone:
            way = self._way(inputs)
            if way is not None:
                if torch.is_grad_enabled() and any(self._wanted) and any(map(_requires_grad, inputs)):
                    return _NoGradient.apply(way, self._wanted, *inputs)
                return way(inputs)
        return self._module(*inputs)

    def _way(self, inputs: Sequence[Any]) -> _Runs | None:
        """None where PyTorch runs it."""
        weights = self._last
        if weights is None or not weights.are(inputs):
            weights = self._last = self._weights(inputs)
        reason = self._reason
        if reason is None:
            weights.renew()
            shapes = tuple((inputs[i].shape, inputs[i].dtype) for i in self._given)
            key = shapes, tuple(inputs[i] for i in self._numbers)
            if key in weights.ways:
                return weights.ways[key]
            reason = self._refused.get(key) or _too_many(key, {**weights.ways, **self._refused})
            if reason is None:
                try:
                    with _making:
                        weights.ways[key] = self._made(inputs, weights)
                    return weights.ways[key]
                except NotExportedError as error:
                    reason = str(error)
                    if any(part.placement is not None for part in self.parts):
                        self._refuse(key, reason)
                    else:  # so it will be at other shapes
                        self._reason = reason
                except CollageError as error:
                    reason = str(error)
                    self._refuse(key, reason)
        self._leave(inputs, reason)
        return None

    def _refuse(self, key: _Key, reason: str) -> None:
        """What is placed at other shapes stays so."""
        self._refused[key] = reason
        self._is_told = False

    def _leave(self, inputs: Sequence[Any], reason: str) -> None:
        """Told once."""
        if not self._is_told:
            self._is_told = True
            self._tell(inputs, reason, None, 0.0)
            count = self.parts[-1].operations
            warnings.warn(f"collage leaves {count} operations to PyTorch: {reason}", stacklevel=4)

    def _weights(self, inputs: Sequence[Any]) -> _Weights:
        held = {
            i: x
            for i, (x, is_marked) in enumerate(zip(inputs, self._marked, strict=True))
            if isinstance(x, torch.Tensor) and (is_marked or isinstance(x, torch.nn.Parameter))
            # Who writes into those of inference mode is not told.
            if not x.is_inference()
        }
        rest = [i for i in range(len(inputs)) if i not in held]
        self._given = tuple(i for i in rest if isinstance(inputs[i], torch.Tensor))
        self._numbers = tuple(i for i in rest if not isinstance(inputs[i], torch.Tensor))
        while len(self._known) >= _MOST_WEIGHTS:
            del self._known[next(iter(self._known))]
        key = tuple(map(id, held.values()))
        if (known := self._known.get(key)) is None:
            known = self._known[key] = _Weights(held, partial(_forget, weakref.ref(self), key))
        return known

    def forget(self, key: tuple[int, ...]) -> None:
        """Parameters that are gone, whose numbers others may have next, and the kernels that hold them."""
        if (weights := self._known.pop(key, None)) is not None and self._last is weights:
            self._last = None

    def _made(self, inputs: Sequence[Any], weights: _Weights) -> _Runs:
        start_s = time.monotonic()
        found, placed = self._placed(inputs, weights)
        self._tell(inputs, None, found.placement, time.monotonic() - start_s)
        given = self._given
        return lambda called: placed([called[i] for i in given])

    def _tell(
        self, inputs: Sequence[Any], reason: str | None, placement: Placement | None, seconds: float
    ) -> None:
        operations = sum(n.op.startswith("call") for n in self._module.graph.nodes)
        shapes = tuple(tuple(inputs[i].shape) for i in self._given)
        self.parts.append(Part(operations, shapes, reason, placement, seconds))

    def _placed(self, inputs: Sequence[Any], weights: _Weights) -> tuple[Optimization, Placed]:
        exported = export(self._module, inputs, weights.tensors, {i: inputs[i] for i in self._numbers})
        given = [inputs[i] for i in self._given]
        options = self._options
        found = optimize(
            exported.model,
            backends=options.backends,
            target=Target("cpu", options.threads or torch.get_num_threads()),
            costs=options.costs,
            effort=effort_named(options.effort),
            budget_s=options.budget_s,
            max_error=options.max_error,
            inputs={name: array_of(x) for name, x in zip(exported.inputs, given, strict=True)},
        )
        placed = Placed(exported, found)
        if not weights.are_written():  # else it is placed anew
            self._compare(inputs, placed(given))
        return found, placed

    def _compare(self, inputs: Sequence[Any], answers: Sequence[Any]) -> None:
        """NotExportedError where PyTorch answers otherwise: an operator may mean something else in ONNX."""
        with torch.no_grad():
            expected = self._module(*inputs)
        allowed = Within(max(_MOST_OFF, self._options.max_error or 0.0))
        for i, (found, wanted) in enumerate(zip(answers, expected, strict=True)):
            if isinstance(wanted, torch.Tensor):
                _, refusal = compare(str(i), found.numpy(), array_of(wanted), allowed)
                if refusal is not None:
                    raise NotExportedError(f"ONNX means something else: {refusal}")


def _forget(graph: weakref.ref[_Graph], key: tuple[int, ...], _: object) -> None:
    if (there := graph()) is not None:
        there.forget(key)


def _too_many(key: _Key, ways: Mapping[_Key, object]) -> str | None:
    """Why no further one is placed, if so. ways: what was tried."""
    if sum(known[0] == key[0] for known in ways) >= _MOST_NUMBERS:
        return f"its numbers vary: {key[1]}"
    if len(ways) >= _MOST_SHAPES:
        return f"it is placed for {_MOST_SHAPES} choices of shapes already"
    return None


def _may_need(answer: Any) -> bool:
    """Whether PyTorch's answer asks for gradients where an input does; yes where it does not say."""
    value = getattr(answer, "meta", {}).get("example_value")
    return not isinstance(value, torch.Tensor) or bool(value.requires_grad)


def _has_tangent(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None


def _requires_grad(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad
