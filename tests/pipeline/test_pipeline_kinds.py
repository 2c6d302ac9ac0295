"""Which kernels are of one kind, so that what one has reached says something of another."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from collage_core import Target, plain_variant
from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.record import CostRecord
from collage_core.costs.roofline import Peaks
from collage_core.ir import Subgraph, from_model
from collage_core.measuring.costing import Costs
from collage_core.measuring.estimates import Estimates

if TYPE_CHECKING:
    from tests.pipeline.conftest import Parse

_WIDTHS = (8, 16, 24, 32, 40, 48)


def test_small_images_say_nothing_of_large_ones(parse: Parse) -> None:
    """Winograd's algorithm reaches 0.17 of the roofline on images of 7 x 7 and 0.77 on those of 56 x 56, with
    as much arithmetic in all (ncnn, Inception v2, two Zen 5 cores).
    """
    shapes: dict[str, tuple[int, ...]] = {"v": (8, 8, 3, 3)}
    lines = ["[large] y = Conv<pads=[1,1,1,1]>(z, v)"]
    for i, (before, after) in enumerate(pairwise(_WIDTHS)):
        shapes[f"w{i}"] = (after, before, 3, 3)
        lines.append(f"[small{i}] a{i + 1} = Conv<pads=[1,1,1,1]>(a{i}, w{i})")
    text = f"(float[1,8,12,12] a0, float[1,8,48,48] z) => (float a5, float y) {{ {' '.join(lines)} }}"
    graph = from_model(parse(text, **shapes))
    offers = {
        n.name: Candidate(group := Subgraph(graph, [n.id]), "fast", plain_variant(group), "pattern")
        for n in graph.nodes
    }
    kinds = {"fast": BackendKind.OPERATOR}
    candidates = CandidateSet(graph, Target("cpu", 1), tuple(offers.values()), {}, kinds)
    estimates = Estimates(candidates, Peaks(100.0, {1: 1e9}))
    unbounded = Costs({}, {})
    estimates.bound(unbounded, ())
    rooflines_ms = unbounded.kernel_bounds_ms
    known = {
        offers[f"small{i}"].kernel_key: CostRecord(
            "ok", 5 * rooflines_ms[offers[f"small{i}"].kernel_key], 0.0, 20
        )
        for i in range(4)
    }
    costs = Costs(known, {})
    estimates.bound(costs, ())
    small, large = offers["small4"].kernel_key, offers["large"].kernel_key
    assert costs.kernel_bounds_ms[small] > 4 * rooflines_ms[small]
    assert costs.kernel_bounds_ms[large] == rooflines_ms[large]


def test_what_kernels_show_raises_peaks_that_were_measured_too_low(parse: Parse) -> None:
    """A busy machine may have been measured: nothing is slower than the roofline for that."""
    shapes = {f"w{i}": (width, width) for i, width in enumerate(_WIDTHS)}
    inputs = ", ".join(f"float[{width},{width}] x{i}" for i, width in enumerate(_WIDTHS))
    lines = [f"[product{i}] y{i} = MatMul(x{i}, w{i})" for i in range(len(_WIDTHS))]
    outputs = ", ".join(f"float y{i}" for i in range(len(_WIDTHS)))
    graph = from_model(parse(f"({inputs}) => ({outputs}) {{ {' '.join(lines)} }}", **shapes))
    offers = [
        Candidate(group := Subgraph(graph, [n.id]), "fast", plain_variant(group), "pattern")
        for n in graph.nodes
    ]
    candidates = CandidateSet(graph, Target("cpu", 1), tuple(offers), {}, {"fast": BackendKind.OPERATOR})
    busy = Estimates(candidates, Peaks(1.0, {1: 1e9}))
    costs = Costs({}, {})
    busy.bound(costs, ())
    too_high_ms = dict(costs.kernel_bounds_ms)
    shown, *others = (c.kernel_key for c in offers)
    costs = Costs({shown: CostRecord("ok", too_high_ms[shown] / 3, 0.0, 20)}, {})
    busy.bound(costs, ())
    for key in others:
        assert costs.kernel_bounds_ms[key] <= too_high_ms[key] / 2.9
    # What is known decides, not what was known before.
    costs = Costs({}, {})
    busy.bound(costs, ())
    busy.bound(costs, ())
    assert costs.kernel_bounds_ms == too_high_ms
