"""Random graphs, fused by the rule: the largest groups and whole placements against the reference."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from collage_tvm import plugin
from collage_tvm.backend import TvmBackend
from hypothesis import HealthCheck, given, note, settings
from random_graphs import Case, cases

from collage_core import CostRecord, OpLevelSearch, Target, build, formulate, generate_candidates
from collage_core.backend import Variant
from collage_core.candidates import Candidate
from collage_core.costs.check import compare
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import OpKind, Subgraph, op_kind
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.search.formulate import needed_conversions
from collage_core.testing import bind

_TARGET = Target("cpu", 2)


class _Comparison:
    """One case's answers by the reference, and what is compared with them."""

    def __init__(self, case: Case) -> None:
        every = [v for n in case.graph.nodes for v in n.outputs if v]
        self.expected = {**case.inputs, **evaluate(case.graph, case.inputs, keep=every)}
        rounded = [self.expected[v] for v in case.rounded]
        share = 1e-5 if any(a.dtype == np.float32 for a in rounded) else 1e-12
        self._rounding = share * max((float(np.max(np.abs(a))) for a in rounded), default=0.0)

    def check(self, name: str, result: Array, what: object) -> None:
        expected = self.expected[name]
        error, refusal = compare(name, result, expected)
        if refusal is None or error is None:
            assert refusal is None, f"{refusal}: {what}"
            return
        # a sum that cancels leaves the rounding of what was added, in the reference as in the kernel
        left = np.max(np.abs(result.astype(np.float64) - expected.astype(np.float64)))
        assert left <= self._rounding, f"{refusal.reason} (rounding: {self._rounding:.2g}): {what}"

    def run(self, group: Subgraph, variant: Variant) -> None:
        kernel = TvmBackend().build(group, variant, _TARGET)
        bound = bind(kernel, group, variant, self.expected)
        assert not bound.call()
        for name, result in zip(group.outputs, bound.outputs, strict=True):
            self.check(name, result, f"{group} {variant}")
        for output, input in kernel.may_alias.items():
            bound = bind(kernel, group, variant, self.expected, {output: input})
            assert not bound.call()
            self.check(group.outputs[output], bound.outputs[output], f"{group} {variant} in place")


def _check(case: Case, seen: Counter[str]) -> None:
    note(str(case.graph))
    graph, tvm = case.graph, TvmBackend()
    comparison = _Comparison(case)
    found = generate_candidates(graph, [tvm], _TARGET)
    own = [c for c in found.candidates if c.backend == tvm.name]
    largest = sorted({len(c.subgraph.node_set) for c in own}, reverse=True)[:2]
    for c in [c for c in own if len(c.subgraph.node_set) in largest][:4]:
        comparison.run(c.subgraph, c.variant)
        _count(seen, c.subgraph)
    for first, last in case.spans:
        # neighbours in the order of evaluation are convex; they may have several outputs, or be apart
        group = Subgraph(graph, [n.id for n in graph.nodes[first : last + 1]])
        offered = tvm.variants(group, _TARGET)
        for variant in () if isinstance(offered, Refusal) else offered:
            comparison.run(group, variant)
            _count(seen, group)

    def cost(c: Candidate) -> CostRecord:
        permuted = not all(f.is_plain for f in (*c.variant.inputs, *c.variant.outputs))
        return CostRecord("ok", median_ms=(0.5 if case.permuted else 1.5) if permuted else 1.0)

    keys = needed_conversions(graph, found.candidates)
    conversions = {k: (tvm.name, 0.1) for k in keys if tvm.converts(*k, _TARGET)}
    formulation = formulate(found, cost, conversions)
    placement = formulation.placement(OpLevelSearch().solve(formulation.problem))
    seen["permuted groups placed"] += sum(
        not all(f.is_plain for f in g.variant.outputs) for g in placement.groups
    )
    outputs = build(graph, placement, Registry([plugin], entry_points=False))(case.inputs)
    for name, result in outputs.items():
        comparison.check(name, result, placement)


def _count(seen: Counter[str], group: Subgraph) -> None:
    kinds = {op_kind(group.graph, n) for n in group.nodes}
    diamond = any(len(group.graph.consumers(v)) > 1 for n in group.nodes[:-1] for v in n.outputs)
    seen["fused"] += len(group.nodes) > 1
    seen["more than ten operators"] += len(group.nodes) > 10
    seen["several outputs"] += len(group.outputs) > 1
    seen["fused with a reduction"] += len(group.nodes) > 1 and OpKind.REDUCTION in kinds
    seen["fused with a mover"] += len(group.nodes) > 1 and OpKind.INJECTIVE in kinds
    seen["read twice"] += diamond and len(group.nodes) > 2


@pytest.mark.parametrize(
    "examples",
    [50, pytest.param(2_000, marks=pytest.mark.slow)],
)
def test_what_the_rule_fuses_is_right(examples: int) -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples <= 200,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def check(case: Case) -> None:
        _check(case, seen)

    check()
    common = [what for what, n in seen.items() if n >= examples // 100]
    assert len(common) == 7 or examples == 50, f"the graphs have become too simple: {seen}"
