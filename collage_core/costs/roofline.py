"""The roofline: the least time that a group could take on this machine, by its arithmetic and its bytes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_core import clock
from collage_core.backend import Variant
from collage_core.costs.database import CostDatabase
from collage_core.costs.fingerprint import MEASURER_VERSION, cache_sizes_bytes, device_fingerprint
from collage_core.costs.lock import measuring_lock
from collage_core.costs.processors import Processors
from collage_core.costs.reading import CONVOLUTIONS, PRODUCTS, read_shares, reads_all
from collage_core.costs.record import RETAKEN, CostKey, CostRecord, Policy
from collage_core.formats import empty, plain
from collage_core.ir import Graph, Node, OpKind, Subgraph, op_kind
from collage_core.reference import ReferenceBackend
from collage_core.target import Target
from collage_core.worker import Worker

__all__ = [
    "PEAKS",
    "PEAKS_VERSION",
    "Peaks",
    "Work",
    "flops_of",
    "known_peaks",
    "machine_peaks",
    "peaks_environment",
    "peaks_of",
    "shows_peaks",
    "work_of",
]

PEAKS = "peaks"
"""Kind of the key under which a machine's peaks are kept."""

PEAKS_VERSION = "2"
"""To be raised when peaks are measured otherwise: shares of the roofline are other shares then."""

_COPIES = frozenset({"Cast", "Identity"})
_PRODUCT = 1536
_REPEATS = 8
_COPY_S = 0.05
_LARGEST_COPY_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """flops: additions and multiplications of convolutions and products, one for every other element.
    bytes: each input and constant read once, as much of it as is needed; each output written once.
    """

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this machine reached: gflops in a float32 product of large matrices; copy_gb_per_s: bytes read and
    written by a copy, by the size in bytes of the caches that held the two buffers. The largest: memory.
    """

    gflops: float
    copy_gb_per_s: Mapping[int, float]

    def raised(self, measured: Iterable[tuple[Work, float]]) -> Peaks:
        """The peaks, where kernels that took so many ms do not show that they are higher: a busy machine may
        have been measured.
        """
        gflops, copies = self.gflops, dict(self.copy_gb_per_s)
        for work, ms in measured:
            gflops = max(gflops, work.flops / ms / 1e6)
            size = self._size(work)
            copies[size] = max(copies[size], work.bytes / ms / 1e6)
        return Peaks(gflops, copies)

    def least_ms(self, work: Work) -> float:
        """The time below which a kernel for `work` is not to be expected."""
        return max(self.arithmetic_ms(work), self.memory_ms(work))

    def arithmetic_ms(self, work: Work) -> float:
        """For what it computes."""
        return work.flops / self.gflops / 1e6

    def memory_ms(self, work: Work) -> float:
        """For what it reads and writes."""
        return work.bytes / self.copy_gb_per_s[self._size(work)] / 1e6

    def _size(self, work: Work) -> int:
        """Of the smallest caches that the work fits into; of memory if there are none."""
        fitting = [size for size in self.copy_gb_per_s if size >= work.bytes]
        return min(fitting) if fitting else max(self.copy_gb_per_s)


def work_of(subgraph: Subgraph, variant: Variant | None = None) -> Work:
    """variant: in which its values are stored, constants rounded as much as any of these; None: in their own
    types.
    """
    graph = subgraph.graph
    flops = sum(_flops(graph, n) for n in subgraph.nodes)
    read = read_shares(subgraph)
    constants = sum(int(read.get(v, 1.0) * _stored_bytes(graph, v)) for v in subgraph.constants)
    types = [graph.type_of(v) for v in (*subgraph.inputs, *subgraph.outputs)]
    sizes = [t.size_bytes for t in types]
    if variant is not None:
        formats = (*variant.inputs, *variant.outputs)
        sizes = [f.size_bytes(t.static_shape) for f, t in zip(formats, types, strict=True)]
        narrower = [s / t.size_bytes for s, t in zip(sizes, types, strict=True) if s]
        constants = int(constants * min((1.0, *narrower)))
    shares = [*(read.get(v, 1.0) for v in subgraph.inputs), *[1.0] * len(subgraph.outputs)]
    moved = sum(int(share * size) for share, size in zip(shares, sizes, strict=True))
    return Work(flops, constants + moved)


def flops_of(subgraph: Subgraph) -> int | None:
    """All of its arithmetic, where `Work` has the least that it can be; None where that is not known."""
    graph, flops = subgraph.graph, 0
    for node in subgraph.nodes:
        kind = op_kind(graph, node)
        if node.op_type in CONVOLUTIONS | PRODUCTS or kind <= OpKind.BROADCAST:
            flops += 0 if node.op_type in _COPIES else _flops(graph, node)
        elif kind != OpKind.INJECTIVE:
            return None
    return flops


def shows_peaks(subgraph: Subgraph) -> bool:
    """Whether what it takes shows what a machine reaches at least: a convolution may do with fewer products,
    and an operator that leaves elements out with fewer bytes.
    """
    return reads_all(subgraph) and not any(n.op_type in CONVOLUTIONS for n in subgraph.nodes)


def _stored_bytes(graph: Graph, constant: str) -> int:
    """As few as it is stored in."""
    node = graph.dequantised.get(constant)
    return graph.type_of(constant if node is None else node.inputs[0]).size_bytes


def _flops(graph: Graph, node: Node) -> int:
    def shape(position: int) -> tuple[int, ...]:
        return graph.shape_of(node.inputs[position])

    count = sum(math.prod(graph.shape_of(v)) for v in node.outputs if v)
    match node.op_type:
        case "Conv":
            return 2 * count * math.prod(shape(1)[1:])
        case "ConvTranspose":
            return 2 * math.prod(shape(0)) * math.prod(shape(1)[1:])
        case "MatMul":
            return 2 * count * shape(0)[-1]
        case "Gemm":
            return 2 * count * shape(0)[0 if node.attributes.get("transA", 0) else 1]
    return count


def peaks_environment(target: Target) -> dict[str, str]:
    """What stored peaks are valid for."""
    return {
        "measurer": MEASURER_VERSION,
        "peaks": PEAKS_VERSION,
        "threads": str(target.threads),
        **device_fingerprint(target.device),
    }


def machine_peaks(
    target: Target, database: CostDatabase, on_wait: Callable[[str], object] | None = None
) -> Peaks:
    """What the database knows, or what a second of measuring tells, which is then kept there."""
    known = known_peaks(target, database)
    if known is None:
        with (
            measuring_lock(on_wait),
            closing(Processors(on_wait)) as processors,
            Worker(ReferenceBackend().environment(target)) as worker,
        ):
            for attempt in processors.attempts(worker):
                found = {**worker.call(_measure, target.threads), RETAKEN: attempt.number}
        database.put(_key(target), CostRecord("ok", runs=_REPEATS, details=found))
        known = peaks_of(found)
    return known


def known_peaks(target: Target, database: CostDatabase) -> Peaks | None:
    """What the database knows; None before anyone has measured."""
    known = database.get(_key(target))
    return None if known is None else peaks_of(known.details)


def _key(target: Target) -> CostKey:
    return CostKey(PEAKS, "", "", "", peaks_environment(target), Policy())


def peaks_of(details: Mapping[str, Any]) -> Peaks:
    """As they are stored, and told in reports."""
    return Peaks(details["gflops"], {int(k): v for k, v in details["copy_gb_per_s"].items()})


def _measure(threads: int) -> dict[str, object]:
    sizes = cache_sizes_bytes()
    second, last = sizes[:2][-1], sizes[-1]
    memory = min(4 * max(last, threads * second), _LARGEST_COPY_BYTES)
    # A copy within half of a cache stays there.
    copies = {threads * second: threads * second // 2, last: last // 2, memory: memory}
    return {
        "gflops": _product_gflops(),
        "copy_gb_per_s": {str(held): _copy_gb_per_s(size, threads) for held, size in sorted(copies.items())},
    }


def _product_gflops() -> float:
    a = np.full((_PRODUCT, _PRODUCT), 0.5, np.float32)
    b = a.copy()
    out = np.empty_like(a)
    best_s = math.inf
    for _ in range(_REPEATS):
        start = time.perf_counter()
        np.matmul(a, b, out=out)
        best_s = min(best_s, time.perf_counter() - start)
    return 2 * _PRODUCT**3 / best_s / 1e9


def _copy_gb_per_s(size_bytes: int, threads: int) -> float:
    """Each thread copies a part of its own, over and over, while the others do: the sum of their best."""
    elements = max(1, size_bytes // 8 // threads)
    barrier = threading.Barrier(threads)
    parts_gb_per_s = [0.0] * threads

    def copy(index: int) -> None:
        # Where the two lie differently within a cache line, Zen 3 copies a tenth as fast.
        source, destination = (empty((elements,), plain("float32", (elements,))) for _ in range(2))
        source[...] = destination[...] = 1.0
        barrier.wait()
        best_s, deadline = math.inf, clock.monotonic() + _COPY_S
        for _ in range(100_000):
            start = time.perf_counter()
            np.copyto(destination, source)
            best_s = min(best_s, time.perf_counter() - start)
            if clock.monotonic() > deadline:
                break
        parts_gb_per_s[index] = 8 * elements / best_s / 1e9

    team = [threading.Thread(target=copy, args=(i,)) for i in range(threads)]
    for t in team:
        t.start()
    for t in team:
        t.join()
    return sum(parts_gb_per_s)
