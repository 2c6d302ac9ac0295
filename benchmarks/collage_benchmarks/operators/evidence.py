"""What is known of each operator at each of its definitions, from ONNX's node cases and generated models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx.defs

from collage_benchmarks.generator import example, operators, opsets, single
from collage_benchmarks.node_suite import Outcome, cases
from collage_core.backend import Backend
from collage_core.costs.check import compare
from collage_core.errors import CollageError, Refusal
from collage_core.ir import from_model
from collage_core.ir.randomness import drawing_nodes
from collage_core.onnx_backend import OnnxBackend, PreparedModel
from collage_core.patterns.pattern import OpPattern
from collage_core.placement import VIEW
from collage_core.reference import evaluate

__all__ = ["OLDEST", "Trial", "claimed", "generated_trials", "node_trials"]

OLDEST = 13
"""First opset whose definitions are looked at."""

_EXPANDED = "_expanded"
_UNOFFERED = "nothing is offered for it"


@dataclass(frozen=True, slots=True)
class Trial:
    """One case of one operator on one backend, the reference beside it.

    operator: qualified by its domain, if that is not ONNX's. since: version of its definition. verdict:
    "right", "view" (nothing is computed), "declined", "wrong", or "refused" (the model as a whole, by core).
    reason: for the last three. case: its name.
    """

    operator: str
    since: int
    backend: str
    verdict: str
    reason: str
    case: str


def node_trials(backend: str, outcomes: Mapping[str, Outcome]) -> Iterator[Trial]:
    """From ONNX's node cases of one operator, as they ended on this backend."""
    for name, outcome in outcomes.items():
        model = cases()[name].model
        if len(model.graph.node) != 1 or _EXPANDED in name:
            continue
        if outcome.status == "wrong" and drawing_nodes(from_model(model)):
            continue  # the numbers of another generator
        node = model.graph.node[0]
        since = _since(node, {o.domain: o.version for o in model.opset_import})
        if outcome.status == "refused":
            verdict, reason = "refused", outcome.reason
        elif backend in outcome.operators:
            verdict, reason = ("right" if outcome.status == "right" else "wrong"), outcome.reason
        else:
            verdict, reason = _without(outcome.operators, outcome.refusals.get(backend, ()))
        if since is not None:
            yield Trial(_name(node), since, backend, verdict, reason, name)


def generated_trials(backend: str, count: int, seed: int = 0) -> Iterator[Trial]:
    """From `count` generated models of each operator at each definition; always the same for a seed.

    What is expected is core's reference on the model as it was made, no pass applied.
    """
    kind = OnnxBackend.for_backends(backend)
    for op in operators(dynamic=False, random=False):
        for opset in opsets(op):
            for number in range(count):
                yield _generated(kind, backend, op, opset, seed + number)
    kind.close()


def claimed(backends: Sequence[Backend]) -> dict[str, set[str]]:
    """By backend, the operators that its patterns name."""
    return {b.name: {op for pattern in b.patterns() for op in _named(pattern.pattern)} for b in backends}


def _generated(kind: type[OnnxBackend], backend: str, op: str, opset: int, number: int) -> Trial:
    case = example(single(op, opset), number)
    schema = onnx.defs.get_schema(op, opset, "")
    name = f"{op} {opset} #{number}"

    def trial(verdict: str, reason: str = "") -> Trial:
        return Trial(op, schema.since_version, backend, verdict, reason, name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what fails is told below, and of numbers that overflow
        try:
            expected = evaluate(from_model(case.model), case.inputs)
            model = kind.prepare(case.model, threads=1)
            found = model.run(case.inputs)
        except CollageError as error:
            return trial("refused", str(error))
    owners = _owners(model)
    if backend not in owners:
        return trial(*_without(owners, model.refusals.get(backend, ())))
    for (output, array), result in zip(expected.items(), found, strict=True):
        _, difference = compare(output, result, array)
        if difference is not None:
            return trial("wrong", difference.reason)
    return trial("right")


def _owners(model: PreparedModel) -> dict[str, tuple[str, ...]]:
    groups = [g for _, placement in model.placements for g in placement.groups]
    return {g.backend: () for g in groups}


def _without(owners: Mapping[str, object], refusals: Sequence[Refusal]) -> tuple[str, str]:
    """Verdict and reason of a case that the backend has no part in."""
    if not set(owners) - {VIEW}:
        return "view", ""
    return "declined", min((r.reason for r in refusals), key=len, default=_UNOFFERED)


def _named(pattern: object) -> Iterator[str]:
    if isinstance(pattern, OpPattern):
        yield from pattern.meaning.op_types
    for child in getattr(pattern, "children", ()):
        yield from _named(child)


def _name(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _since(node: onnx.NodeProto, versions: Mapping[str, int]) -> int | None:
    """Version of the operator's definition; None if it is older than `OLDEST` says and has been replaced."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = versions.get(domain, versions.get("ai.onnx", 1))
    since: int = onnx.defs.get_schema(node.op_type, version, domain).since_version
    if domain == "" and version < OLDEST:
        newest: int = onnx.defs.get_schema(node.op_type, OLDEST, "").since_version
        return since if since == newest else None
    return since
