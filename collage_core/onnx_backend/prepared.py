"""A model that is placed and built in a worker, ready to run there."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from collage_run.executable import check_array
from onnx.backend.base import BackendRep, namedtupledict

from collage_core.errors import BackendError, DeclinedError, InputError, Refusal, StepError, WorkerError
from collage_core.formats import Array
from collage_core.ir import UNKNOWN, Graph, TensorType, from_model
from collage_core.ir.passes import normalise
from collage_core.ir.static import require_static
from collage_core.onnx_backend.home import Home
from collage_core.onnx_backend.placing import Placer
from collage_core.onnx_backend.serving import STEP_FILE, open_executable, run_executable
from collage_core.onnx_backend.stored import StoredGraph
from collage_core.placement import Conversion, Placement
from collage_core.runtime import Inputs
from collage_core.runtime.plan import called
from collage_core.worker import RemoteError, WorkerCrash, WorkerTimeout

__all__ = ["PreparedModel"]

_STEP_S = 2.0
"""Time that each step may take to be built, beyond the limit for one candidate."""
_FAILED_STEP = f"{StepError.__module__}.{StepError.__qualname__}"
_WRONG_INPUT = f"{InputError.__module__}.{InputError.__qualname__}"
_DECLINED = f"{DeclinedError.__module__}.{DeclinedError.__qualname__}"


class PreparedModel(BackendRep):
    """A model that is placed and built; open dimensions are bound to the inputs' shapes when it runs.

    output_names: the model's, in its order. notes: what failed and was placed elsewhere; each is also told as
    a RuntimeWarning.
    """

    def __init__(self, model: onnx.ModelProto, home: Home) -> None:
        self._model = model
        self._home = home
        self._placed: dict[tuple[tuple[int, ...], ...], _Placed] = {}
        read = from_model(model, definitions=home.definitions)
        self._inputs = {v: read.type_of(v) for v in read.inputs}
        self.output_names: tuple[str, ...] = tuple(read.outputs)
        self.notes: list[str] = []
        if not any(map(_is_open, self._inputs.values())):
            self._place(read)

    @property
    def placements(self) -> tuple[tuple[Graph, Placement], ...]:
        """The normalised graph and its placement, for each specialisation of the inputs' shapes so far."""
        return tuple((p.graph, p.placement) for p in self._placed.values())

    @property
    def refusals(self) -> dict[str, tuple[Refusal, ...]]:
        """By backend what it declined, and why, in any specialisation so far."""
        found: dict[str, tuple[Refusal, ...]] = {}
        for placed in self._placed.values():
            for name, refusals in placed.refusals.items():
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), *refusals)))
        return found

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, in the model's order and by name.

        inputs: arrays in the order of the model's inputs, by name, or the only one. InputError says what is
        wrong with which. What a library fails at runs elsewhere the second time; WorkerCrash and
        WorkerTimeout cost this call, and nothing else.
        """
        given = self._named(inputs)
        placed = self._placed.get(tuple(a.shape for a in given.values()))
        if placed is None:
            shapes = {v: given[v].shape for v, t in self._inputs.items() if _is_open(t)}
            placed = self._place(from_model(self._model, shapes, definitions=self._home.definitions))
        outputs = placed.run(given)
        return namedtupledict("Outputs", list(self.output_names))(*(outputs[v] for v in self.output_names))

    def _place(self, graph: Graph) -> _Placed:
        placed = _Placed(normalise(graph), self._home, self._tell)
        self._placed[tuple(placed.graph.shape_of(v) for v in self._inputs)] = placed
        return placed

    def _tell(self, note: str) -> None:
        self.notes.append(note)
        warnings.warn(note, RuntimeWarning, stacklevel=2)

    def _named(self, inputs: Inputs) -> dict[str, Array]:
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self._inputs):
                names = ", ".join(self._inputs) or "none"
                raise InputError(f"{len(inputs)} inputs given; the model has {len(self._inputs)}: {names}")
            inputs = dict(zip(self._inputs, inputs, strict=True))
        for name in inputs:
            if name not in self._inputs:
                raise InputError(f"the model has no input {name!r}; its inputs: {', '.join(self._inputs)}")
        # A tensor without dimensions comes as NumPy's scalar more often than not.
        inputs = {v: np.asarray(a) if isinstance(a, np.generic) else a for v, a in inputs.items()}
        for name, type in self._inputs.items():
            array = inputs.get(name)
            if isinstance(array, np.ndarray) and _is_open(type):
                type = TensorType(type.dtype or array.dtype.name, array.shape)
            check_array("input", name, array, type)
        return {name: inputs[name] for name in self._inputs}


def _is_open(type: TensorType) -> bool:
    return type == UNKNOWN or bool(type.symbolic_dims)


class _Placed:
    """One specialisation of a model, which has an executable in the home's worker.

    tell: called with what failed, and is placed elsewhere.
    """

    def __init__(self, graph: Graph, home: Home, tell: Callable[[str], object]) -> None:
        require_static(graph)
        self.graph = graph
        self._home = home
        self._tell = tell
        self._stored = StoredGraph(graph)
        self._placer = Placer(self._stored, home)
        self._number = home.number()
        self._generation = 0
        self.placement = self._placer.place()
        weakref.finalize(self, home.drop, self._number)
        self._open()

    @property
    def refusals(self) -> dict[str, tuple[Refusal, ...]]:
        return self._placer.refusals

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        servant, folder = self._home.servant, self._stored.folder
        while True:
            if servant.ready() != self._generation:
                self._open()
            try:
                return servant.call(run_executable, self._number, folder, dict(inputs))
            except RemoteError as error:
                if error.type_name == _WRONG_INPUT:
                    raise InputError(error.message) from None
                if error.type_name != _FAILED_STEP:
                    raise BackendError(str(error)) from error
                self._without(error)
            self._open()

    def _open(self) -> None:
        servant, folder = self._home.servant, self._stored.folder
        servant.refresh()
        while True:
            generation = servant.ready()
            try:
                servant.call(
                    open_executable,
                    self._number,
                    folder,
                    self.placement,
                    self._home.dropped(),
                    more_s=_STEP_S * len(self.placement.groups),
                )
            except (RemoteError, WorkerCrash, WorkerTimeout) as error:
                self._without(error)
            else:
                self._generation = generation
                return

    def _without(self, error: WorkerError) -> None:
        """Place anew without the step that the worker failed at; that error, where there is none."""
        said = error.message if isinstance(error, RemoteError) else str(error)
        file = self._stored.folder / STEP_FILE
        number = file.read_text() if file.is_file() else ""
        steps = called(self.graph, self.placement)
        if not number or int(number) >= len(steps):
            raise BackendError(said) from error
        what = steps[int(number)].what
        if not self._placer.take_out(what, said):
            raise BackendError(said) from error
        self.placement = self._placer.place()
        if isinstance(error, RemoteError) and error.type_name == _DECLINED:
            return
        if isinstance(what, Conversion):
            where = f"the conversion of {what.value!r}"
        else:
            node = self.graph.node(what.nodes[0])
            where = f"{node.name!r} ({node.op_type}{', ...' if len(what.nodes) > 1 else ''})"
        self._tell(f"{what.backend} failed at {where}, which now runs elsewhere: {said}")
