"""Operators that can be generated, each with the function that adds one valid node of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import onnx.defs

from collage_benchmarks.generator.builder import Builder

__all__ = ["NEWEST", "OLDEST", "Family", "Operator"]

OLDEST, NEWEST = 13, 23

F = TypeVar("F", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Operator:
    """apply: adds one node of it. dynamic: its outputs' shapes depend on data. random: no two runs agree."""

    name: str
    apply: Callable[[Builder], None]
    dynamic: bool = False
    random: bool = False

    @property
    def opsets(self) -> tuple[int, ...]:
        """For each of its definitions in force from opset 13 to 23 the first opset that has it."""
        first: dict[int, int] = {}
        for opset in range(OLDEST, NEWEST + 1):
            if self.at(opset):
                first.setdefault(onnx.defs.get_schema(self.name, opset).since_version, opset)
        return tuple(first.values())

    def at(self, opset: int) -> bool:
        """Whether ONNX has it at that opset."""
        try:
            return not onnx.defs.get_schema(self.name, opset).deprecated
        except onnx.defs.SchemaError:
            return False


class Family(dict[str, Operator]):
    """Operators by name, in the order in which `add` met them."""

    def add(self, *names: str, dynamic: bool = False, random: bool = False) -> Callable[[F], F]:
        """Decorates a function of a builder, or, for several names, of a builder and a name."""

        def register(function: F) -> F:
            for name in names:
                apply = function if len(names) == 1 else _named(function, name)
                self[name] = Operator(name, apply, dynamic, random)
            return function

        return register


def _named(function: Callable[..., None], name: str) -> Callable[[Builder], None]:
    return lambda builder: function(builder, name)
