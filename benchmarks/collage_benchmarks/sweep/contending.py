"""Contenders: a library with other settings than those in use. What opens them runs in their own workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from collage_benchmarks.sweep.grid import PIECES, Choice, Use
from collage_core.backend import Backend, plain_variant
from collage_core.costs.seats import Contender
from collage_core.errors import Refusal
from collage_core.ir import Graph, Subgraph, load_stored
from collage_core.measuring.entrants import placement_entrant
from collage_core.measuring.workspace import Workspace
from collage_core.peer import PeerSession
from collage_core.placement import Group, Placement
from collage_core.plugins import Registry, default_registry
from collage_core.runtime.build import build
from collage_core.runtime.session import ExecutableSession, load_arrays
from collage_core.target import Target

__all__ = ["contender", "operators_contender", "pieces_of"]

_PIECE_NODES = 8
_REFERENCE = "reference"


def contender(use: Use, choice: Choice, target: Target, model: Path, workspace: Workspace) -> Contender:
    """A graph library, called directly on an ONNX file or by Collage."""
    registry = default_registry()
    inputs = workspace.inputs_file
    if use.is_peer:
        environment = registry.peer(use.library).environment(target)
        opened: Any = open_peer
        arguments: tuple[Any, ...] = (use.library, dict(choice.settings), model, target, inputs)
    else:
        environment = registry.backend(use.library).environment(target)
        opened = open_backend
        most = _PIECE_NODES if use.how == PIECES else len(workspace.graph.nodes)
        arguments = (use.library, dict(choice.settings), workspace.graph_folder, most, target, inputs)
    return Contender(
        choice.label, {**environment, **choice.environment}, opened, arguments, registry.modules()
    )


def operators_contender(
    choice: Choice, placement: Placement, registry: Registry, workspace: Workspace
) -> Contender:
    """A placement with other variables in the environment of its process."""
    usual = placement_entrant(workspace, choice.label, placement, registry).contender()
    return replace(usual, environment={**usual.environment, **choice.environment})


def open_peer(
    name: str, settings: Mapping[str, Any], model: Path, target: Target, inputs_file: Path
) -> PeerSession:
    """A whole model in a library with `settings`, and its inputs in place. Runs in a worker."""
    if name == "onnxruntime":
        from collage_onnxruntime.peer import OnnxRuntimeSession

        session: PeerSession = OnnxRuntimeSession(model, target, settings)
    else:
        from collage_openvino.peer import OpenvinoSession

        session = OpenvinoSession(model, target, settings)
    session.set_inputs(load_arrays(inputs_file))
    return session


def open_backend(
    name: str,
    settings: Mapping[str, Any],
    graph_folder: Path,
    most_nodes: int,
    target: Target,
    inputs_file: Path,
) -> PeerSession:
    """A stored graph in pieces on a graph library with `settings`. Runs in a worker."""
    graph, backend = load_stored(graph_folder), default_registry().backend(name)
    placement = pieces_of(graph, backend, target, most_nodes)
    with _settings_of(name, settings):
        session = ExecutableSession(graph, placement, build(graph, placement))
    session.set_inputs(load_arrays(inputs_file))
    return session


@contextmanager
def _settings_of(name: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """What the backend builds meanwhile has them. It has no such argument: in use are always the same."""
    if name == "onnxruntime":
        from collage_onnxruntime.session import open_session

        changed = mock.patch(
            "collage_onnxruntime.kernel.open_session", partial(open_session, settings=settings)
        )
    else:
        from collage_openvino.settings import properties

        changed = mock.patch("collage_openvino.build.properties", partial(properties, settings=settings))
    with changed:
        yield


def pieces_of(graph: Graph, backend: Backend, target: Target, most_nodes: int) -> Placement:
    """The graph in groups of up to so many nodes, one after the other in the graph's order. Of a group that
    the backend declines it gets the nodes that it takes singly; the reference runs the others. Calls the
    library.
    """
    ids = [n.id for n in graph.nodes]
    groups: list[Group] = []
    for first in range(0, len(ids), most_nodes):
        piece = ids[first : first + most_nodes]
        whole = _group(graph, backend, target, piece)
        groups += (
            [whole] if whole else [_group(graph, backend, target, [n]) or _declined(graph, n) for n in piece]
        )
    return Placement(tuple(groups), (), target)


def _group(graph: Graph, backend: Backend, target: Target, nodes: list[int]) -> Group | None:
    subgraph = Subgraph(graph, nodes)
    offered = backend.variants(subgraph, target)
    if isinstance(offered, Refusal) or backend.supported([subgraph], target)[0] is not None:
        return None
    return Group(backend.name, tuple(nodes), offered[0])


def _declined(graph: Graph, node: int) -> Group:
    return Group(_REFERENCE, (node,), plain_variant(Subgraph(graph, [node])))
