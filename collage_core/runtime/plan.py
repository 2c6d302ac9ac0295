"""From a placement to a flat list of steps over buffers with offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage_run.program import Call, Place, Program

from collage_core.backend import Kernel, rounded_to
from collage_core.errors import PlacementError
from collage_core.formats import CPU, Format, device_of
from collage_core.ir import Graph, NodeSet, Subgraph
from collage_core.ir.digests import structure_digest
from collage_core.ir.views import is_view, output_format
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.runtime.memory import Block, plan_offsets
from collage_core.target import Target

__all__ = ["Slot", "Step", "called", "lay_out", "rounded_on_the_way", "schedule"]

_MOST_TOLD = 8
_MOST_BYTES = 1 << 40
"""Of a value. Beyond some size even asking for the memory fails, in whatever way."""

Slot = tuple[str, Format]
"""A value in one format."""


@dataclass(frozen=True, slots=True)
class Step:
    """One group or conversion, with what it reads and writes. Views are steps that nothing executes."""

    what: Group | Conversion
    reads: tuple[Slot, ...]
    writes: tuple[Slot, ...]

    @property
    def is_view(self) -> bool:
        return isinstance(self.what, Group) and self.what.backend == VIEW

    @property
    def device(self) -> str:
        """Which works on it: of a transfer the other one than the host."""
        return device_of(format for _, format in (*self.reads, *self.writes))

    def __str__(self) -> str:
        if isinstance(self.what, Conversion):
            c = self.what
            return f"{c.backend}: convert {c.value} {c.source} -> {c.destination}"
        nodes = self.what.nodes
        if len(nodes) > _MOST_TOLD:
            return f"{self.what.backend}: nodes {nodes[0]} to {nodes[-1]} ({len(nodes)} of them)"
        return f"{self.what.backend}: nodes {', '.join(map(str, nodes))}"


def schedule(graph: Graph, placement: Placement) -> tuple[Step, ...]:
    """The placement's groups, each conversion right before the first group that needs it, be it by way of
    another conversion.

    PlacementError unless it was made for this graph, shapes are static, every node is covered once, every
    group finds what it reads, and the outputs are delivered row-major.
    """
    if placement.graph and placement.graph != structure_digest(graph):
        raise PlacementError("the placement was made for another graph: its nodes or values are others")
    for v in (*graph.inputs, *graph.outputs):
        if not graph.type_of(v).is_static:
            raise PlacementError(f"{v!r} is {graph.type_of(v)}: what is built has static shapes")
    conversions = {(c.value, c.destination): c for c in placement.conversions}
    ready: set[Slot] = {(v, graph.plain_format(v)) for v in graph.inputs}
    covered = NodeSet()
    steps: list[Step] = []

    def need(slot: Slot, who: str) -> None:
        route: list[Conversion] = []
        wanted = slot
        while wanted not in ready:
            c = conversions.get(wanted)
            if c is None or c in route:
                raise PlacementError(
                    f"{who} reads {slot[0]!r} as {slot[1]}, which nothing before it provides"
                )
            route.append(c)
            wanted = c.value, c.source
        for c in reversed(route):
            if c.backend == VIEW:
                raise PlacementError(f"a view is to convert {c.value!r} to {c.destination}: it moves no byte")
            if len({c.source.device, c.destination.device, CPU}) > 2:
                raise PlacementError(
                    f"{c.backend} converts {c.value!r} from one device to another, past the host"
                )
            for format in (c.source, c.destination):
                _check_stored(graph, c.value, format, placement.target, f"{c.backend} converts")
            steps.append(Step(c, ((c.value, c.source),), ((c.value, c.destination),)))
            ready.add((c.value, c.destination))

    for group in placement.groups:
        if not group.nodes or not set(group.nodes) <= graph.positions.keys():
            raise PlacementError(f"a group on {group.backend} has no nodes, or nodes that the graph has not")
        subgraph = Subgraph(graph, group.nodes)
        name = f"group of {subgraph.nodes[0].name!r} on {group.backend}"
        if not subgraph.node_set.isdisjoint(covered):
            raise PlacementError(f"{name} covers a node that another group covers already")
        covered = covered | subgraph.node_set
        _check_formats(subgraph, group, placement.target, name)
        reads = tuple(zip(subgraph.inputs, group.variant.inputs, strict=True))
        writes = tuple(zip(subgraph.outputs, group.variant.outputs, strict=True))
        for slot in reads:
            need(slot, name)
        steps.append(Step(group, reads, writes))
        ready.update(writes)
    if missing := graph.all_nodes - covered:
        raise PlacementError(f"no group covers {', '.join(str(graph.node(i)) for i in missing)}")
    for v in graph.outputs:
        if not graph.is_constant(v):
            need((v, graph.plain_format(v)), "the caller")
    return tuple(steps)


def called(graph: Graph, placement: Placement) -> tuple[Step, ...]:
    """Those steps of the schedule that a program calls: all but views. PlacementError as there."""
    return tuple(step for step in schedule(graph, placement) if not step.is_view)


def _check_formats(subgraph: Subgraph, group: Group, target: Target, name: str) -> None:
    graph = subgraph.graph
    offered = len(group.variant.inputs), len(group.variant.outputs)
    wanted = len(subgraph.inputs), len(subgraph.outputs)
    if offered != wanted:
        raise PlacementError(f"{name} has formats for {offered} inputs and outputs; it needs {wanted}")
    formats = (*group.variant.inputs, *group.variant.outputs)
    if len({f.device for f in formats}) > 1:
        raise PlacementError(f"{name} reads and writes the memory of several devices")
    for v, f in zip((*subgraph.inputs, *subgraph.outputs), formats, strict=True):
        _check_stored(graph, v, f, target, name)
    if group.backend == VIEW:
        node = subgraph.nodes[0]
        if len(subgraph.nodes) > 1 or len(subgraph.outputs) != 1 or not is_view(graph, node):
            raise PlacementError(f"{name}: {node} computes something, and is no view")
        if output_format(graph, node, group.variant.inputs[0]) != group.variant.outputs[0]:
            raise PlacementError(
                f"{name}: no view of {group.variant.inputs[0]} is {group.variant.outputs[0]}"
            )


def _check_stored(graph: Graph, value: str, format: Format, target: Target, who: str) -> None:
    type = graph.type_of(value)
    if not type.is_static:
        raise PlacementError(f"{who}: {value!r} is {type}, for which no memory can be set aside")
    if not target.stores(type.dtype, len(type.shape), format):
        raise PlacementError(f"{who}: {value!r} is {type} and cannot be stored as {format}")
    if format.size_bytes(type.static_shape) > _MOST_BYTES:
        raise PlacementError(f"{who}: {value!r} is {type}, for which no memory can be set aside")


def rounded_on_the_way(graph: Graph, placement: Placement) -> frozenset[str]:
    """Float types in which it stores values of other types, be it on the way."""
    ends = [(c.value, f) for c in placement.conversions for f in (c.source, c.destination)]
    converted = frozenset(f.dtype for v, f in ends if f.dtype != graph.type_of(v).dtype)
    return converted.union(*(rounded_to(Subgraph(graph, g.nodes), g.variant) for g in placement.groups))


def lay_out(graph: Graph, steps: Sequence[Step], kernels: Sequence[Kernel | None]) -> Program:
    """Give every slot and workspace its place. `kernels` are those of `steps`; None for views, which no
    program calls.
    """
    first = {(v, graph.plain_format(v)): -1 for v in graph.inputs}
    last: dict[Slot, int] = {}
    for i, step in enumerate(steps):
        for slot in step.reads:
            last[slot] = i
        for slot in step.writes:
            first[slot] = last[slot] = i
    # A caller may fill an input's buffer once and run on it again and again: nothing else may lie there.
    for v in (*graph.inputs, *graph.outputs):
        if not graph.is_constant(v):
            last[v, graph.plain_format(v)] = len(steps)
    owner = _share(graph, steps, kernels, last)
    blocks: dict[Slot, Block] = {}
    for slot in first:
        root = owner.get(slot, slot)
        size_bytes = slot[1].size_bytes(graph.shape_of(slot[0]))
        known = blocks.get(root)
        if known is None:
            blocks[root] = Block(size_bytes, first[slot], last[slot])
        else:
            blocks[root] = Block(known.size_bytes, min(known.first, first[slot]), max(known.last, last[slot]))
    by_root: dict[Slot, int] = {}
    workspaces = [(0, 0)] * len(steps)
    arena_bytes: dict[str, int] = {}
    for device in dict.fromkeys([CPU, *(step.device for step in steps)]):
        here = [slot for slot in blocks if slot[1].device == device]
        working = [i for i, step in enumerate(steps) if step.device == device]
        scratch = [Block(k.workspace_bytes if (k := kernels[i]) else 0, i, i) for i in working]
        offsets, arena_bytes[device] = plan_offsets([*(blocks[slot] for slot in here), *scratch])
        by_root.update(zip(here, offsets, strict=False))
        for i, offset, block in zip(working, offsets[len(here) :], scratch, strict=True):
            workspaces[i] = offset, block.size_bytes
    places = {
        (v, format): Place(
            by_root[owner.get((v, format), (v, format))], graph.type_of(v).static_shape, format
        )
        for v, format in first
    }
    calls = []
    for step, (offset, size_bytes) in zip(steps, workspaces, strict=True):
        if not step.is_view:
            reads, writes = (tuple(places[slot] for slot in slots) for slots in (step.reads, step.writes))
            workspace = Place(offset, (size_bytes,), Format("uint8", (0,), step.device))
            calls.append(Call(str(step), reads, writes, workspace))
    inputs = {v: places[v, graph.plain_format(v)] for v in graph.inputs}
    outputs = {
        v: graph.constants[v] if graph.is_constant(v) else places[v, graph.plain_format(v)]
        for v in graph.outputs
    }
    return Program(tuple(calls), inputs, outputs, arena_bytes, graph.open_outputs)


def _share(
    graph: Graph, steps: Sequence[Step], kernels: Sequence[Kernel | None], last: Mapping[Slot, int]
) -> dict[Slot, Slot]:
    """Slots that use another slot's bytes: views always; outputs of kernels that may work in place, where the
    input dies there.

    The bytes die when the last of the slots that share them does. A model input's own buffer is never
    written.
    """
    owner: dict[Slot, Slot] = {}
    dies: dict[Slot, int] = {}
    inputs = {(v, graph.plain_format(v)) for v in graph.inputs}

    def root(slot: Slot) -> Slot:
        return owner.get(slot, slot)

    def share(slot: Slot, with_slot: Slot) -> None:
        owner[slot] = root(with_slot)
        dies[root(with_slot)] = max(dies.get(root(with_slot), last[with_slot]), last[slot])

    for i, (step, kernel) in enumerate(zip(steps, kernels, strict=True)):
        if step.is_view:
            share(step.writes[0], step.reads[0])
            continue
        taken: set[Slot] = set()
        for output, source in (kernel.may_alias if kernel else {}).items():
            read, written = step.reads[source], step.writes[output]
            alike = graph.shape_of(read[0]) == graph.shape_of(written[0]) and read[1] == written[1]
            once = sum(root(r) == root(read) for r in step.reads) == 1
            if alike and once and root(read) not in inputs | taken and dies.get(root(read), last[read]) <= i:
                taken.add(root(read))
                share(written, read)
    return owner
