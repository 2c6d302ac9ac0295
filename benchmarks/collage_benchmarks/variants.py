"""Every way in which a backend would run a group, ready to be called."""

from __future__ import annotations

from collections.abc import Callable

from collage_core.backend import Backend
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_core.testing import bind

__all__ = ["calls_of"]


def calls_of(backend: Backend, group: Subgraph, x: Array, target: Target) -> list[Callable[[], object]]:
    """Every variant that can be built, bound to `x`, the group's input "x"."""
    offered = backend.variants(group, target)
    if isinstance(offered, Refusal):
        return []
    calls = []
    for variant in offered:
        try:
            kernel = backend.build(group, variant, target)
        except Exception:  # a vendor's library may raise anything
            continue
        calls.append(bind(kernel, group, variant, {"x": x}).call)
    return calls
