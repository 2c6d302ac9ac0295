"""What runs a network on a GPU, from arrays on the host to arrays on the host: Collage's bundle, and PyTorch
in several ways. Each call returns when its answer is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collage_core import load
from collage_core.formats import Array
from collage_core.ir import Graph

__all__ = ["WAYS", "Contender", "collage_of", "torch_of"]

WAYS = ("eager", "graph", "compile", "max-autotune")
"""PyTorch as it comes; its calls captured as one CUDA graph; `torch.compile` in the modes `reduce-overhead`
(CUDA graphs) and `max-autotune`.
"""
_WARM_UP_RUNS = 5


class Contender:
    """run: once, host to host. outputs: copies of what the last run answered, in the graph's order."""

    def __init__(self, run: Callable[[], object], outputs: Callable[[], list[Array]]) -> None:
        self.run, self.outputs = run, outputs


def collage_of(bundle: Path, inputs: Mapping[str, Array]) -> tuple[Contender, dict[str, int]]:
    """And how many calls a run makes, and how often the host waits in it."""
    context = load(bundle).context()
    for name, array in inputs.items():
        context.inputs[name][...] = array
    contender = Contender(context.execute, lambda: [np.array(a) for a in context.outputs.values()])
    for _ in range(_WARM_UP_RUNS):
        contender.run()
    return contender, {"launches": context.launches, "waits": context.waits}


def torch_of(graph: Graph, inputs: Mapping[str, Array], way: str, dtype: str) -> Contender:
    """dtype: in which floats are held and computed; float32 without TF32. What is brought there and back is
    float32 in any case. Images are channels-last where they are halves, which is how PyTorch likes them.
    """
    import torch

    from collage_benchmarks.gpu.torch_code import module_of

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    module, held = module_of(graph, dtype).cuda(), getattr(torch, dtype)
    if dtype != "float32":
        module = module.to(memory_format=torch.channels_last)
    sources = [torch.from_numpy(np.array(inputs[name])).pin_memory() for name in graph.inputs]
    static = [_placed(torch, source, held) for source in sources]
    with torch.inference_mode():
        step = _step(torch, module, static, way)
        results: list[Any] = [
            torch.empty(r.shape, dtype=torch.float32 if r.is_floating_point() else r.dtype).pin_memory()
            for r in step()
        ]

    def run() -> None:
        with torch.inference_mode():
            for source, there in zip(sources, static, strict=True):
                there.copy_(source, non_blocking=True)
            for result, found in zip(results, step(), strict=True):
                result.copy_(found, non_blocking=True)
        torch.cuda.synchronize()

    for _ in range(_WARM_UP_RUNS):
        run()
    return Contender(run, lambda: [r.numpy().copy() for r in results])


def _placed(torch: Any, source: Any, dtype: Any) -> Any:
    there = source.cuda()
    if not there.is_floating_point():
        return there
    there = there.to(dtype)
    is_image = there.dim() == 4 and dtype != torch.float32
    return there.contiguous(memory_format=torch.channels_last) if is_image else there


def _step(torch: Any, module: Any, static: Sequence[Any], way: str) -> Callable[[], Sequence[Any]]:
    if way == "eager":
        return partial(module, *static)
    if way == "graph":
        return _captured(torch, module, static)
    mode = {"compile": "reduce-overhead", "max-autotune": "max-autotune"}[way]
    compiled = torch.compile(module, mode=mode, fullgraph=True)
    for _ in range(_WARM_UP_RUNS):
        compiled(*static)
    return partial(compiled, *static)


def _captured(torch: Any, module: Any, static: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_RUNS):
            module(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found: Sequence[Any] = module(*static)

    def step() -> Sequence[Any]:
        graph.replay()
        return found

    return step
