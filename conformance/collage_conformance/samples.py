"""Models to look for groups in: ONNX's own node tests, random ones, and sizes at which kernels go wrong."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from collage_benchmarks import generator
from collage_benchmarks.node_suite import cases
from onnx import numpy_helper

from collage_conformance.edges import edges
from collage_core.formats import Array

__all__ = ["CHAINS_OPSET", "Sample", "chains", "operators", "samples_of"]

CHAINS_OPSET = 17
_EXPANDED = "_expanded"


@dataclass(frozen=True, slots=True)
class Sample:
    """A model, and what it is given: arrays by input, row-major."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Array]


def operators() -> tuple[str, ...]:
    """Names of those that `samples_of` has models of, sorted."""
    return tuple(sorted({*_node_cases(), *generator.operators(random=False)}))


def samples_of(op_type: str, most: int | None = None) -> Iterator[Sample]:
    """Models of one operator: of sizes 0, 1 and primes, ONNX's cases, random ones. most: of each kind."""
    yield from itertools.islice(_edges(op_type), most)
    for name in _node_cases().get(op_type, ())[:most]:
        yield _node_case(name)
    if op_type in generator.operators(random=False) and generator.opsets(op_type):
        for number in range(_RANDOM if most is None else min(most, _RANDOM)):
            case = generator.example(generator.single(op_type, generator.opsets(op_type)[-1]), number)
            yield Sample(f"random {op_type} {number}", case.model, case.inputs)


_RANDOM = 5


def chains(number: int) -> Sample:
    """A random model of up to a dozen operators; the same one for the same number."""
    case = generator.example(generator.graphs(CHAINS_OPSET), number)
    return Sample(f"random graph {number}", case.model, case.inputs)


def _edges(op_type: str) -> Iterator[Sample]:
    for number, (model, inputs) in enumerate(edges(op_type)):
        yield Sample(f"edge {op_type} {number}", model, inputs)


@functools.cache
def _node_cases() -> Mapping[str, Sequence[str]]:
    """ONNX's cases of one node that take tensors, by its operator; not those as functions of others."""
    found: dict[str, list[str]] = {}
    for name, case in cases().items():
        nodes, (inputs, _) = case.model.graph.node, case.data_sets[0]
        if len(nodes) == 1 and not nodes[0].domain and _EXPANDED not in name and all(map(_is_tensor, inputs)):
            found.setdefault(nodes[0].op_type, []).append(name)
    return found


def _is_tensor(data: object) -> bool:
    return isinstance(data, onnx.TensorProto | np.ndarray | np.generic)


def _node_case(name: str) -> Sample:
    case = cases()[name]
    arrays = [
        numpy_helper.to_array(a) if isinstance(a, onnx.TensorProto) else a for a in case.data_sets[0][0]
    ]
    names = [value.name for value in case.model.graph.input]
    return Sample(name, case.model, dict(zip(names, map(np.asarray, arrays), strict=True)))
