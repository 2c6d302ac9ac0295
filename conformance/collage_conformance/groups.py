"""What a backend takes of a model: the groups that it offers to run, each with what it is to be given."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage_conformance.samples import Sample, operators, samples_of
from collage_conformance.subject import Subject
from collage_core.backend import BackendKind
from collage_core.candidates import Taken, generate_candidates, offers_for
from collage_core.errors import ModelError
from collage_core.formats import Array
from collage_core.ir import Graph, NodeSet, Subgraph, from_model
from collage_core.ir.passes import normalise
from collage_core.reference import evaluate
from collage_core.testing import make_model, node

__all__ = ["Group", "groups_of", "readable", "specimens"]

_UNCOMMON = 4
"""Of operators that are in none of the common models so many are specimens."""


@dataclass(frozen=True, slots=True)
class Group:
    """A part of a sample's graph, normalised. origin: what has found it there."""

    sample: Sample
    subgraph: Subgraph
    origin: str

    def __str__(self) -> str:
        return f"{self.subgraph} ({self.origin}, {self.sample.name})"

    @property
    def inputs(self) -> Mapping[str, Array]:
        """The graph's, by name."""
        return self.sample.inputs


def other_inputs(subgraph: Subgraph, inputs: Mapping[str, Array]) -> Mapping[str, Array] | None:
    """The graph's inputs with their floats in reversed order, for a further call; None where nothing is other
    then, or where the model makes something else of it: another shape, an error.
    """
    others = {v: a.ravel()[::-1].reshape(a.shape) if a.dtype.kind == "f" else a for v, a in inputs.items()}
    if all(np.array_equal(a, inputs[v], equal_nan=a.dtype.kind == "f") for v, a in others.items()):
        return None
    graph, names = subgraph.graph, (*subgraph.inputs, *subgraph.outputs)
    try:
        with np.errstate(all="ignore"):
            values = evaluate(graph, others, keep=names)
    except Exception:  # what is computed may not be defined for them
        return None
    return others if all(values[v].shape == graph.shape_of(v) for v in names) else None


def readable(sample: Sample) -> Graph | None:
    """Its graph, normalised as for placing it; None where core declines it, or has nothing to place."""
    try:
        graph = normalise(from_model(sample.model))
    except ModelError:
        return None
    is_open = any(graph.type_of(v).symbolic_dims for v in graph.values)
    return graph if graph.nodes and not is_open else None


def groups_of(subject: Subject, sample: Sample) -> Iterator[Group]:
    """All that the backend offers to run of it: by its patterns and rules, as a graph library, and each node
    that `variants` alone takes, for a placement may ask for that. Not what its library declines when it is
    asked (`supported`).
    """
    graph = readable(sample)
    if graph is None:
        return
    backend, target = subject.backend, subject.target
    singles = [Subgraph(graph, NodeSet([n.id])) for n in graph.nodes]
    taken = {}
    if backend.info().kind is BackendKind.GRAPH:
        takes = _supported(subject, singles)
        taken = {backend.name: Taken(NodeSet(n.id for s in takes for n in s.nodes))}
    else:  # which is asked about what it offers, and about nothing else
        takes = _supported(subject, [s for s in singles if offers_for(s, "", backend, target)[0]])
    found: dict[NodeSet, tuple[Subgraph, str]] = {}
    for candidate in generate_candidates(graph, [backend], target, taken=taken).candidates:
        if candidate.backend == backend.name:
            found.setdefault(candidate.subgraph.node_set, (candidate.subgraph, candidate.origin))
    for single in takes:
        if single.node_set not in found and offers_for(single, "", backend, target)[0]:
            found[single.node_set] = single, "`variants` alone"
    # Each is asked about once: some libraries compile it to tell.
    asked = {s.node_set for s in singles}
    larger = [s for s, _ in found.values() if s.node_set not in asked]
    kept = {s.node_set for s in (*takes, *_supported(subject, larger))}
    for subgraph, origin in found.values():
        if subgraph.node_set in kept:
            yield Group(sample, subgraph, origin)


def _supported(subject: Subject, groups: Sequence[Subgraph]) -> list[Subgraph]:
    answers = subject.backend.supported(groups, subject.target)
    return [group for group, refusal in zip(groups, answers, strict=True) if refusal is None]


def specimens(subject: Subject) -> list[Group]:
    """Groups of a common size for what is asked of any kernel, constants included: one at least of each of
    some common models that the backend takes. Where it takes none of these, of operators that it takes.
    """
    found = [g for sample in _common() for g in _largest(subject, sample)]
    for sample in () if found else _uncommon():
        if len(found) < _UNCOMMON:
            found += _largest(subject, sample)
    return found


def _uncommon() -> list[Sample]:
    """With elements, of each operator. Global random numbers, of which ONNX's cases are made, go on as they
    would have.
    """
    state, numpys = random.getstate(), np.random.get_state()
    found = [s for operator in operators() for s in samples_of(operator, 1)]
    random.setstate(state)
    np.random.set_state(numpys)
    return [s for s in found if any(a.size for a in s.inputs.values())]


def _largest(subject: Subject, sample: Sample) -> list[Group]:
    """Of a chain that a library fuses the whole; none where it takes nothing."""
    return sorted(groups_of(subject, sample), key=lambda g: len(g.subgraph.nodes))[-1:]


def _common() -> Iterator[Sample]:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape), np.float32)

    rows, image = {"x": array(64, 128)}, {"x": array(1, 32, 28, 28)}
    product, convolution = {"w": array(128, 256), "b": array(256)}, {"w": array(32, 32, 3, 3), "b": array(32)}
    chains = {
        "product": ([node("MatMul", ["x", "w"], "p"), node("Add", ["p", "b"], "y")], rows, product),
        "convolution": (
            [node("Conv", ["x", "w", "b"], "c", pads=[1, 1, 1, 1]), node("Relu", ["c"], "y")],
            image,
            convolution,
        ),
        "elementwise": (
            [node("Mul", ["x", "x"], "m"), node("Neg", ["m"], "n"), node("Relu", ["n"], "y")],
            rows,
            {},
        ),
        "sigmoid": ([node("Sigmoid", ["x"], "y")], rows, {}),
        "softmax": ([node("Softmax", ["x"], "y", axis=-1)], rows, {}),
        "reduction": ([node("ReduceMean", ["x"], "y")], rows, {}),
        "pooling": ([node("MaxPool", ["x"], "y", kernel_shape=[2, 2], strides=[2, 2])], image, {}),
        "transposition": ([node("Transpose", ["x"], "y", perm=[1, 0])], rows, {}),
    }
    for name, (nodes, inputs, constants) in chains.items():
        yield Sample(f"common {name}", make_model(nodes, inputs, constants), inputs)
