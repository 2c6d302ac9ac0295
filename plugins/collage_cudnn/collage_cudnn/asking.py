"""What the library says of groups, before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from collage_core.backend import Variant
from collage_core.errors import BackendError, Refusal
from collage_core.ir import Subgraph
from collage_cudnn.description import Call, Description
from collage_cudnn.planning.planner import plan

__all__ = ["Asked", "refusal_of"]


class Asked(Protocol):
    """The library, as far as it is asked."""

    def check(self, description: Description) -> None:
        """BackendError with the library's own reason where it has no plan."""
        ...


def refusal_of(library: Asked, subgraph: Subgraph, offered: Sequence[Variant] | Refusal) -> Refusal | None:
    """None if it takes one of the variants; else why not the first of them."""
    if isinstance(offered, Refusal):
        return offered
    reasons = []
    for variant in offered:
        try:
            asked = plan(subgraph, variant)
        except BackendError as error:
            reasons.append(str(error))
            continue
        for one in asked:
            try:
                if not isinstance(one, Call):
                    library.check(one)
                return None
            except BackendError as error:
                reasons.append(str(error))
    return Refusal(reasons[0], subgraph.nodes[0].name)
