"""All operators that are generated, and models of one of them."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from collage_benchmarks.generator import (
    convolutions,
    elementwise,
    indexing,
    integers,
    losses,
    moving,
    normalisation,
    pooling,
    products,
    quantisation,
    randoms,
    recurrent,
    reductions,
    sampling,
    scattering,
    shapes,
    signals,
)
from collage_benchmarks.generator.builder import Builder, Case
from collage_benchmarks.generator.family import Operator

__all__ = ["OPERATORS", "operators", "opsets", "single"]

OPERATORS: Mapping[str, Operator] = {
    **elementwise.FAMILY,
    **integers.FAMILY,
    **reductions.FAMILY,
    **shapes.FAMILY,
    **moving.FAMILY,
    **indexing.FAMILY,
    **scattering.FAMILY,
    **convolutions.FAMILY,
    **pooling.FAMILY,
    **sampling.FAMILY,
    **products.FAMILY,
    **normalisation.FAMILY,
    **quantisation.FAMILY,
    **recurrent.FAMILY,
    **signals.FAMILY,
    **losses.FAMILY,
    **randoms.FAMILY,
}


def operators(*, dynamic: bool = True, random: bool = True) -> tuple[str, ...]:
    """Names, without those whose outputs' shapes depend on data, or that draw numbers, if so asked."""
    kept = (o for o in OPERATORS.values() if (dynamic or not o.dynamic) and (random or not o.random))
    return tuple(sorted(o.name for o in kept))


def opsets(op: str) -> tuple[int, ...]:
    """For each definition of the operator in force from opset 13 to 23 the first opset that has it."""
    return OPERATORS[op].opsets


def single(op: str, opset: int) -> st.SearchStrategy[Case]:
    """Models of one operator at an opset, with inputs; every output that the node names is returned.

    The numbers are such that the answer is well defined. Opsets from 13 to 23 that have the operator.
    """

    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        builder = Builder(draw, opset)
        OPERATORS[op].apply(builder)
        outputs = [v for n in builder.nodes for v in n.output if v and n.op_type == op]
        return builder.case(outputs)

    return cases()
