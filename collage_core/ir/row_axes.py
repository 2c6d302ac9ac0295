"""Where rows lie that are independent of each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage_core.errors import ModelError

__all__ = ["RowAxes"]


@dataclass(frozen=True, slots=True)
class RowAxes:
    """Of a graph whose rows are independent: of every output, row i depends on row i of the inputs, on what
    is the same for all rows, and on nothing that says how many rows there are.

    count: of rows. inputs: by name, the axis along which each index is a row; whatever is not here is the
    same for all rows. outputs: by name, the axis, and how many indices in sequence are a row; whatever is not
    here depends on no row.
    """

    count: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, tuple[int, int]]

    def to_json(self) -> dict[str, Any]:
        outputs = {name: [*held] for name, held in self.outputs.items()}
        return {"count": self.count, "inputs": dict(self.inputs), "outputs": outputs}

    @staticmethod
    def from_json(data: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> RowAxes:
        """Of inputs and outputs of these shapes. ModelError for what does not fit them, KeyError, TypeError
        or ValueError for what is none.
        """
        outputs = {str(name): (int(axis), int(width)) for name, (axis, width) in data["outputs"].items()}
        inputs = {str(name): int(axis) for name, axis in data["inputs"].items()}
        rows = RowAxes(int(data["count"]), inputs, outputs)
        held = {**{name: (axis, 1) for name, axis in inputs.items()}, **outputs}
        for name, (axis, width) in held.items():
            shape = shapes.get(name, ())
            if not 0 <= axis < len(shape) or shape[axis] != rows.count * width:
                raise ModelError(f"{name!r} has not {rows.count} rows along axis {axis}")
        if rows.count < 1 or not inputs:
            raise ModelError("there are no rows")
        return rows
