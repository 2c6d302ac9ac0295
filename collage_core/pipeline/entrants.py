"""Who takes part in an end-to-end comparison: placements and peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collage_core.backend import Backend, Peer
from collage_core.costs.check import Standard, standards
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.seats import Contender
from collage_core.device import Target
from collage_core.ir import Graph
from collage_core.pipeline.workspace import Workspace
from collage_core.placement import Placement
from collage_core.plugins import Registry
from collage_core.runtime.plan import rounded_to
from collage_core.runtime.session import open_peer, open_placement

__all__ = ["Entrant", "peer_entrant", "placement_entrant"]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender before its worker's arguments are known.

    identity: what tells it from others of the same name in the database (the placement's digest, the peer's
    settings). contender: makes the contender once a workspace exists, which a comparison that is already
    known never needs. placement: None of a peer.
    """

    name: str
    identity: str
    environment: Mapping[str, str]
    contender: Callable[[Workspace], Contender]
    placement: Placement | None = None

    def held_to(self, graph: Graph) -> dict[str, Standard]:
        """What its answers are held to (`standards`): no more than what it stores its values in gives."""
        rounded = frozenset() if self.placement is None else rounded_to(graph, self.placement)
        return standards(graph, rounded_to=rounded)


def placement_entrant(name: str, placement: Placement, registry: Registry, *, parts: bool = False) -> Entrant:
    """A placement as an entrant; with `parts`, its groups and conversions are timed in place as well
    (`PARTS`).
    """
    backends = registry.available(placement.backends())

    def contender(workspace: Workspace) -> Contender:
        arguments = (workspace.graph_folder, placement, workspace.inputs_file)
        return Contender(
            name, _variables(backends, placement.target), open_placement, arguments, registry.modules(), parts
        )

    known = {
        f"{b.name}.{k}": v
        for b in backends
        for k, v in environment_of(b, placement.target).items()
        if k in _BACKEND_FACTS
    }
    return Entrant(name, placement.digest, known, contender, placement)


def peer_entrant(name: str, peer: Peer, target: Target, model_file: str | None = None) -> Entrant:
    """A peer as an entrant, on the model file given or on the normalised graph."""

    def contender(workspace: Workspace) -> Contender:
        model = workspace.model_file if model_file is None else Path(model_file)
        return Contender(
            name, peer.environment(target), open_peer, (peer.name, model, target, workspace.inputs_file)
        )

    info = peer.info()
    known = {"peer.version": info.version, "peer.library": info.library_version or ""}
    return Entrant(
        name, f"{peer.name} {sorted(info.settings.items())} {model_file is None}", known, contender
    )


_BACKEND_FACTS = ("plugin", "source", "library", "handover")


def _variables(backends: Sequence[Backend], target: Target) -> dict[str, str]:
    return {k: v for b in backends for k, v in b.environment(target).items()}
