"""One step of tuning a kernel."""

from __future__ import annotations

from collage_core.backend import Tuned, Variant
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_tvm.tuning.groups import tunable_variants
from collage_tvm.tuning.records import folder_of, read_best
from collage_tvm.tuning.tuner import Search, trials_in

__all__ = ["end_search", "tune_step"]

_search: Search | None = None
"""The search of the kernel that was tuned last: it knows more than its folder."""


def tune_step(subgraph: Subgraph, variant: Variant, target: Target, trials: int) -> Tuned:
    """As `Backend.tune`."""
    global _search
    if isinstance(refusal := tunable_variants(subgraph, target), Refusal):
        raise BackendError(str(refusal))
    folder = folder_of(subgraph, variant, target)
    known = trials_in(folder)
    if known >= trials:
        best = read_best(folder)
        return Tuned(known, best.run_ms if best else None)
    if _search is None or _search.folder != folder:
        end_search()
        _search = Search(folder, subgraph, variant, target)
    return _search.step(trials)


def end_search() -> None:
    """End the processes of the last search. What it has tried is in its folder."""
    global _search
    if _search is not None:
        _search.close()
        _search = None
