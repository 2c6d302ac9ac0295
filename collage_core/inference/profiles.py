"""Which executable serves a request: that of its inputs' shapes, or a larger one whose last rows repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from collage_run.executable import check_inputs, check_output

from collage_core.errors import InputError
from collage_core.formats import Array
from collage_core.inference.binding import OPEN
from collage_core.inference.contexts import Contexts
from collage_core.ir import TensorType
from collage_core.ir.row_axes import RowAxes
from collage_core.runtime import Context, Loaded, backends_of
from collage_core.runtime.profiles import Shapes, fitting, shapes_text

__all__ = ["Profile", "Profiles"]

_Shapes = tuple[Any, ...]
"""Of the inputs, in the model's order."""
_Axes = tuple[int | None, ...]
"""Where rows lie in them."""


class Profile:
    """An executable for one shape of the inputs. rows: where fewer rows than it has may be given."""

    def __init__(self, loaded: Loaded) -> None:
        """Run once on zeros, so that the first request is no slower."""
        self.executable = loaded.executable
        self.contexts = Contexts(loaded.executable, loaded.threads)
        self.rows = loaded.rows
        self.inputs = loaded.executable.inputs
        self.outputs = loaded.executable.outputs
        self.buffers = loaded.executable.buffers

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Into arrays of the types of `buffers`. Returns what is valid of them."""
        return self.contexts.run(inputs, outputs)

    def close(self) -> None:
        """Let go of kernels and buffers. A call that is running ends well; another one is refused."""
        self.contexts.close()

    @property
    def shapes(self) -> _Shapes:
        return tuple(type.shape for type in self.inputs.values())

    def __str__(self) -> str:
        rows = "" if self.rows is None else " or fewer rows"
        return shapes_text(dict(zip(self.inputs, self.shapes, strict=True))) + rows


class _Padded:
    """A profile for requests of fewer rows: the last one is repeated, for zeros might not be valid. What
    comes of that is left out.
    """

    def __init__(self, profile: Profile, rows: RowAxes, count: int) -> None:
        self._profile, self._count = profile, count
        self._input_cuts = {n: (slice(None),) * a + (slice(count),) for n, a in rows.inputs.items()}
        self._padding = {n: (slice(None),) * a + (slice(count, None),) for n, a in rows.inputs.items()}
        self._last = {n: (slice(None),) * a + (slice(count - 1, count),) for n, a in rows.inputs.items()}
        self._output_cuts = {
            n: (slice(None),) * a + (slice(count * width),) for n, (a, width) in rows.outputs.items()
        }
        self.inputs = {n: _with(t, rows.inputs.get(n), count) for n, t in profile.inputs.items()}
        self.outputs, self.buffers = (
            {
                n: _with(t, axis, count * width)
                for n, t in types.items()
                for axis, width in [rows.outputs.get(n, (None, 1))]
            }
            for types in (profile.outputs, profile.buffers)
        )

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """As `Profile.run`."""
        check_inputs(inputs, self.inputs)
        for name, array in outputs.items():
            check_output(name, array, self.buffers[name])

        def run(context: Context) -> dict[str, Array]:
            for name, held in context.inputs.items():
                if name in self._padding:
                    held[self._input_cuts[name]] = inputs[name]
                    held[self._padding[name]] = inputs[name][self._last[name]] if self._count else 0
                else:
                    held[...] = inputs[name]
            context.execute()
            for name, array in outputs.items():
                np.copyto(array, context.outputs[name][self._output_cuts.get(name, ...)])
            return context.valid(outputs)

        return self._profile.contexts.lend(run)


def _with(type: TensorType, axis: int | None, size: int) -> TensorType:
    if axis is None:
        return type
    return TensorType(type.dtype, (*type.shape[:axis], size, *type.shape[axis + 1 :]))


class Profiles:
    """Executables for several shapes of a model's inputs. All are there, and warm, before the first request.

    inputs, outputs: their types; a dimension that is not the same in all of them is called `OPEN`.
    """

    def __init__(self, loaded: Sequence[Loaded]) -> None:
        self._all = [Profile(one) for one in loaded]
        self._names = tuple(self._all[0].inputs)
        self._by_shapes: dict[_Shapes, Profile | _Padded] = {p.shapes: p for p in self._all}
        self._larger: dict[tuple[_Axes, _Shapes], list[tuple[int, Profile, RowAxes]]] = {}
        served: list[Profile | _Padded] = [*self._all]
        for profile in self._all:
            if (rows := profile.rows) is None:
                continue
            axes = tuple(rows.inputs.get(name) for name in self._names)
            group = self._larger.setdefault((axes, _without(profile.shapes, axes)), [])
            group.append((rows.count, profile, rows))
            group.sort(key=lambda one: one[0])
            served.append(_Padded(profile, rows, 0))
        self.only = served[0] if len(served) == 1 else None
        """None where requests may have several shapes."""
        self.inputs = _merged([one.inputs for one in served])
        self.outputs = _merged([one.outputs for one in served])

    def __str__(self) -> str:
        """All shapes that are there, and those that may be padded to."""
        return "; ".join(map(str, self._all))

    def of(self, inputs: Mapping[str, Array]) -> Profile | _Padded:
        """That which serves such inputs; InputError names what is there."""
        if self.only is not None:
            return self.only
        shapes: _Shapes = tuple([getattr(inputs.get(name), "shape", None) for name in self._names])
        found = self._by_shapes.get(shapes)
        if found is not None:
            return found
        if None in shapes:
            return self._all[0]  # it says which is missing
        found = self._padded(shapes)
        if found is None:
            given = shapes_text(dict(zip(self._names, shapes, strict=True)))
            raise InputError(f"no profile has the shapes {given}; there are: {self}")
        self._by_shapes[shapes] = found
        return found

    def _padded(self, shapes: _Shapes) -> _Padded | None:
        """By the smallest profile that has more rows, and is otherwise the same."""
        for axes, others in self._larger:
            if _without(shapes, axes) != others:
                continue
            counts = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if axis is not None}
            for count, profile, rows in self._larger[axes, others] if len(counts) == 1 else ():
                if count > max(counts):
                    return _Padded(profile, rows, max(counts))
        return None

    def chosen(self, shapes: Shapes) -> Profile:
        """That which has these shapes, all or those of some inputs; InputError if they do not say one."""
        found = fitting(
            [dict(zip(self._names, profile.shapes, strict=True)) for profile in self._all], shapes
        )
        if len(found) != 1:
            raise InputError(f"say by the shapes of inputs which profile is meant; there are: {self}")
        return self._all[found[0]]

    def close(self) -> None:
        """Let go of kernels and buffers. A call that is running ends well; another one is refused."""
        for profile in self._all:
            profile.close()

    def backends(self) -> list[str]:
        """Names, in the order in which they first run something."""
        return backends_of([p.executable for p in self._all])


def _without(shapes: _Shapes, axes: _Axes) -> _Shapes:
    """The shapes without those axes; of an input of another rank, what no profile has."""
    return tuple(
        shape if axis is None or axis >= len(shape) else (*shape[:axis], None, *shape[axis + 1 :])
        for shape, axis in zip(shapes, axes, strict=True)
    )


def _merged(types: Sequence[Mapping[str, TensorType]]) -> dict[str, TensorType]:
    return {name: _common([one[name] for one in types]) for name in types[0]}


def _common(types: Sequence[TensorType]) -> TensorType:
    """Of several ranks nothing is known but that."""
    ranks = {len(type.shape) for type in types}
    sizes = zip(*(type.shape for type in types), strict=True) if len(ranks) == 1 else [(0, 1)]
    return TensorType(types[0].dtype, tuple(one[0] if len({*one}) == 1 else OPEN for one in sizes))
