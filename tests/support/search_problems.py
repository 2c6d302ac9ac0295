"""Random placement problems for the searches to be tested on."""

from __future__ import annotations

import random
from collections.abc import Mapping

from collage_core.search import NO_BACKEND, Choice, Problem, ProblemValue

__all__ = ["random_problem"]


def random_problem(seed: int, nodes: int, formats: int, backends: int) -> Problem:
    """Branches, several and shared inputs and outputs, outputs read inside, inputs returned as they are,
    groups of any shape (knotted, not convex, not connected), missing conversions, views, ties in cost.
    """
    rng = random.Random(seed)
    coarse = rng.random() < 0.5

    def cost(scale: float) -> float:
        return float(rng.randint(0, 4)) if coarse else rng.random() * scale

    producers: list[int | None] = [None] * rng.randint(1, 2)
    readers: list[list[int]] = [[] for _ in producers]
    hub = rng.choice((None, 2))
    kernel_ms = rng.choice((0.5, 4.0))
    for n in range(nodes):
        read = set(rng.sample(range(len(producers)), min(len(producers), rng.choice((1, 1, 2, 2, 3)))))
        if hub is not None and rng.random() < 0.8:
            read = {min(hub, len(producers) - 1), *list(read)[:1]}
        for v in read:
            readers[v].append(n)
        for _ in range(rng.choice((1, 1, 1, 2))):
            producers.append(n)
            readers.append([])
    values = [
        ProblemValue(
            producer,
            tuple(reads),
            rng.randrange(formats) if producer is None else None,
            rng.randrange(formats) if not reads or rng.random() < 0.15 else None,
        )
        for producer, reads in zip(producers, readers, strict=True)
    ]
    convertible = rng.choice((0.6, 0.9, 1.0))
    conversion_ms = {
        (v, p, q): cost(3.0)
        for v in range(len(values))
        for p in range(formats)
        for q in range(formats)
        if p != q and rng.random() < convertible
    }
    ways = _ways(random.Random(seed), conversion_ms, formats) if seed % 2 else {}
    masks = [1 << n for n in range(nodes) if rng.random() < 0.98]
    for _ in range(rng.randint(0, 2 * nodes)):
        picked = rng.sample(range(nodes), min(nodes, rng.choice((2, 2, 3, 4))))
        masks.append(sum(1 << n for n in picked))
    choices = []
    for mask in masks:
        for _ in range(rng.choice((1, 2, 3, 4))):
            backend = rng.choice((NO_BACKEND, *range(backends), *range(backends)))
            reads, writes = {}, {}
            for v, value in enumerate(values):
                inside = value.producer is not None and bool(mask >> value.producer & 1)
                if not inside and any(mask >> n & 1 for n in value.consumers):
                    reads[v] = rng.randrange(formats)
                if inside and (
                    value.output_format is not None or any(not mask >> n & 1 for n in value.consumers)
                ):
                    writes[v] = rng.randrange(formats)
            size = mask.bit_count()
            choices.append(Choice(mask, backend, reads, writes, cost(kernel_ms * size)))
    return Problem(
        nodes,
        tuple(values),
        tuple(choices),
        conversion_ms,
        {b: cost(1.0) for b in range(backends)},
        {b: rng.choice((0.0, 0.3, cost(2.0), cost(2.0))) for b in range(backends)},
        ways,
    )


def _ways(
    rng: random.Random, conversion_ms: Mapping[tuple[int, int, int], float], formats: int
) -> dict[tuple[int, int, int], int]:
    """From each source a tree of hops, some of which share what comes before."""
    found = {}
    for v, p in sorted({(v, p) for v, p, _ in conversion_ms}):
        there = [q for q in rng.sample(range(formats), formats) if (v, p, q) in conversion_ms]
        for i, q in enumerate(there):
            if i and rng.random() < 0.6:
                found[v, p, q] = rng.choice(there[:i])
    return found
