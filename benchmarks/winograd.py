"""What a convolution of 3 x 3 takes by each library's best kernel (docs/adr/0024-ncnn.md):

    python benchmarks/winograd.py

Shapes of Inception v2, SqueezeNet and DenseNet-121, with a Relu after them. All kernels of all libraries are
called in turn in one process, so that none finds its weights in the first caches; what is printed is the
median, in ms, of each library's fastest, and its interquartile range. Giga-operations per second are those of
the definition, whatever the algorithm needs.
"""

from __future__ import annotations

import os
import time

import numpy as np
from collage_benchmarks.variants import calls_of

from collage_core.backend import BackendKind
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.plugins import Registry
from collage_core.target import Target
from collage_core.testing import make_group, node

_ROUNDS = 40
_SHAPES = (
    # channels in and out, side of the image
    (64, 192, 56),
    (64, 96, 28),
    (96, 128, 14),
    (192, 256, 14),
    (224, 224, 7),
    (16, 64, 55),
    (64, 256, 13),
    (128, 32, 56),
    (128, 32, 14),
)


def main() -> None:
    target = Target.default()
    infos = {b: b.info() for b in Registry().backends.values()}
    backends = [b for b, i in infos.items() if i.available and i.kind is not BackendKind.REFERENCE]
    for backend in backends:
        os.environ.update(backend.environment(target))
    for channels, out, side in _SHAPES:
        group, x = _group(channels, out, side)
        calls = [(b.name, call) for b in backends for call in calls_of(b, group, x, target)]
        times_ms: list[list[float]] = [[] for _ in calls]
        for _ in range(_ROUNDS):
            for (_, call), taken in zip(calls, times_ms, strict=True):
                start = time.perf_counter()
                call()
                taken.append(1e3 * (time.perf_counter() - start))
        fastest: dict[str, tuple[float, float]] = {}
        for (name, _), taken in zip(calls, times_ms, strict=True):
            low, middle, high = np.percentile(taken[2:], (25, 50, 75))
            fastest[name] = min(fastest.get(name, (np.inf, 0.0)), (middle, high - low))
        giga = 2 * 9e-9 * channels * out * side * side
        said = "   ".join(
            f"{name} {ms:.3f} ({iqr:.3f}), {giga / ms * 1e3:.0f} GFLOP/s"
            for name, (ms, iqr) in fastest.items()
        )
        print(f"{channels:3} -> {out:3} at {side:2} x {side:2}:   {said}", flush=True)


def _group(channels: int, out: int, side: int) -> tuple[Subgraph, Array]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, channels, side, side), np.float32)
    w = rng.standard_normal((out, channels, 3, 3), np.float32) / np.float32(np.sqrt(9 * channels))
    nodes = [node("Conv", ["x", "w", "b"], "c", pads=[1] * 4), node("Relu", ["c"], "y")]
    return make_group(nodes, {"x": x}, {"w": w, "b": rng.standard_normal(out, np.float32)}), x


if __name__ == "__main__":
    main()
