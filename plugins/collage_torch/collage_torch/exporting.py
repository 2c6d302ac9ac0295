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
from torch.export.graph_signature import ConstantArgument, OutputKind

__all__ = ["DTYPES", "Exported", "NotExportedError", "Output", "export", "shared_memory"]

DTYPES = (
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
"""That NumPy and ONNX have, too."""


class NotExportedError(Exception):
    """Says why a graph is left to PyTorch."""


@dataclass(frozen=True, slots=True)
class Output:
    """name: the model's. shape, strides (in elements) and dtype: as PyTorch answers."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Exported:
    """inputs: the model's names, in the order of the tensors that are given. outputs: in the order of what is
    answered, None where that is None.
    """

    model: onnx.ModelProto
    inputs: Sequence[str]
    outputs: Sequence[Output | None]


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


def shared_memory(module: Any) -> str | None:
    """Which answer shares memory with an input or with another answer, None if none does: who writes into one
    of them would expect to see it in the other. module: the FX graph, as it was traced.
    """
    seen: dict[int, str] = {}
    outputs = [n for n in module.graph.nodes if n.op == "output"]
    answers = [a for n in outputs for a in n.all_input_nodes]
    for node in [*(n for n in module.graph.nodes if n.op == "placeholder"), *answers]:
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            continue
        storage = value.untyped_storage()._cdata
        if node in answers and seen.get(storage, node.name) != node.name:
            return f"its answer {node.name!r} shares memory with {seen[storage]!r}"
        seen.setdefault(storage, node.name)
    return None


def export(
    module: Any, inputs: Sequence[Any], held: Mapping[int, Any], numbers: Mapping[int, Any]
) -> Exported:
    """The graph `module` for inputs of these shapes and types. held: those of the inputs that become
    constants, by position; numbers: those that are no tensors, which do so, too.

    NotExportedError for what ONNX cannot say: an operator that the exporter does not know, random numbers,
    and writing into an input; and for tensors that no array can be.
    """
    for x in inputs:
        if isinstance(x, torch.Tensor):
            _check_input(x)
    given = tuple(x for i, x in enumerate(inputs) if i not in held and i not in numbers)
    whole = _Held(module, held, numbers)
    with _quietly():
        try:
            program = torch.export.export(whole, given, strict=False)
            # Only without operators in place does it say what is written.
            _check(program, program.run_decompositions({}).graph_signature)
            model = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
        except NotExportedError:
            raise
        except Exception as error:  # the exporter raises what it met
            raise NotExportedError(_reason(error)) from error
    names = iter([v.name for v in model.graph.output])
    outputs: list[Output | None] = []
    (last,) = (n for n in program.graph.nodes if n.op == "output")
    for spec, answer in zip(program.graph_signature.output_specs, last.args[0], strict=True):
        if isinstance(spec.arg, ConstantArgument):
            outputs.append(None)
            continue
        value, name = answer.meta["val"], next(names, None)
        if name is None:
            raise NotExportedError(f"{spec.arg.name!r} is not among the exported answers")
        if not all(isinstance(size, int) for size in value.shape):
            raise NotExportedError(f"the shape of {spec.arg.name!r} depends on values")
        _check_dtype(repr(spec.arg.name), value)
        if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
            raise NotExportedError(f"{spec.arg.name!r} is expanded")
        outputs.append(Output(name, tuple(value.shape), tuple(value.stride()), value.dtype))
    return Exported(model, [v.name for v in model.graph.input], outputs)


def _check_input(x: Any) -> None:
    if x.device.type != "cpu":
        where = "inputs and outputs of a placement lie on the CPU"
        raise NotExportedError(f"a tensor lies on {x.device}; {where}")
    if x.layout != torch.strided:
        raise NotExportedError(f"a tensor is {x.layout}")
    _check_dtype("a tensor", x)


def _check_dtype(what: str, x: Any) -> None:
    if x.dtype not in DTYPES:
        raise NotExportedError(f"{what} is {x.dtype}, which NumPy or ONNX has not")


def _check(program: Any, signature: Any) -> None:
    for spec in signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise NotExportedError(f"it writes into {spec.target!r}, which is not its own")
        if isinstance(spec.arg, ConstantArgument) and spec.arg.value is not None:
            raise NotExportedError(f"it answers {spec.arg.value!r}, which is no tensor")
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if _draws(node):
                raise NotExportedError(f"{node.target} draws random numbers")


def _draws(node: Any) -> bool:
    """Whether random numbers are drawn: operators with dropout draw none where its rate is 0, or outside of
    training.
    """
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments
    given = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
    rates = [given[name] for name in ("p", "dropout", "dropout_p") if name in given]
    training = [given[name] for name in ("train", "training") if name in given]
    return not (rates and rates[0] == 0) and not (training and training[0] is False)


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
