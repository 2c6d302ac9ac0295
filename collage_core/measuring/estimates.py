"""What candidates that nobody has measured may cost: bounds, for what need not be measured, and guesses, for
what to measure first.

Nothing here is believed. A bound that is too high hides a candidate, so each is drawn from below: by the
roofline where nothing is known, else by what the same backend has reached with neighbours (the same operator
and layouts, the next in size): the largest share of the roofline, or the least that it took of what others
take. Either is widened by as much as the best neighbour is from the middle one. Kernels raise the peaks.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

from collage_core.backend import BackendKind
from collage_core.candidates import Candidate, CandidateSet
from collage_core.costs.reading import CONVOLUTIONS, reads_all
from collage_core.costs.roofline import Peaks, Work, work_of
from collage_core.formats import CPU, Format, device_of
from collage_core.ir import Graph, Node, NodeSet, Subgraph
from collage_core.measuring.costing import Converter, Costs
from collage_core.measuring.in_place import KernelKey
from collage_core.placement import VIEW
from collage_core.search.formulate import ConversionKey

__all__ = ["Estimates", "Hope", "as_likely"]

Hope = Callable[[float], float]
"""What a kernel that nobody has measured is taken to cost in ms, given what it most likely does."""

_FEWER_PRODUCTS = 5.0
"""So many times as fast as its products alone allow may a convolution be: Winograd's algorithm does with 64
products what takes 324, F(6 x 6, 3 x 3) of Lavin and Gray (arXiv 1509.09308).
"""
_NARROWER_PRODUCTS, _WHOLE_PRODUCTS = 16.0, 32.0
"""So many times as many products in a second may a processor make of rounded and of quantised numbers: AMX
makes 512 of bfloat16 in a cycle and 1024 of int8, where AVX-512 makes 32 of float32.
"""
_FEWEST, _MOST = 3, 8
"""Neighbours of other structures: of fewer, the best says little of what is possible; of more, those far in
size say less than the next.
"""
_TIMES_AS_LARGE = 4
"""An image of so many times as many positions is another kind of image."""
_NEXT = 4
"""So many of them say what is likely, and what is to be hoped for."""
_ROUNDING = 1.0 + 1e-9
_PARTS_MARGIN = 1.15
"""So many times as fast as its slowest part alone may a group be."""
_FAR = 1.6
_REFERENCE = 50.0
"""So many times the roofline the reference is guessed to take: NumPy, node by node."""
_FAILING = 1000.0
"""The same of what all neighbours in the same layouts have failed at: anything else is tried before."""
_NO_WORK = Work(0, 0)
_NEAREST = 2.0
"""What has no neighbours is guessed to reach the roofline's half."""

_Kind = tuple[object, ...]
_Reached = list[tuple[float, float]]
"""By kernels of one kind: each one's roofline in ms, in order, and what it has reached."""
_Groups = dict[tuple[str, str, int], dict[NodeSet, dict[KernelKey, None]]]
"""By backend, device and id of the heaviest node: its kernels of each node set."""
_Place = tuple[NodeSet, str]
"""Nodes, and the device that works on them."""


@dataclass(slots=True)
class _Kernel:
    """A candidate's kernel. work: the least that it may do. tells_peaks: whether it does at least that.
    roofline_ms: of that, at the peaks that are known. nearest, near: of which neighbours it is, in the same
    layouts and in any. parts: kernels of the same backend that run a part of it, by part. is_rounded: or
    quantised.
    """

    key: KernelKey
    nodes: NodeSet
    device: str
    work: Work
    tells_peaks: bool
    roofline_ms: float
    nearest: _Kind
    near: _Kind
    is_rounded: bool
    parts: tuple[tuple[KernelKey, ...], ...]


def as_likely(likely_ms: float) -> float:
    """No hope (`Hope`) beyond that."""
    return likely_ms


class Estimates:
    """Of all candidates of one graph. peaks: what this machine can do. priors: what was reached with other
    networks or elsewhere (`reached`), for guesses where nothing is known of this one.
    """

    def __init__(
        self,
        candidates: CandidateSet,
        peaks: Peaks,
        priors: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> None:
        self._graph = candidates.graph
        self._peaks = self._told_peaks = peaks
        self._priors = priors
        self._reference = reference = {
            name for name, kind in candidates.kinds.items() if kind is BackendKind.REFERENCE
        }
        kept = [c for c in candidates.candidates if c.backend != VIEW]
        self._kernels: dict[KernelKey, _Kernel] = {}
        heaviest = _Heaviest()
        groups = _groups_by_heaviest(kept, heaviest)
        for c in kept:
            key = c.kernel_key
            if key in self._kernels:
                continue
            node, device = heaviest.of(c.subgraph), c.variant.device
            # What it would be here says nothing of another device.
            work = _least_work(c, node) if device == CPU else _NO_WORK
            apart = *([] if device == CPU else [device]), *sorted(c.rounded_to)
            near = c.backend, *_kind_of(self._graph, node), *apart
            self._kernels[key] = _Kernel(
                key,
                c.subgraph.node_set,
                device,
                work,
                device == CPU and reads_all(c.subgraph),
                peaks.least_ms(work),
                (*near, _magnitude(self._graph, node), _layouts(c)),
                near,
                c.is_rounded or bool(c.subgraph.dequantised),
                () if c.backend in reference else _parts_of(c, node.id, groups),
            )
        self._shares: dict[_Kind, _Reached] = {}
        self._relative: dict[_Kind, _Reached] = {}
        self._failing: set[_Kind] = set()
        self._best_ms: dict[_Place, float] = {}
        self._least_ms: dict[KernelKey, float] = {}

    def bound(self, costs: Costs, converters: Iterable[Converter], *, hopeful: bool = False) -> None:
        """Put bounds into `costs`, drawn from what is known there: of every kernel without a record, and of
        these conversions (each element is read once and written once). hopeful: no better than the best of
        its neighbours, which is mostly true, and leaves out more.
        """
        self._draw(costs)
        self._least_ms = {}
        self._put(costs, converters, lambda kernel: self._bound_ms(kernel.key, costs, hopeful))

    def guess(self, costs: Costs, converters: Iterable[Converter], hoped_ms: Hope = as_likely) -> None:
        """The same with what they most likely cost, or with what kernels are hoped to cost, given that."""
        self._draw(costs)
        self._put(costs, converters, lambda kernel: hoped_ms(self._likely_ms(kernel)))

    def reached(self, costs: Costs) -> dict[str, dict[str, float]]:
        """By backend, and kind of kernel: the share of the roofline, the median of the known in `costs`."""
        self._draw(costs)
        found: dict[str, dict[str, float]] = {}
        for kind, shares in self._shares.items():
            found.setdefault(str(kind[0]), {})[_told(kind)] = median(share for _, share in shares)
        return found

    def first_of(self, keys: Iterable[KernelKey], costs: Costs) -> list[KernelKey]:
        """Those to be measured first: of a kind of which `costs` has less than a few records, no more than
        are missing. What these tell may rule out the others.
        """
        known = Counter(kernel.nearest for key, kernel in self._kernels.items() if key in costs.kernels)
        then = Counter(known)
        found: list[KernelKey] = []
        for key in dict.fromkeys(keys):
            kernel = self._kernels.get(key)
            if kernel is None or known[kernel.nearest] >= _NEXT:
                found.append(key)
            elif then[kernel.nearest] < _NEXT:
                then[kernel.nearest] += 1
                found.append(key)
        return found

    def enough_ms(self, key: KernelKey) -> float:
        """What takes longer need not be timed well: so many times as long as the best that is known to run
        the same nodes.
        """
        kernel = self._kernels.get(key)
        return (
            math.inf if kernel is None else _FAR * self._best_ms.get((kernel.nodes, kernel.device), math.inf)
        )

    def _put(
        self, costs: Costs, converters: Iterable[Converter], estimate: Callable[[_Kernel], float]
    ) -> None:
        unknown = [kernel for key, kernel in self._kernels.items() if key not in costs.kernels]
        costs.kernel_bounds_ms = {kernel.key: estimate(kernel) for kernel in unknown}
        costs.converter_bounds_ms = {c: self._peaks.least_ms(_moved(c[0])) for c in converters}

    def _draw(self, costs: Costs) -> None:
        self._shares, self._relative = {}, {}
        self._failing = {
            kernel.nearest
            for key, kernel in self._kernels.items()
            if (record := costs.kernels.get(key)) is not None and not record.ok
        }
        known = [
            (kernel, record.median_ms)
            for key, kernel in self._kernels.items()
            if (record := costs.kernels.get(key)) is not None and record.ok and record.median_ms
        ]
        self._raise_peaks(known)
        of_nodes: dict[_Place, dict[str, float]] = {}
        for kernel, ms in known:
            if kernel.roofline_ms > 0.0:  # what has no elements reaches no share
                for kind in (kernel.nearest, kernel.near):
                    self._shares.setdefault(kind, []).append((kernel.roofline_ms, kernel.roofline_ms / ms))
            of_backend = of_nodes.setdefault((kernel.nodes, kernel.device), {})
            of_backend[kernel.key[2]] = min(ms, of_backend.get(kernel.key[2], math.inf))
        self._best_ms = {nodes: min(of_backend.values()) for nodes, of_backend in of_nodes.items()}
        for kernel, ms in known:
            here = of_nodes[kernel.nodes, kernel.device]
            others = [t for b, t in here.items() if b != kernel.key[2]]
            if others and kernel.roofline_ms > 0.0:
                relative = kernel.roofline_ms, ms / min(others)
                self._relative.setdefault(kernel.nearest, []).append(relative)
        for reached in (*self._shares.values(), *self._relative.values()):
            reached.sort()

    def _raise_peaks(self, known: Iterable[tuple[_Kernel, float]]) -> None:
        """They may have been measured on a busy machine."""
        shown = [(kernel.work, ms) for kernel, ms in known if kernel.tells_peaks and not kernel.is_rounded]
        peaks = self._told_peaks.raised(shown)
        if peaks != self._peaks:
            self._peaks = peaks
            for kernel in self._kernels.values():
                kernel.roofline_ms = peaks.least_ms(kernel.work)

    def _bound_ms(self, key: KernelKey, costs: Costs, hopeful: bool) -> float:
        known = costs.kernels.get(key)
        if known is not None:
            return known.median_ms if known.ok and known.median_ms is not None else math.inf
        if key not in self._least_ms:
            kernel = self._kernels[key]
            # Where products decide, the roofline of rounded numbers is too low: nobody knows how many more a
            # processor makes. What kernels reach of it there says nothing of those where bytes decide.
            if kernel.is_rounded:
                self._least_ms[key] = kernel.roofline_ms
                return kernel.roofline_ms
            parts = [min(self._bound_ms(k, costs, hopeful) for k in part) for part in kernel.parts]
            parts_ms = max((ms for ms in parts if ms < math.inf), default=0.0) / _PARTS_MARGIN
            self._least_ms[key] = max(kernel.roofline_ms, self._by_neighbours_ms(kernel, hopeful), parts_ms)
        return self._least_ms[key]

    def _by_neighbours_ms(self, kernel: _Kernel, hopeful: bool) -> float:
        """Those in the same layouts: what was slow in another one says nothing."""
        count, least = (_NEXT, min) if hopeful else (_MOST, _beyond)
        found: list[float] = []
        shares = _next_in_size(self._shares.get(kernel.nearest, ()), kernel, count)
        if len(shares) >= _FEWEST:
            found.append(kernel.roofline_ms * least(1.0 / s for s in shares))
        relative = _next_in_size(self._relative.get(kernel.nearest, ()), kernel, count)
        best_ms = self._best_ms.get((kernel.nodes, kernel.device))
        if len(relative) >= _FEWEST and best_ms is not None:
            found.append(least(relative) * best_ms)
        return min(found, default=0.0)

    def _likely_ms(self, kernel: _Kernel) -> float:
        if kernel.nearest in self._failing and kernel.nearest not in self._shares:
            return _FAILING * (kernel.roofline_ms or 1.0)
        reached = self._shares.get(kernel.nearest) or self._shares.get(kernel.near) or ()
        if shares := _next_in_size(reached, kernel, _NEXT):
            return kernel.roofline_ms / median(shares)
        if share := self._prior(kernel):
            return kernel.roofline_ms / share
        return (_REFERENCE if kernel.key[2] in self._reference else _NEAREST) * kernel.roofline_ms

    def _prior(self, kernel: _Kernel) -> float | None:
        shares = self._priors.get(kernel.key[2], {})
        return shares.get(_told(kernel.nearest)) or shares.get(_told(kernel.near))


def _next_in_size(reached: _Reached | tuple[()], kernel: _Kernel, count: int) -> list[float]:
    """What so many neighbours, those whose roofline is the next to this one's, have reached; and all that are
    as near as the last of them: many kernels have the same roofline.
    """
    if len(reached) <= count:
        return [value for _, value in reached]
    if kernel.roofline_ms <= 0.0:
        return []
    at = bisect_left(reached, (kernel.roofline_ms,))
    around = reached[max(0, at - count) : at + count]
    far = sorted(math.exp(abs(math.log(ms / kernel.roofline_ms))) for ms, _ in around)[count - 1] * _ROUNDING
    first = bisect_left(reached, (kernel.roofline_ms / far,))
    last = bisect_right(reached, (kernel.roofline_ms * far, math.inf))
    return [value for _, value in reached[first:last]]


def _beyond(ratios: Iterable[float]) -> float:
    """The least that a further one may be: as far below the least of these as that is below their median."""
    ordered = sorted(ratios)
    return ordered[0] ** 2 / median(ordered)


def _told(kind: _Kind) -> str:
    """A kind as it is kept, by backend."""
    return str([*kind[1:]])


class _Heaviest:
    """Of each group the node that decides what it takes: the most arithmetic, or the most bytes where all
    have little. A node is in many groups, and a group is offered by many.
    """

    def __init__(self) -> None:
        self._works: dict[int, Work] = {}
        self._found: dict[NodeSet, Node] = {}

    def of(self, subgraph: Subgraph) -> Node:
        if subgraph.node_set not in self._found:
            self._found[subgraph.node_set] = max(
                subgraph.nodes, key=lambda n: self._weight(subgraph.graph, n)
            )
        return self._found[subgraph.node_set]

    def _weight(self, graph: Graph, node: Node) -> tuple[int, int]:
        if node.id not in self._works:
            self._works[node.id] = work_of(Subgraph(graph, NodeSet([node.id])))
        return self._works[node.id].flops, self._works[node.id].bytes


def _kind_of(graph: Graph, node: Node) -> _Kind:
    """Operator, and of convolutions what decides which algorithms there are."""
    if node.op_type not in CONVOLUTIONS:
        return (node.op_type,)
    spatial = graph.shape_of(node.inputs[1])[2:]
    channels = graph.shape_of(node.inputs[0])[1]
    groups = int(node.attributes.get("group", 1))
    strided = any(s > 1 for s in node.attributes.get("strides", ()))
    grouping = "dense" if groups == 1 else "depthwise" if groups == channels else "grouped"
    return node.op_type, spatial, grouping, strided


def _magnitude(graph: Graph, node: Node) -> int | None:
    """Of a convolution's image: a small one says nothing of a large one, of as much arithmetic in all."""
    if node.op_type not in CONVOLUTIONS:
        return None
    positions = math.prod(graph.shape_of(node.outputs[0])[2:])
    return round(math.log(max(positions, 1), _TIMES_AS_LARGE))


def _layouts(candidate: Candidate) -> _Kind:
    v, subgraph = candidate.variant, candidate.subgraph
    return (
        tuple(_stored(subgraph, *first) for first in zip(subgraph.inputs[:1], v.inputs, strict=False)),
        tuple(_stored(subgraph, *first) for first in zip(subgraph.outputs[:1], v.outputs, strict=False)),
        tuple(name for name, _ in v.options),
    )


def _stored(subgraph: Subgraph, value: str, format: Format) -> str:
    """Its layout, and its type where that is not the value's own."""
    is_rounded = format.dtype != subgraph.graph.type_of(value).dtype
    return f"{format.dtype} {format.layout}" if is_rounded else str(format.layout)


def _least_work(candidate: Candidate, heaviest: Node) -> Work:
    """With no more products than the best algorithm needs, each in as little time as its rounding allows."""
    work = work_of(candidate.subgraph, candidate.variant)
    fewer = _FEWER_PRODUCTS if heaviest.op_type == "Conv" else 1.0
    if candidate.subgraph.dequantised:
        fewer *= _WHOLE_PRODUCTS
    elif candidate.is_rounded:
        fewer *= _NARROWER_PRODUCTS
    return Work(int(work.flops // fewer), work.bytes)


def _moved(conversion: ConversionKey) -> Work:
    """What is read and written, at least."""
    type, source, destination = conversion
    if device_of((source, destination)) != CPU:
        return _NO_WORK
    return Work(0, source.size_bytes(type.static_shape) + destination.size_bytes(type.static_shape))


def _groups_by_heaviest(candidates: Iterable[Candidate], heaviest: _Heaviest) -> _Groups:
    found: _Groups = {}
    for c in candidates:
        place = c.backend, c.variant.device, heaviest.of(c.subgraph).id
        found.setdefault(place, {}).setdefault(c.subgraph.node_set, {})[c.kernel_key] = None
    return found


def _parts_of(candidate: Candidate, heaviest: int, groups: _Groups) -> tuple[tuple[KernelKey, ...], ...]:
    nodes = candidate.subgraph.node_set
    within = groups[candidate.backend, candidate.variant.device, heaviest]
    return tuple(tuple(keys) for part, keys in within.items() if part <= nodes and part != nodes)
