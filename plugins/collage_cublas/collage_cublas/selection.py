"""Which of the library's algorithms a product gets: the one that is fastest on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from collage_core.errors import BackendError, DeclinedError
from collage_core.formats import plain
from collage_cublas.kernel import aligned_workspace, scratch_bytes
from collage_cublas.library import Addresses, Algorithm, Library
from collage_cublas.product import Product

__all__ = ["Job", "choose"]

_MOST_ALGORITHMS = 8
"""Of one way to store the constants."""
_MOST_WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends for Hopper: https://docs.nvidia.com/cuda/cublas/#cublassetworkspace"""
_LIMIT_MS = 50.0
"""Of the device's time, for all of them."""
_ROUNDS = 8
_PROBED_ELEMENTS = 1 << 20
"""So many of a result's are looked at for what has become of NaN."""


@dataclass(frozen=True)
class Job:
    """One way to run a product. memory: of a, b, c and bias, None where it has none: constants as they are
    stored, and room for the inputs.
    """

    product: Product
    memory: tuple[Any, ...]

    def addresses(self, d: int) -> Addresses:
        a, b, c, bias = (0 if m is None else m.address for m in self.memory)
        return Addresses(a, b, c, d, bias)


@dataclass(frozen=True)
class _Candidate:
    job: int
    algorithm: Algorithm
    call: Callable[[], object]


def choose(library: Library, jobs: Sequence[Job], device: Any, result_bytes: int) -> tuple[int, Algorithm]:
    """The fastest of all algorithms of all jobs: whose it is, by index, and which. result_bytes: of D.

    Where there is but one, nothing is timed. DeclinedError where there is none, or none that keeps NaN.
    """
    ranked = _ranked(library, jobs)
    product = jobs[0].product
    if len(ranked) == 1 and not product.activation:
        return ranked[0]
    result = device.allocate(result_bytes)
    scratch = device.allocate(max(scratch_bytes(algorithm) for _, algorithm in ranked))
    queue = device.queue()
    candidates = []
    for i, algorithm in ranked:
        workspace = aligned_workspace(algorithm, scratch.address)
        addresses = jobs[i].addresses(result.address)
        call = library.bind(jobs[i].product, algorithm, addresses, workspace, queue.handle)
        candidates.append(_Candidate(i, algorithm, call))
    elements = min(result_bytes // np.dtype(product.out_dtype).itemsize, _PROBED_ELEMENTS)
    seen = result.array(0, (elements,), plain(product.out_dtype, (elements,), device.name))

    def is_right() -> bool:
        """Whether the last result is NaN, as one factor of every job is where that matters (`building`)."""
        found = np.empty(seen.shape, np.dtype(seen.dtype))
        device.download(seen, found, queue)
        queue.synchronize()
        return bool(np.isnan(found.astype(np.float64)).all())

    best = _fastest(candidates, library, queue, is_right if product.activation else None)
    if best is None:
        lost = f"; or {product.activation} makes a number of NaN" if product.activation else ""
        raise DeclinedError(f"none of cuBLASLt's algorithms runs{lost}")
    return best.job, best.algorithm


def _ranked(library: Library, jobs: Sequence[Job]) -> list[tuple[int, Algorithm]]:
    """What the library recommends for each job, by its index: the first of each before the second of any."""
    ranked, reason = [], "it has no algorithm"
    for i, job in enumerate(jobs):
        bias = job.addresses(0).bias
        try:
            found = library.algorithms(job.product, bias, _MOST_ALGORITHMS, _MOST_WORKSPACE_BYTES)
        except BackendError as error:  # NOT_SUPPORTED, as one that finds nothing
            reason = str(error)
            continue
        ranked.append([(i, algorithm) for algorithm in found])
    by_rank = [pair for pair in chain.from_iterable(zip_longest(*ranked)) if pair is not None]
    if not by_rank:
        raise DeclinedError(f"cuBLASLt does not run it: {reason}")
    return by_rank


def _fastest(
    candidates: Sequence[_Candidate],
    library: Library,
    queue: Any,
    is_right: Callable[[], bool] | None,
) -> _Candidate | None:
    """By the least time of several rounds; None if none runs. What is ranked last is not tried once the time
    is up. is_right: of a result, asked once of each.
    """
    least_ms: dict[int, float] = {}
    spent_ms = 0.0
    for i, candidate in enumerate(candidates):
        if spent_ms > _LIMIT_MS:
            break
        try:
            candidate.call()
        except library.error:
            continue
        if is_right is None or is_right():
            least_ms[i] = _timed(candidate.call, queue)
            spent_ms += 2 * least_ms[i]
    for _ in range(_ROUNDS):
        for i in least_ms:
            if spent_ms <= _LIMIT_MS:
                took_ms = _timed(candidates[i].call, queue)
                least_ms[i] = min(took_ms, least_ms[i])
                spent_ms += took_ms
    return candidates[min(least_ms, key=least_ms.__getitem__)] if least_ms else None


def _timed(call: Callable[[], object], queue: Any) -> float:
    """Milliseconds on the device. It is held until all is queued: the host's part is not measured."""
    queue.hold()
    first = queue.mark()
    call()
    last = queue.mark()
    queue.synchronize()
    return float(queue.elapsed_ms(first, last))
