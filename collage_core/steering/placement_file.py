"""A placement as a file: who runs what, in YAML that a person can read, compare and change.

    version: 1
    threads: 2
    groups:                       # nodes that one kernel runs
    - backend: dnnl
      nodes: [conv1, relu1]
      inputs: [float32:plain]     # without these the search chooses
      outputs: [float32:0231]
    conversions:
    - {value: relu1_out, from: float32:0231, to: float32:plain, backend: tvm}
    pins:                         # as --pin
    - {nodes: layer1/*, backend: tvm}
    exclude:                      # as --exclude
    - {backend: openvino, nodes: Softmax}
    together:                     # as --keep-together
    - [conv2, add2]

Nodes are told by selectors (`collage_core.ir.selecting`). A file that leaves nothing open is a placement; of
any other the search fills in the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from collage_core.candidates import Constraints, FixedGroup
from collage_core.errors import CollageError, ModelError, PlacementError, UnknownBackendError
from collage_core.formats import CPU, Format
from collage_core.ir import Graph, Node, NodeSet, Subgraph, TensorType
from collage_core.ir.digests import structure_digest
from collage_core.ir.selecting import selected
from collage_core.ir.views import is_view
from collage_core.placement import VIEW, Conversion, Group, Placement
from collage_core.plugins import Registry, default_registry
from collage_core.steering.located import Located, read_yaml
from collage_core.target import MOST_THREADS, PRECISIONS, Target

__all__ = ["PlacementFile", "placement_yaml", "read_placement"]

_VERSION = 1
_PIN = ("backend", "nodes")
_CONVERSION = ("value", "from", "to", "backend")
_KEYS = (
    *("version", "graph", "threads", "devices", "precisions"),
    *("groups", "conversions", "pins", "exclude", "together"),
)


def placement_yaml(graph: Graph, placement: Placement) -> str:
    """A placement as a file has it: groups in the order in which they run."""
    target = placement.target
    told: dict[str, Any] = {"version": _VERSION, "graph": structure_digest(graph), "threads": target.threads}
    if target.accelerators:
        told["devices"] = list(target.accelerators)
    if target.precisions:
        told["precisions"] = list(target.precisions)
    told["groups"] = [
        {
            "backend": g.backend,
            "nodes": [n.name for n in Subgraph(graph, g.nodes).nodes],
            "inputs": [str(f) for f in g.variant.inputs],
            "outputs": [str(f) for f in g.variant.outputs],
            **({"options": dict(g.variant.options)} if g.variant.options else {}),
        }
        for g in placement.groups
    ]
    told["conversions"] = [
        {"value": c.value, "from": str(c.source), "to": str(c.destination), "backend": c.backend}
        for c in placement.conversions
    ]
    texts = {*(n.name for n in graph.nodes), *graph.values}
    texts |= {text for g in placement.groups for option in g.variant.options for text in option}
    # Of letters that a person cannot see YAML takes some for the end of a line.
    is_readable = all(text.isprintable() for text in texts)
    form: dict[str, Any] = {"sort_keys": False, "default_flow_style": None, "width": 110}
    text: str = yaml.safe_dump(told, allow_unicode=is_readable, **form)
    return text


def read_placement(path: str | Path) -> PlacementFile:
    """The file, as far as it can be read without a model. PlacementError, with the line, for what is wrong in
    it.
    """
    whole = read_yaml(path)
    fields = whole.fields(_KEYS, ["version"])
    if (version := fields["version"].number(1, 999)) != _VERSION:
        raise fields["version"].wrong(f"version {version} of the file; this release reads {_VERSION}")

    def entries(key: str, what: str, known: Sequence[str], required: Sequence[str]) -> tuple[_Entry, ...]:
        parts = fields[key].parts(what) if key in fields else []
        return tuple(_Entry(part, part.fields(known, required)) for part in parts)

    groups = entries("groups", "a group", ("backend", "nodes", "inputs", "outputs", "options"), _PIN)
    conversions = entries("conversions", "a conversion", _CONVERSION, _CONVERSION)
    return PlacementFile(
        str(path),
        fields["graph"].text() if "graph" in fields else "",
        fields["threads"].number(1, MOST_THREADS) if "threads" in fields else None,
        fields["devices"].texts() if "devices" in fields else (),
        fields["precisions"].texts() if "precisions" in fields else (),
        groups,
        conversions if "conversions" in fields else None,
        entries("pins", "a pin", _PIN, _PIN),
        entries("exclude", "an exclusion", _PIN, ("backend",)),
        tuple(fields["together"].parts("what is kept together")) if "together" in fields else (),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One of the file's lists, and its fields."""

    at: Located
    fields: Mapping[str, Located]


@dataclass(frozen=True, slots=True)
class PlacementFile:
    """What a file says, yet of no graph.

    path: of the file. graph: digest of the one that it was written for, "" where it does not say. threads:
    None where it does not say. devices: beside the host.
    """

    path: str
    graph: str
    threads: int | None
    devices: tuple[str, ...]
    precisions: tuple[str, ...]
    _groups: tuple[_Entry, ...]
    _conversions: tuple[_Entry, ...] | None
    _pins: tuple[_Entry, ...]
    _excluded: tuple[_Entry, ...]
    _together: tuple[Located, ...]

    @contextmanager
    def naming(self) -> Iterator[None]:
        """A PlacementError within it names the file, where it does not do so already."""
        try:
            yield
        except PlacementError as error:
            said = str(error)
            raise PlacementError(said if said.startswith(self.path) else f"{self.path}: {said}") from None

    def target(self, default: Target) -> Target:
        """What it was written for; `default`'s threads where it does not say."""
        precisions = tuple(PRECISIONS.get(name.lower(), name) for name in self.precisions)
        try:
            return Target(CPU, self.threads or default.threads, precisions, self.devices)
        except CollageError as error:
            raise PlacementError(f"{self.path}: {error}") from None

    def constraints(
        self, graph: Graph, registry: Registry | None = None, beside: Constraints | None = None
    ) -> Constraints:
        """What it asks of this graph, nodes by their names; `beside` it, what was asked for otherwise.
        PlacementError, with the line, for nodes and backends that are not there, formats that mean nothing
        and groups that overlap.
        """
        registry, beside = registry or default_registry(), beside or Constraints()
        pins = dict(beside.pins)
        for entry in self._pins:
            backend = _backend(entry.fields["backend"], registry)
            for selector in _selectors(entry.fields["nodes"], graph):
                if pins.setdefault(selector, backend) != backend:
                    raise entry.at.wrong(f"{selector!r} is pinned to {pins[selector]!r} already")
        excluded = list(beside.excluded)
        for entry in self._excluded:
            backend = _backend(entry.fields["backend"], registry)
            of = entry.fields.get("nodes")
            excluded += [(backend, None)] if of is None else [(backend, s) for s in _selectors(of, graph)]
        taken: dict[str, str] = {}
        for entry in self._groups:  # before their formats, of which a node too many makes wrong ones
            for node in _names(entry.fields["nodes"], graph):
                if node in taken:
                    raise entry.at.wrong(f"{node!r} is in the group of {taken[node]} already")
                taken[node] = entry.at.where
        groups = [_fixed(entry, graph, registry) for entry in self._groups]
        together = [_selectors(part, graph) for part in self._together]
        for entry in self._conversions or ():
            _conversion(entry, graph, registry)
        found = Constraints(pins, excluded, [*beside.together, *together], [*beside.groups, *groups])
        with self.naming():
            found.on(graph)
        return found

    def placement(
        self, graph: Graph, constraints: Constraints, target: Target, registry: Registry | None = None
    ) -> Placement | None:
        """The one that it is; None where it leaves something open: nodes, formats or conversions.
        constraints: what `constraints` made of it. PlacementError, with the file, where nothing can be first.
        """
        registry = registry or default_registry()
        named = {n.name: n.id for n in graph.nodes}
        covered = {node for group in constraints.groups for node in group.nodes}
        variants = [group.variant for group in constraints.groups]
        if covered != named.keys() or self._conversions is None or None in variants:
            return None
        groups = [
            Group(g.backend, tuple(named[n] for n in g.nodes), variant)
            for g, variant in zip(constraints.groups, variants, strict=True)
            if variant is not None
        ]
        conversions: dict[tuple[str, Format], Conversion] = {}
        for entry in self._conversions:
            c = _conversion(entry, graph, registry)
            if (c.value, c.destination) in conversions:
                raise entry.at.wrong(f"{c.value!r} is converted to {c.destination} already")
            conversions[c.value, c.destination] = c
        with self.naming():
            ordered = _in_order(graph, groups)
        return Placement(ordered, tuple(conversions.values()), target, graph=structure_digest(graph))


def _fixed(entry: _Entry, graph: Graph, registry: Registry) -> FixedGroup:
    fields = entry.fields
    backend = fields["backend"].text()
    name = VIEW if backend.lower() == VIEW else _backend(fields["backend"], registry)
    nodes = _names(fields["nodes"], graph)
    subgraph = Subgraph(graph, NodeSet(graph.node_named(n).id for n in nodes))
    if name == VIEW and (len(nodes) > 1 or not is_view(graph, subgraph.nodes[0])):
        raise fields["nodes"].wrong(f"{', '.join(nodes)} computes something, and is no view")
    formats = {
        key: _formats(fields[key], graph, values, registry) if key in fields else None
        for key, values in (("inputs", subgraph.inputs), ("outputs", subgraph.outputs))
    }
    options = fields["options"].pairs() if "options" in fields else None
    if options is None and None not in formats.values():
        options = ()
    in_order = tuple(n.name for n in subgraph.nodes)
    return FixedGroup(in_order, name, formats["inputs"], formats["outputs"], options, entry.at.where)


def _backend(field: Located, registry: Registry) -> str:
    name = field.text()
    try:
        return registry.backend(name).name
    except UnknownBackendError as error:
        raise field.wrong(str(error)) from None


def _selectors(field: Located, graph: Graph) -> tuple[str, ...]:
    """Each of which selects something."""
    for part in field.texts():
        _selected(field, graph, part)
    return field.texts()


def _names(field: Located, graph: Graph) -> tuple[str, ...]:
    """Of the nodes selected, each once."""
    found = (n.name for selector in field.texts() for n in _selected(field, graph, selector))
    return tuple(dict.fromkeys(found))


def _selected(field: Located, graph: Graph, selector: str) -> tuple[Node, ...]:
    try:
        return selected(graph, selector)
    except ModelError as error:
        raise field.wrong(str(error)) from None


def _formats(field: Located, graph: Graph, values: tuple[str, ...], registry: Registry) -> tuple[Format, ...]:
    parts = field.parts("a format")
    if len(parts) != len(values):
        raise field.wrong(f"{len(parts)} formats, where the group has {len(values)}: {', '.join(values)}")
    return tuple(_format(p, graph.type_of(v), registry) for p, v in zip(parts, values, strict=True))


def _format(field: Located, type: TensorType, registry: Registry) -> Format:
    """As `Format` is told: its dtype, the order of dimensions or `plain`, and the device behind an @."""
    text, rank = field.text(), len(type.shape)
    what, _, device = text.partition("@")
    dtype, _, order = what.partition(":")
    layout = tuple(range(rank)) if order == "plain" else tuple(int(c) for c in order if c.isdecimal())
    if not dtype or sorted(layout) != list(range(rank)) or not (order == "plain" or order.isdecimal()):
        raise field.wrong(
            f"{text!r} is no format of a value of {rank} dimensions; one is float32:plain, "
            f"another float32:{''.join(map(str, reversed(range(rank)))) or 'plain'}"
        )
    if device and device not in registry.devices:
        raise field.wrong(f"{text!r}: unknown device {device!r}; installed: {', '.join(registry.devices)}")
    if type.symbolic_dims:
        found = Format(dtype, layout, device or CPU)
    else:
        found = Format.of(dtype, type.static_shape, layout, device or CPU)
    if not found.can_store(type.dtype, rank):
        raise field.wrong(f"{text!r} cannot store {type}")
    return found


def _conversion(entry: _Entry, graph: Graph, registry: Registry) -> Conversion:
    fields = entry.fields
    value = fields["value"].text()
    if value not in graph.values or graph.is_constant(value):
        raise fields["value"].wrong(f"{value!r} is no value that the model computes or is given")
    type = graph.type_of(value)
    source, destination = (_format(fields[key], type, registry) for key in ("from", "to"))
    return Conversion(value, source, destination, _backend(fields["backend"], registry))


def _in_order(graph: Graph, groups: list[Group]) -> tuple[Group, ...]:
    """Each behind those that it reads from; where the file's order allows that, in its order."""
    of_value = {v: i for i, g in enumerate(groups) for v in Subgraph(graph, g.nodes).outputs}
    waits = [{of_value[v] for v in Subgraph(graph, g.nodes).inputs if v in of_value} for g in groups]
    readers: dict[int, list[int]] = {}
    for i, of in enumerate(waits):
        for other in of:
            readers.setdefault(other, []).append(i)
    ready = [i for i, of in enumerate(waits) if not of]
    found: list[Group] = []
    while ready:
        i = heapq.heappop(ready)
        found.append(groups[i])
        for reader in readers.get(i, ()):
            waits[reader].discard(i)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(found) < len(groups):
        raise PlacementError("its groups wait for each other in a circle: none can be the first")
    return tuple(found)
