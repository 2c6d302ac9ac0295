"""Tuning a kernel where its backend is hosted: a tuner that crashes, hangs or grows costs that kernel."""

from __future__ import annotations

from collections.abc import Callable

from collage_core.backend import Tuned, Variant
from collage_core.costs.host import Host, hosted
from collage_core.costs.limits import candidate_limit_s
from collage_core.costs.lock import measuring_lock
from collage_core.ir import Subgraph

__all__ = ["tune_step"]

_STEP_LIMIT = 5
"""How many candidates' time one call of `Backend.tune` may take."""


def tune_step(
    host: Host, subgraph: Subgraph, variant: Variant, trials: int, on_wait: Callable[[str], object]
) -> Tuned:
    """One call of `Backend.tune`, with the machine's measuring lock held (`on_wait`: see there).

    WorkerError says why it failed, after which the next call gets a new worker.
    """
    nodes = tuple(n.id for n in subgraph.nodes)
    timeout_s = _STEP_LIMIT * candidate_limit_s()
    with measuring_lock(on_wait):
        try:
            return host.call(_tuned, nodes, subgraph.outputs, variant, trials, timeout_s=timeout_s)
        except BaseException:
            host.kill()
            raise


def _tuned(nodes: tuple[int, ...], outputs: tuple[str, ...], variant: Variant, trials: int) -> Tuned:
    here = hosted()
    tuned = here.backend.tune(Subgraph(here.graph, nodes, outputs), variant, here.target, trials)
    if not isinstance(tuned, Tuned):
        raise TypeError(f"tune returned {tuned!r}, which is no Tuned")
    return tuned
