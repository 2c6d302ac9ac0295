"""What nobody has measured may cost: bounds that no cost undercuts, guesses in the right order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import pytest

from collage_core import Target, Variant, plain_variant
from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.costs.roofline import Peaks, Work, work_of
from collage_core.formats import channels_last
from collage_core.ir import Graph, Subgraph, from_model
from collage_core.measuring.costing import Costs
from collage_core.measuring.estimates import Estimates
from collage_core.measuring.in_place import KernelKey

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_KINDS = {
    "fast": BackendKind.OPERATOR,
    "slow": BackendKind.OPERATOR,
    "odd": BackendKind.GRAPH,
    "ref": BackendKind.REFERENCE,
}
_BACKENDS = ("fast", "slow", "odd")
_PEAKS = Peaks(100.0, {1 << 20: 100.0, 1 << 28: 10.0})
_FAILED = CostRecord("failed", reason="it raised")
_WIDTHS = (8, 16, 24, 32, 40, 48)
_PARTS_MARGIN = 1.15
_WINOGRAD = 5


@pytest.fixture(scope="module")
def graph(parse: Parse) -> Graph:
    """Convolutions of several sizes, 3 x 3 and 1 x 1, each with a Relu behind it."""
    lines, value = [], "x"
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (before, after) in enumerate(pairwise(_WIDTHS)):
        shapes |= {f"a{i}": (after, before, 3, 3), f"b{i}": (after, after, 1, 1)}
        lines.append(f"[big{i}] p{i} = Conv<pads=[1,1,1,1]>({value}, a{i}) [first{i}] q{i} = Relu(p{i})")
        lines.append(f"[small{i}] r{i} = Conv(q{i}, b{i}) [second{i}] s{i} = Relu(r{i})")
        value = f"s{i}"
    return from_model(
        parse(f"(float[1,{_WIDTHS[0]},12,12] x) => (float {value}) {{ {' '.join(lines)} }}", **shapes)
    )


def _named(graph: Graph, *names: str) -> Subgraph:
    return Subgraph(graph, [graph.node_named(name).id for name in names])


def _last(subgraph: Subgraph) -> Variant:
    shape = subgraph.graph.shape_of
    return Variant(
        tuple(channels_last("float32", shape(v)) for v in subgraph.inputs),
        tuple(channels_last("float32", shape(v)) for v in subgraph.outputs),
    )


def _offered(graph: Graph, groups: Sequence[Subgraph], backends: Sequence[str] = _BACKENDS) -> CandidateSet:
    """Each group by each backend in two layouts; single nodes by the reference."""
    found = [
        Candidate(group, backend, variant, "pattern")
        for group in groups
        for backend in backends
        for variant in (plain_variant(group), _last(group))
    ]
    found += [Candidate(g, "ref", plain_variant(g), "pattern") for g in groups if len(g.nodes) == 1]
    return CandidateSet(graph, Target("cpu", 1), tuple(found), {}, _KINDS)


def _all_groups(graph: Graph) -> list[Subgraph]:
    count = len(_WIDTHS) - 1
    pairs = [(f"big{i}", f"first{i}") for i in range(count)] + [
        (f"small{i}", f"second{i}") for i in range(count)
    ]
    whole = [(f"big{i}", f"first{i}", f"small{i}", f"second{i}") for i in range(count)]
    return [_named(graph, *names) for names in (*((n.name,) for n in graph.nodes), *pairs, *whole)]


def _roofline_ms(subgraph: Subgraph) -> float:
    work = work_of(subgraph)
    if any(n.op_type == "Conv" for n in subgraph.nodes):
        work = Work(work.flops // _WINOGRAD, work.bytes)
    return _PEAKS.least_ms(work)


def _kind(c: Candidate) -> tuple[object, ...]:
    """What a backend's share of the roofline depends on here: the heaviest node, and the layout."""
    convolutions = [n for n in c.subgraph.nodes if n.op_type == "Conv"]
    size = max((c.subgraph.graph.shape_of(n.inputs[1])[2] for n in convolutions), default=0)
    return c.backend, size, str(c.variant.inputs[0].layout)


def _ok(ms: float) -> CostRecord:
    return CostRecord("ok", ms, 0.0, 20)


def _bounds(estimates: Estimates, known: Mapping[KernelKey, CostRecord]) -> dict[KernelKey, float]:
    costs = Costs(dict(known), {})
    estimates.bound(costs, ())
    return costs.kernel_bounds_ms


def _guesses(estimates: Estimates, known: Mapping[KernelKey, CostRecord]) -> dict[KernelKey, float]:
    costs = Costs(dict(known), {})
    estimates.guess(costs, ())
    return costs.kernel_bounds_ms


def test_without_anything_known_it_is_the_roofline_of_fewer_products(graph: Graph) -> None:
    """Winograd's algorithm takes fewer products than the definition, a fifth at least; nothing else does."""
    groups = [_named(graph, "big4"), _named(graph, "first0"), _named(graph, "big4", "first4")]
    candidates = _offered(graph, groups, ["fast"])
    bounds = _bounds(Estimates(candidates, Peaks(1.0, {1: 1e9})), {})
    for c in candidates.candidates:
        flops = work_of(c.subgraph).flops
        products = flops / _WINOGRAD if "Conv" in str(c.subgraph) else flops
        assert bounds[c.kernel_key] == pytest.approx(products / 1e6, rel=1e-3)


def _key(subgraph: Subgraph, backend: str, variant: Variant | None = None) -> KernelKey:
    return subgraph.key, str(variant or plain_variant(subgraph)), backend


def test_the_best_of_three_neighbours_is_what_a_backend_can_reach(graph: Graph) -> None:
    """And as much again as that is from the middle one. Of the same size of filter, in the same layout; two
    say nothing, nor do those of others.
    """
    groups = [_named(graph, f"big{i}") for i in range(5)] + [_named(graph, f"small{i}") for i in range(5)]
    estimates = Estimates(_offered(graph, groups), _PEAKS)
    asked = groups[4]

    def bound_ms(known: Mapping[KernelKey, CostRecord], backend: str = "fast", last: bool = False) -> float:
        return _bounds(estimates, known)[_key(asked, backend, _last(asked) if last else None)]

    least_ms = _roofline_ms(asked)
    shares = [0.2, 0.5, 0.4]
    known = {_key(g, "fast"): _ok(_roofline_ms(g) / s) for g, s in zip(groups[:3], shares, strict=True)}
    two = dict(list(known.items())[:2])
    assert bound_ms({}) == pytest.approx(least_ms)
    assert bound_ms(two) == pytest.approx(least_ms)
    assert bound_ms(known) == pytest.approx(least_ms / 0.5 * 0.4 / 0.5)
    assert bound_ms(known, "slow") == pytest.approx(least_ms)
    others = {_key(g, "fast"): _ok(_roofline_ms(g) / 0.01) for g in groups[5:8]}
    assert bound_ms(others) == pytest.approx(least_ms), "small filters are something else"
    in_its_own = {
        _key(g, "fast", _last(g)): _ok(_roofline_ms(g) / s)
        for g, s in zip(groups[:3], (0.1, 0.3, 0.2), strict=True)
    }
    assert bound_ms(known | in_its_own, last=True) == pytest.approx(least_ms / 0.3 * 0.2 / 0.3)
    assert bound_ms(known | in_its_own) == pytest.approx(bound_ms(known))
    alike = {_key(g, "fast"): _ok(_roofline_ms(g) / 0.5) for g in groups[:3]}
    assert bound_ms(alike) == pytest.approx(least_ms / 0.5)
    assert bound_ms(
        {_key(g, "fast"): _ok(_roofline_ms(g) / s) for g, s in zip(groups[:3], (0.1, 0.2, 0.9), strict=True)}
    ) == pytest.approx(least_ms), "the roofline holds"


def test_what_one_takes_of_what_others_take_bounds_it_too(graph: Graph) -> None:
    """Slow was never below three times fast, mostly four: by that it is faster than by its own share."""
    groups = [_named(graph, f"big{i}") for i in range(5)]
    estimates = Estimates(_offered(graph, groups), _PEAKS)
    known = {}
    for g, factor in zip(groups[:3], (3.0, 4.0, 5.0), strict=True):
        known[_key(g, "fast")] = _ok(_roofline_ms(g) / 0.3)
        known[_key(g, "slow")] = _ok(factor * _roofline_ms(g) / 0.3)
    asked = groups[4]
    by_shares_ms = _roofline_ms(asked) / 0.1 * 3.0 / 4.0
    assert _bounds(estimates, known)[_key(asked, "slow")] == pytest.approx(by_shares_ms)
    known[_key(asked, "fast")] = _ok(_roofline_ms(asked) / 0.6)
    assert _bounds(estimates, known)[_key(asked, "slow")] == pytest.approx(by_shares_ms / 2)


def test_a_group_is_hardly_faster_than_its_slowest_part(graph: Graph) -> None:
    """Of the same backend, in whatever layout that is faster; what failed is no part."""
    part, other, group = (_named(graph, *n) for n in (["big1"], ["first1"], ["big1", "first1"]))
    estimates = Estimates(_offered(graph, [part, other, group]), _PEAKS)

    def bound_ms(known: Mapping[KernelKey, CostRecord], backend: str = "fast") -> float:
        return _bounds(estimates, known)[_key(group, backend)]

    least_ms = _roofline_ms(group)
    known = {_key(part, "fast"): _ok(50.0 * least_ms)}
    assert bound_ms(known) == pytest.approx(least_ms), "in the other layout it may be faster"
    known[_key(part, "fast", _last(part))] = _ok(30.0 * least_ms)
    assert bound_ms(known) == pytest.approx(30.0 * least_ms / _PARTS_MARGIN)
    assert bound_ms(known, "slow") == pytest.approx(least_ms)
    known[_key(part, "fast", _last(part))] = _FAILED
    assert bound_ms(known) == pytest.approx(50.0 * least_ms / _PARTS_MARGIN)
    assert bound_ms(dict.fromkeys(known, _FAILED)) == pytest.approx(least_ms)


def test_a_conversion_reads_and_writes_each_element_once(graph: Graph) -> None:
    candidates = _offered(graph, [_named(graph, "big0")])
    estimates = Estimates(candidates, _PEAKS)
    type = graph.type_of("x")
    first, last = plain_variant(_named(graph, "big0")).inputs[0], _last(_named(graph, "big0")).inputs[0]
    converter = (type, first, last), "fast"
    costs = Costs({}, {})
    estimates.bound(costs, [converter])
    assert costs.converter_bounds_ms == {converter: _PEAKS.least_ms(Work(0, 2 * type.size_bytes))}
    assert costs.converters()[converter[0]] == ("fast", costs.converter_bounds_ms[converter])
    costs.forget_bounds()
    assert not costs.converters()


@pytest.mark.parametrize("estimate", [_bounds, _guesses])
def test_nothing_is_estimated_that_is_known(
    graph: Graph, estimate: Callable[[Estimates, Mapping[KernelKey, CostRecord]], Mapping[KernelKey, float]]
) -> None:
    groups = [_named(graph, f"big{i}") for i in range(4)]
    estimates = Estimates(_offered(graph, groups), _PEAKS)
    known = {_key(groups[0], "fast"): _ok(1.0), _key(groups[1], "fast"): _FAILED}
    assert not estimate(estimates, known).keys() & known.keys()


def test_guesses_are_ordered_as_what_is_known(graph: Graph) -> None:
    groups = [_named(graph, f"big{i}") for i in range(5)]
    estimates = Estimates(_offered(graph, groups), _PEAKS)
    asked = groups[4]
    least_ms = _roofline_ms(asked)

    def guess_ms(known: Mapping[KernelKey, CostRecord], backend: str) -> float:
        return _guesses(estimates, known)[_key(asked, backend)]

    assert guess_ms({}, "ref") > guess_ms({}, "fast") == guess_ms({}, "slow") > least_ms
    known = {_key(groups[0], "fast"): _ok(_roofline_ms(groups[0]) / 0.8)}
    known |= {_key(groups[0], "slow"): _ok(_roofline_ms(groups[0]) / 0.2)}
    assert guess_ms(known, "fast") == pytest.approx(least_ms / 0.8), "one neighbour is enough for a guess"
    assert guess_ms(known, "fast") < guess_ms(known, "odd") < guess_ms(known, "slow") < guess_ms(known, "ref")
    known |= {_key(groups[1], "fast"): _ok(_roofline_ms(groups[1]) / 0.1)}
    known |= {_key(groups[2], "fast"): _ok(_roofline_ms(groups[2]) / 0.4)}
    assert guess_ms(known, "fast") == pytest.approx(least_ms / 0.4), "the median, not the best"
    known[_key(asked, "fast")] = _ok(7.0)
    assert guess_ms(known, "slow") == pytest.approx(least_ms / 0.2), "what others take of it says less"


def _chain(parse: Parse, widths: Sequence[int]) -> tuple[Graph, list[Subgraph]]:
    """Convolutions of one kind, each larger than the one before."""
    pairs = [*enumerate(pairwise(widths))]
    lines = [f"[c{i}] v{i + 1} = Conv(v{i}, w{i})" for i, _ in pairs]
    shapes = {f"w{i}": (after, before, 1, 1) for i, (before, after) in pairs}
    text = f"(float[1,{widths[0]},12,12] v0) => (float v{len(pairs)}) {{ {' '.join(lines)} }}"
    graph = from_model(parse(text, **shapes))
    return graph, [_named(graph, f"c{i}") for i, _ in pairs]


def test_the_next_in_size_say_more(parse: Parse) -> None:
    """Shares grow with the size here. What is likely is their median, what is hoped for the best of them, and
    the bound is beyond; of a large one the small ones say nothing.
    """
    graph, groups = _chain(parse, range(8, 8 + 32 * 14, 32))
    estimates = Estimates(_offered(graph, groups, ["fast"]), _PEAKS)
    *others, asked = groups
    shares = [0.01 * (i + 1) for i in range(len(others))]
    known = {_key(g, "fast"): _ok(_roofline_ms(g) / s) for g, s in zip(others, shares, strict=True)}
    hopeful = Costs(dict(known), {})
    estimates.bound(hopeful, (), hopeful=True)
    least_ms, key = _roofline_ms(asked), _key(asked, "fast")
    next_four, next_eight = shares[-4:], shares[-8:]
    assert _guesses(estimates, known)[key] == pytest.approx(least_ms / median(next_four))
    assert hopeful.kernel_bounds_ms[key] == pytest.approx(least_ms / max(next_four))
    taken = [1.0 / s for s in next_eight]
    assert _bounds(estimates, known)[key] == pytest.approx(least_ms * min(taken) ** 2 / median(taken))


def test_all_that_are_as_near_say_something(parse: Parse) -> None:
    """A convolution and more and more of what follows it move the same bytes: the best of all bounds them."""
    relus = " ".join(f"[r{i}] v{i + 1} = Relu(v{i})" for i in range(20))
    text = f"(float[1,8,12,12] x) => (float v20) {{ [c] v0 = Conv(x, w) {relus} }}"
    graph = from_model(parse(text, w=(8, 8, 1, 1)))
    groups = [_named(graph, "c", *(f"r{i}" for i in range(count))) for count in range(20)]
    assert len({_roofline_ms(g) for g in groups}) == 1
    estimates = Estimates(_offered(graph, groups, ["fast"]), _PEAKS)
    asked, *others = groups  # of which no other is a part
    taken = [50.0 / (i + 1) for i in range(len(others))]
    least_ms, key = _roofline_ms(asked), _key(asked, "fast")
    known = {_key(g, "fast"): _ok(least_ms * t) for g, t in zip(others, taken, strict=True)}
    assert _guesses(estimates, known)[key] == pytest.approx(least_ms * median(taken))
    assert _bounds(estimates, known)[key] == pytest.approx(least_ms * min(taken) ** 2 / median(taken))


def test_what_neighbours_have_failed_at_is_guessed_to_come_last(graph: Graph) -> None:
    """One of them has failed in one layout: in that one the others are guessed to fail, in another not."""
    groups = [_named(graph, f"big{i}") for i in range(3)]
    estimates = Estimates(_offered(graph, groups), _PEAKS)
    failed = _key(groups[0], "fast")
    guesses = _guesses(estimates, {failed: _FAILED})
    assert failed not in guesses
    for group in groups[1:]:
        asked = _key(group, "fast")
        others = [_key(group, "fast", _last(group)), _key(group, "slow"), _key(group, "ref")]
        assert all(guesses[asked] > 10 * guesses[other] for other in others)
    costs = Costs({failed: _FAILED}, {})
    estimates.guess(costs, (), lambda likely_ms: 0.9 * likely_ms)
    assert costs.kernel_bounds_ms == {k: pytest.approx(0.9 * ms) for k, ms in guesses.items()}
    worked = _guesses(estimates, {failed: _FAILED, _key(groups[1], "fast"): _ok(1.0)})
    assert worked[_key(groups[2], "fast")] < guesses[_key(groups[2], "fast")]


def test_of_a_kind_that_is_not_known_a_few_come_first(graph: Graph) -> None:
    """Four, with those that are known; be these failures. Others are not held back, and none is lost."""
    groups = [_named(graph, f"big{i}") for i in range(5)]
    estimates = Estimates(_offered(graph, groups), _PEAKS)
    fast, slow = ([_key(g, backend) for g in groups] for backend in ("fast", "slow"))
    assert estimates.first_of([*fast, fast[0], *slow], Costs({}, {})) == [*fast[:4], *slow[:4]]
    known = Costs({fast[0]: _ok(1.0), fast[1]: _FAILED, fast[2]: _ok(1.0)}, {})
    assert estimates.first_of([*fast[3:], *slow[:2]], known) == [fast[3], *slow[:2]]
    known.kernels[fast[3]] = _ok(1.0)
    assert estimates.first_of(fast[4:], known) == fast[4:]
    elsewhere = ("another", "kernel", "fast")
    assert estimates.first_of([elsewhere], known) == [elsewhere]


def test_what_other_networks_have_shown_orders_the_first_guesses_and_draws_no_bound(graph: Graph) -> None:
    groups = [_named(graph, f"big{i}") for i in range(5)]
    asked, other = groups[4], _named(graph, "small0")
    offered = _offered(graph, [*groups, other])
    shares = {"fast": 0.8, "slow": 0.1}
    known = {_key(groups[i], b): _ok(_roofline_ms(groups[i]) / s) for i in (0, 1) for b, s in shares.items()}
    reached = Estimates(offered, _PEAKS).reached(Costs(dict(known), {}))
    assert reached.keys() == shares.keys()
    for backend, share in shares.items():
        assert [*reached[backend].values()] == [pytest.approx(share)] * 2, "in this layout, and in any"
    without, told = Estimates(offered, _PEAKS), Estimates(offered, _PEAKS, reached)
    guesses = _guesses(told, {})
    for backend, share in shares.items():
        assert guesses[_key(asked, backend)] == pytest.approx(_roofline_ms(asked) / share)
    assert guesses[_key(asked, "odd")] == _guesses(without, {})[_key(asked, "odd")]
    assert guesses[_key(other, "fast")] == _guesses(without, {})[_key(other, "fast")], "of another kind"
    assert _bounds(told, {}) == _bounds(without, {})
    own = {_key(groups[0], "fast"): _ok(_roofline_ms(groups[0]) / 0.3)}
    assert _guesses(told, own)[_key(asked, "fast")] == pytest.approx(_roofline_ms(asked) / 0.3)


def test_what_takes_much_longer_than_the_best_of_the_same_nodes_is_not_timed_well(graph: Graph) -> None:
    groups = [_named(graph, f"big{i}") for i in range(2)]
    estimates = Estimates(_offered(graph, groups), _PEAKS)
    _bounds(estimates, {_key(groups[0], "fast"): _ok(2.0), _key(groups[0], "odd"): _ok(5.0)})
    for backend in _BACKENDS:
        assert 2.0 < estimates.enough_ms(_key(groups[0], backend)) < 5.0
        assert estimates.enough_ms(_key(groups[1], backend)) == math.inf
    assert estimates.enough_ms(("of no candidate", "", "fast")) == math.inf


def test_what_is_rounded_may_be_faster_than_the_peak_of_float32(graph: Graph) -> None:
    """By so many times as many products, and as many fewer bytes; and its neighbours are the rounded ones."""
    groups = [_named(graph, f"big{i}") for i in range(5)]

    def rounded(g: Subgraph) -> Variant:
        v = plain_variant(g)
        inputs, outputs = (tuple(replace(f, dtype="bfloat16") for f in of) for of in (v.inputs, v.outputs))
        return Variant(inputs, outputs)

    offered = [Candidate(g, "fast", v, "rule") for g in groups for v in (plain_variant(g), rounded(g))]
    candidates = CandidateSet(graph, Target("cpu", 1, ("bfloat16",)), tuple(offered), {}, _KINDS)
    exact, narrow = ([_key(g, "fast", of(g)) for g in groups] for of in (plain_variant, rounded))
    flops, some = Peaks(1.0, {1: 1e9}), groups[4]
    bounds = _bounds(Estimates(candidates, flops), {})
    assert bounds[narrow[4]] == pytest.approx(bounds[exact[4]] / 16, rel=1e-3)
    bounds = _bounds(Estimates(candidates, Peaks(1e9, {1: 1.0})), {})
    assert bounds[narrow[4]] == pytest.approx(bounds[exact[4]] / 2)
    assert work_of(some, rounded(some)).bytes == work_of(some).bytes // 2
    known = {key: _ok(100 * _roofline_ms(g)) for g, key in zip(groups, exact, strict=True)}
    bounds = _bounds(Estimates(candidates, flops), known)
    assert bounds[narrow[4]] == pytest.approx(work_of(some).flops / _WINOGRAD / 16 / 1e6, rel=1e-3)
