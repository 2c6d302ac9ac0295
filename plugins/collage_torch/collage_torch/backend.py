"""The backend that `torch.compile` calls, and what became of each graph that it was given."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from collage_core import Optimization, Target, optimize
from collage_core.errors import CollageError
from collage_core.pipeline.effort import QUICK, effort_named
from collage_torch.exporting import NotExportedError, export
from collage_torch.placed import Placed, array_of

__all__ = ["Part", "collage", "parts"]

_OPTIONS = ("backends", "budget_s", "costs", "effort", "max_error", "threads")
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
"""That NumPy has, too."""
_MOST_SHAPES = 16
"""Of one graph that are placed: each has buffers and kernels of its own."""
_STATIC = "_dynamo_static_input_type"
"""Where PyTorch's tracer marks parameters and buffers of modules that it made inputs of a graph."""


@dataclass(frozen=True, slots=True)
class Part:
    """What became of one graph at one choice of shapes.

    nodes: of the FX graph. shapes: of the inputs that are no parameters. reason: why it is left to PyTorch,
    None where it is placed. found: what the optimization found then.
    """

    nodes: int
    shapes: tuple[tuple[int, ...], ...]
    reason: str | None
    found: Optimization | None
    seconds: float


_graphs: weakref.WeakSet[_Graph] = weakref.WeakSet()


def parts() -> list[Part]:
    """Of all graphs that are alive and have been called, in no particular order."""
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

    options: `effort` ("quick" unless it is given), `budget_s`, `threads` (PyTorch's otherwise), `backends`,
    `costs` and `max_error`, as of `collage_core.optimize`. ValueError for others, and for a mode.
    """
    options = dict(options or {})
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise ValueError(f"collage has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}")
    if mode not in (None, "default"):
        raise ValueError(f"collage has no mode {mode!r}; options={{'effort': 'thorough'}} tries longer")
    try:
        effort_named(options.get("effort", QUICK.name))
    except CollageError as error:
        raise ValueError(str(error)) from None
    return _Graph(graph_module, options)


class _NoGradient(torch.autograd.Function):  # type: ignore[misc]
    """Answers; going back through it is refused."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *inputs: Any) -> Any:
        return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "collage computes no gradients: it runs models for inference. Train the model itself, "
            "and call what torch.compile returned under torch.no_grad()"
        )


_Runs = Callable[[Sequence[Any]], Any]


class _Weights:
    """The parameters that a graph was called with, and how it runs with them, by the shapes of the rest."""

    def __init__(self, tensors: Mapping[int, Any]) -> None:
        self.tensors = tensors
        self.ways: dict[tuple[object, ...], _Runs] = {}
        self._versions = self._now()

    def are(self, inputs: Sequence[Any]) -> bool:
        return all(inputs[i] is tensor for i, tensor in self.tensors.items())

    def renew(self) -> None:
        """Forget how it ran, where one was written since."""
        versions = self._now()
        if versions != self._versions:
            self._versions = versions
            self.ways.clear()

    def _now(self) -> list[int]:
        # Those of inference mode are never written, and have no version.
        return [0 if x.is_inference() else x._version for x in self.tensors.values()]


class _Graph:
    """One FX graph, in place of its `forward`. Layers of one class may share it, each with weights."""

    def __init__(self, module: Any, options: Mapping[str, Any]) -> None:
        self.parts: list[Part] = []
        self._module = module
        self._options = options
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._marked = [_STATIC in (n.meta.get("tensor_dict") or {}) for n in placeholders]
        self._known: dict[tuple[int, ...], _Weights] = {}
        self._last: _Weights | None = None
        self._given: tuple[int, ...] = ()
        _graphs.add(self)

    def __call__(self, *inputs: Any) -> Any:
        way = self._way(inputs)
        if torch.is_grad_enabled() and way != self._module_way and any(map(_requires_grad, inputs)):
            return _NoGradient.apply(lambda *given: way(given), *inputs)
        return way(inputs)

    def _way(self, inputs: Sequence[Any]) -> _Runs:
        weights = self._last
        if weights is None or not weights.are(inputs):
            weights = self._last = self._weights(inputs)
        weights.renew()
        shapes = tuple(_shape(inputs[i]) for i in self._given)
        way = weights.ways.get(shapes)
        if way is None:
            way = weights.ways[shapes] = self._made(inputs, weights)
        return way

    def _weights(self, inputs: Sequence[Any]) -> _Weights:
        held = {
            i: x
            for i, (x, is_marked) in enumerate(zip(inputs, self._marked, strict=True))
            if isinstance(x, torch.Tensor) and (is_marked or isinstance(x, torch.nn.Parameter))
        }
        self._given = tuple(i for i in range(len(inputs)) if i not in held)
        # What is held here keeps its identity for itself.
        return self._known.setdefault(tuple(map(id, held.values())), _Weights(held))

    def _module_way(self, inputs: Sequence[Any]) -> Any:
        return self._module(*inputs)

    def _made(self, inputs: Sequence[Any], weights: _Weights) -> _Runs:
        start_s = time.monotonic()
        reason, found, placed = None, None, None
        try:
            if len(weights.ways) >= _MOST_SHAPES:
                raise NotExportedError(f"it was placed for {_MOST_SHAPES} choices of shapes before")
            found, placed = self._placed(inputs, weights.tensors)
        except (NotExportedError, CollageError) as error:
            reason = str(error)
        nodes = sum(n.op.startswith("call") for n in self._module.graph.nodes)
        tensors = [i for i in self._given if isinstance(inputs[i], torch.Tensor)]
        shapes = tuple(tuple(inputs[i].shape) for i in tensors)
        self.parts.append(Part(nodes, shapes, reason, found, time.monotonic() - start_s))
        if placed is None:
            warnings.warn(f"collage leaves {nodes} operations to PyTorch: {reason}", stacklevel=2)
            return self._module_way
        run = placed
        return lambda given: run([given[i] for i in tensors])

    def _placed(self, inputs: Sequence[Any], held: Mapping[int, Any]) -> tuple[Optimization, Placed]:
        for x in inputs:
            if isinstance(x, torch.Tensor):
                _check(x)
        numbers = {i: inputs[i] for i in self._given if not isinstance(inputs[i], torch.Tensor)}
        exported = export(self._module, inputs, held, numbers)
        given = [inputs[i] for i in self._given if i not in numbers]
        options = self._options
        found = optimize(
            exported.model,
            backends=options.get("backends"),
            target=Target("cpu", options.get("threads") or torch.get_num_threads()),
            costs=options.get("costs"),
            effort=effort_named(options.get("effort", QUICK.name)),
            budget_s=options.get("budget_s"),
            max_error=options.get("max_error"),
            inputs={name: array_of(x) for name, x in zip(exported.inputs, given, strict=True)},
        )
        return found, Placed(exported, found)


def _requires_grad(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _shape(x: Any) -> object:
    return (tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x


def _check(x: Any) -> None:
    """NotExportedError for a tensor that no array can be."""
    if x.device.type != "cpu":
        raise NotExportedError(
            f"a tensor lies on {x.device}; inputs and outputs of a placement lie on the CPU"
        )
    if x.layout != torch.strided:
        raise NotExportedError(f"a tensor is {x.layout}")
    if x.dtype not in _DTYPES:
        raise NotExportedError(f"a tensor is {x.dtype}, which NumPy has not")
