"""Who takes part in an end-to-end comparison: placements and peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from collage_core.costs.check import Standard, Within, standards
from collage_core.costs.fingerprint import environment_of
from collage_core.costs.host import named_variables
from collage_core.costs.seats import Contender
from collage_core.measuring.beside import Load, open_peer_beside, open_placement_beside
from collage_core.measuring.workspace import Workspace
from collage_core.peer import Peer
from collage_core.placement import Placement
from collage_core.plugins import Registry
from collage_core.runtime.plan import rounded_on_the_way
from collage_core.runtime.session import open_peer, open_placement
from collage_core.target import Target

__all__ = ["Entrant", "peer_entrant", "placement_entrant"]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender before its worker's arguments are known, and the graph that it is about.

    identity: what tells it from others of the same name in the database (the placement's digest, the peer's
    settings). workspace: of its graph, with the inputs that it is run on. contender: makes the contender,
    which a comparison that is already known never needs. placement: None of a peer. most_error: what a
    placement that rounds may be off by; None where it is held to what rounding alone does.
    """

    name: str
    identity: str
    environment: Mapping[str, str]
    workspace: Workspace
    contender: Callable[[], Contender]
    placement: Placement | None = None
    most_error: float | None = None

    def held_to(self) -> dict[str, Standard]:
        """What its answers are held to (`standards`): no more than what it stores its values in gives."""
        graph = self.workspace.graph
        rounded = frozenset() if self.placement is None else rounded_on_the_way(graph, self.placement)
        if rounded and self.most_error is not None:
            allowed = Within(self.most_error)
            return {v: allowed if isinstance(s, str) else s for v, s in standards(graph).items()}
        return standards(graph, rounded_to=rounded, answers=self.workspace.rounded_outputs)

    @property
    def key(self) -> str:
        """All that tells it from another, and what it is run on from that of another."""
        of_graph = f"{self.workspace.graph_digest} {self.workspace.inputs_digest}"
        allowed = "" if self.most_error is None else f" within {self.most_error}"
        return f"{self.name} {self.identity} {of_graph} {sorted(self.environment.items())}{allowed}"


def placement_entrant(
    workspace: Workspace,
    name: str,
    placement: Placement,
    registry: Registry,
    *,
    parts: bool = False,
    most_error: float | None = None,
    load: Load | None = None,
) -> Entrant:
    """A placement as an entrant; with `parts`, its groups and conversions are timed in place as well
    (`PARTS`). most_error: see `Entrant`. load: with which it is measured; a request at a time where None.
    """
    backends = registry.available(placement.backends())

    def contender() -> Contender:
        variables, modules = named_variables(backends, placement.target), registry.modules()
        arguments = (workspace.graph_folder, placement, workspace.inputs_file)
        if load is None:
            return Contender(name, variables, open_placement, arguments, modules, parts)
        beside = (*arguments, load)
        return Contender(name, variables, open_placement_beside, beside, modules, parts, load.shares)

    known = {
        f"{b.name}.{k}": v
        for b in backends
        for k, v in environment_of(b, placement.target, registry=registry).items()
        if k in _BACKEND_FACTS
    }
    identity = placement.digest + _under(load)
    return Entrant(name, identity, known, workspace, contender, placement, most_error)


def peer_entrant(
    workspace: Workspace,
    name: str,
    peer: Peer,
    target: Target,
    model_file: str | None = None,
    load: Load | None = None,
) -> Entrant:
    """A peer as an entrant, on the model file given or on the normalised graph. load: see
    `placement_entrant`.
    """

    def contender() -> Contender:
        model = workspace.model_file if model_file is None else Path(model_file)
        variables, arguments = peer.environment(target), (peer.name, model, target, workspace.inputs_file)
        if load is None:
            return Contender(name, variables, open_peer, arguments)
        return Contender(name, variables, open_peer_beside, (*arguments, load), shares=load.shares)

    info = peer.info()
    known = {"peer.version": info.version, "peer.library": info.library_version or ""}
    identity = f"{peer.name} {sorted(info.settings.items())} {model_file is None}{_under(load)}"
    return Entrant(name, identity, known, workspace, contender)


def _under(load: Load | None) -> str:
    return "" if load is None else f" {load}"


_BACKEND_FACTS = ("plugin", "source", "library", "handover")
