"""What a backend offers for a group of nodes, whoever has found it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from collage_core.backend import Backend, BackendKind, Variant, rounded_to
from collage_core.errors import Refusal, staying_alive
from collage_core.ir import Subgraph
from collage_core.rounding import Site, rounded_sites, rounding_sites
from collage_core.target import Target

__all__ = ["Candidate", "answer_of", "is_library", "offers_for"]


@dataclass(frozen=True)
class Candidate:
    """A part of the graph, the backend that would run it, in which formats, and the pattern or rule that
    found it.
    """

    subgraph: Subgraph
    backend: str
    variant: Variant
    origin: str

    @cached_property
    def kernel_key(self) -> tuple[str, str, str]:
        """What it has in common with candidates that the same kernel serves: structural key, variant as text,
        backend.
        """
        return self.subgraph.key, str(self.variant), self.backend

    @cached_property
    def rounded_to(self) -> frozenset[str]:
        """The types in which values of other types are stored."""
        return rounded_to(self.subgraph, self.variant)

    @cached_property
    def rounded_sites(self) -> frozenset[Site]:
        """Where it rounds by itself."""
        return rounded_sites(self.subgraph, self.variant)

    @property
    def rounding_sites(self) -> frozenset[Site]:
        """Where it rounds, or has others round."""
        return rounding_sites(self.subgraph, self.variant)

    @property
    def is_rounded(self) -> bool:
        """Whether a value is stored in another type than its own."""
        return bool(self.rounded_to)


def offers_for(
    subgraph: Subgraph, origin: str, backend: Backend, target: Target
) -> tuple[list[Candidate], list[Refusal]]:
    """What a backend offers for a group, whoever has found it, and why not."""
    variants = answer_of(backend.variants, subgraph, backend, target)
    if isinstance(variants, Refusal):
        return [], [variants if variants.node else replace(variants, node=subgraph.nodes[0].name)]
    found: list[Candidate] = []
    refusals: list[Refusal] = []
    for variant in variants:
        misfit = _misfit(subgraph, variant, target)
        # What it is, is asked last: that takes longer than all the rest.
        if misfit is None and not _row_major_at_the_ends(subgraph, variant) and is_library(backend):
            misfit = Refusal("not row-major at the model's ends", subgraph.nodes[0].name)
        if misfit is not None:
            refusals.append(misfit)
        else:
            found.append(Candidate(subgraph, backend.name, variant, origin))
    return found, refusals


def answer_of(
    ask: Callable[[Subgraph, Target], Sequence[Variant] | Refusal],
    subgraph: Subgraph,
    backend: Backend,
    target: Target,
) -> list[Variant] | Refusal:
    """What the backend answers, each variant once; a failure to do so is a refusal."""
    try:
        with staying_alive():
            offered = ask(subgraph, target)
            if isinstance(offered, Refusal):
                return offered
            variants = list(dict.fromkeys(offered))
        for v in variants:
            if not isinstance(v, Variant):
                raise TypeError(f"{ask.__name__} returned {v!r}, which is no Variant")
    except Exception as error:  # a plugin may raise anything; it costs this group
        reason = f"{backend.name} failed to say what it offers: {type(error).__name__}: {error}"
        return Refusal(reason, is_fault=True)
    return variants


def is_library(backend: Backend) -> bool:
    """Whether it optimises across the kernels of a group."""
    return backend.info().kind is BackendKind.GRAPH


def _row_major_at_the_ends(subgraph: Subgraph, variant: Variant) -> bool:
    """Whether the model's own inputs and outputs are laid out as they come and go: a library that sees them
    lays them out itself, at least as well as a conversion before it. Rounding is left to a conversion.
    """
    graph = subgraph.graph
    ends = [(v, f) for v, f in zip(subgraph.inputs, variant.inputs, strict=True) if v in graph.inputs]
    ends += [(v, f) for v, f in zip(subgraph.outputs, variant.outputs, strict=True) if graph.is_output(v)]
    return all(f.is_plain for _, f in ends)


def _misfit(subgraph: Subgraph, variant: Variant, target: Target) -> Refusal | None:
    offered = len(variant.inputs), len(variant.outputs)
    wanted = len(subgraph.inputs), len(subgraph.outputs)
    first = subgraph.nodes[0].name
    if offered != wanted:
        return Refusal(
            f"offered with formats for {offered} inputs and outputs; it has {wanted}", first, is_fault=True
        )
    values = zip((*subgraph.inputs, *subgraph.outputs), (*variant.inputs, *variant.outputs), strict=True)
    if len({f.device for f in (*variant.inputs, *variant.outputs)}) > 1:
        return Refusal("offered in the memory of several devices", first, is_fault=True)
    for value, format in values:
        type = subgraph.graph.type_of(value)
        if not target.stores(type.dtype, len(type.shape), format):
            return Refusal(f"offered with {value!r}, which is {type}, as {format}", first)
    return None
