"""Plans as they are stored, with constants as primitives read them, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage_run.formats import Array
from collage_run.kernel import StoredKernel

from collage_dnnl.enums import Alg
from collage_dnnl.kernels.plan import (
    AnyFormat,
    Argument,
    BinaryPostOp,
    Constant,
    Eltwise,
    Input,
    Int64,
    Output,
    Packed,
    Plan,
    Source,
)
from collage_dnnl.library import ENGINE
from collage_dnnl.tensor import FP32, Tensor

__all__ = ["plan_of", "stored_plan"]

_KIND = "dnnl"


def stored_plan(
    plan: Plan,
    plain: Mapping[Source, Array],
    packed: Mapping[Source, Mapping[str, Array]],
    threads: int,
    implementations: Sequence[str],
) -> StoredKernel:
    """plain, packed: the buffers of its constants, of the second by implementation."""
    writer = _Writer(plain, packed)
    facts = {
        "function": plan.function,
        "parameters": [_parameter_to_json(p) for p in plan.parameters],
        "arguments": [
            [int(a.arg), _tensor(a.tensor), writer.source(a.source), a.packed] for a in plan.arguments
        ],
        "post_ops": [writer.post_op(op) for op in plan.post_ops],
        "may_alias": [*plan.may_alias.items()],
        "masks": [*plan.masks.items()],
        "threads": threads,
        "implementations": [*implementations],
    }
    return StoredKernel(_KIND, facts, arrays=tuple(writer.arrays))


def plan_of(stored: StoredKernel) -> Plan:
    """The same again, with the constants as they were packed."""
    facts = stored.facts
    sources: dict[str, Source] = {}

    def source(told: Mapping[str, Any]) -> Source:
        return sources.setdefault(repr(told), _source_from_json(told, stored.arrays))

    arguments = [
        Argument(arg, _tensor_from_json(tensor), source(told), packed)
        for arg, tensor, told, packed in facts["arguments"]
    ]
    post_ops = [
        BinaryPostOp(Alg(op["alg"]), _tensor_from_json(op["tensor"]), source(op["source"]), op["residual"])
        if "tensor" in op
        else Eltwise(Alg(op["alg"]), op["alpha"], op["beta"])
        for op in facts["post_ops"]
    ]
    return Plan(
        facts["function"],
        tuple(map(_parameter_from_json, facts["parameters"])),
        tuple(arguments),
        tuple(post_ops),
        dict(facts["may_alias"]),
        dict(facts.get("masks", ())),  # without any in exports of version 1
    )


class _Writer:
    def __init__(self, plain: Mapping[Source, Array], packed: Mapping[Source, Mapping[str, Array]]) -> None:
        self._plain, self._packed = plain, packed
        self._known: dict[Source, dict[str, Any]] = {}
        self.arrays: list[Array] = []

    def source(self, source: Source) -> dict[str, Any]:
        if isinstance(source, Input):
            return {"input": source.index}
        if isinstance(source, Output):
            return {"output": True}
        if source not in self._known:
            if source in self._plain:
                data = self._plain[source]
                self._known[source] = {"constant": self._put(data), "dtype": data.dtype.name}
            else:
                forms = self._packed[source].items()
                self._known[source] = {"packed": [[name, self._put(data)] for name, data in forms]}
        return self._known[source]

    def post_op(self, op: Eltwise | BinaryPostOp) -> dict[str, Any]:
        if isinstance(op, Eltwise):
            return {"alg": int(op.alg), "alpha": op.alpha, "beta": op.beta}
        told = {"alg": int(op.alg), "tensor": _tensor(op.tensor), "residual": op.residual}
        return {**told, "source": self.source(op.source)}

    def _put(self, array: Array) -> int:
        for number, known in enumerate(self.arrays):
            if known is array:
                return number
        self.arrays.append(array)
        return len(self.arrays) - 1


def _source_from_json(told: Mapping[str, Any], arrays: Sequence[Array]) -> Source:
    if "input" in told:
        return Input(told["input"])
    if "constant" in told:
        dtype = told.get("dtype", FP32)
        return Constant(arrays[told["constant"]].view(dtype), (0,), is_own=True, dtype=dtype)
    if "packed" in told:
        return Packed({name: arrays[i] for name, i in told["packed"]})
    return Output()


def _tensor(tensor: Tensor) -> list[Any]:
    return [tensor.dims, tensor.strides, tensor.dtype]


def _tensor_from_json(told: Any) -> Tensor:
    dims, strides, *dtype = told  # without one in exports of version 1
    return Tensor(tuple(dims), tuple(strides), *dtype)


def _parameter_to_json(parameter: Any) -> Any:
    if isinstance(parameter, Tensor):
        return {"tensor": _tensor(parameter)}
    if isinstance(parameter, AnyFormat):
        return {"any": parameter.dims, "dtype": parameter.dtype}
    if isinstance(parameter, Int64):
        return {"int64": parameter.value}
    if isinstance(parameter, tuple):
        return {"dims": parameter}
    if isinstance(parameter, list):
        return [_parameter_to_json(p) for p in parameter]
    return {"engine": True} if parameter is ENGINE else parameter


def _parameter_from_json(told: Any) -> Any:
    if isinstance(told, list):
        return [_parameter_from_json(t) for t in told]
    if not isinstance(told, dict):
        return told
    if "tensor" in told:
        return _tensor_from_json(told["tensor"])
    if "any" in told:
        return AnyFormat(tuple(told["any"]), told.get("dtype", FP32))
    if "int64" in told:
        return Int64(told["int64"])
    return tuple(told["dims"]) if "dims" in told else ENGINE
