"""Graphs of PyTorch's as ONNX models, or the reason why not."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch.export.graph_signature import OutputKind

__all__ = ["Exported", "NotExportedError", "export"]


class NotExportedError(Exception):
    """Says why a graph is left to PyTorch."""


@dataclass(frozen=True, slots=True)
class Exported:
    """inputs, outputs: the model's names, in the order of the tensors that are given and answered. outputs
    are None where the graph answers None.
    """

    model: onnx.ModelProto
    inputs: Sequence[str]
    outputs: Sequence[str | None]


class _Held(torch.nn.Module):  # type: ignore[misc]
    """A graph that is given what is not held here."""

    def __init__(self, module: Any, held: Mapping[int, Any], numbers: Mapping[int, Any]) -> None:
        super().__init__()
        self.module = module
        self._numbers = dict(numbers)
        self._names = {i: f"held_{i}" for i in held}
        for i, tensor in held.items():
            self.register_buffer(self._names[i], tensor.detach())

    def forward(self, *given: Any) -> Any:
        known = {i: getattr(self, name) for i, name in self._names.items()} | self._numbers
        rest = iter(given)
        count = len(known) + len(given)
        return self.module(*(known[i] if i in known else next(rest) for i in range(count)))


def export(
    module: Any, inputs: Sequence[Any], held: Mapping[int, Any], numbers: Mapping[int, Any]
) -> Exported:
    """The graph `module` for inputs of these shapes and types. held: those of the inputs that become
    constants, by position; numbers: those that are no tensors, which do so, too.

    NotExportedError for what ONNX cannot say: an operator that the exporter does not know, random numbers,
    and writing into an input.
    """
    given = tuple(x for i, x in enumerate(inputs) if i not in held and i not in numbers)
    whole = _Held(module, held, numbers)
    with _quietly():
        try:
            program = torch.export.export(whole, given, strict=False)
            # Only without operators in place does it say what is written.
            signature = program.run_decompositions({}).graph_signature
            _check(program, signature)
            exported = torch.onnx.export(program, dynamo=True, verbose=False)
        except NotExportedError:
            raise
        except Exception as error:  # the exporter raises what it met
            raise NotExportedError(_reason(error)) from error
    model = exported.model_proto
    names = [v.name for v in model.graph.output]
    outputs: list[str | None] = []
    remaining = iter(names)
    for spec in program.graph_signature.output_specs:
        is_none = type(spec.arg).__name__ == "ConstantArgument"
        outputs.append(None if is_none else next(remaining))
    return Exported(model, [v.name for v in model.graph.input], outputs)


def _check(program: Any, signature: Any) -> None:
    for spec in signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise NotExportedError(f"it writes into {spec.target!r}, which is not its own")
        if type(spec.arg).__name__ == "ConstantArgument" and spec.arg.value is not None:
            raise NotExportedError(f"it answers {spec.arg.value!r}, which is no tensor")
    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            raise NotExportedError(f"{node.target} draws random numbers")


def _reason(error: BaseException) -> str:
    """The first cause, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter warns of what its callers cannot change."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
