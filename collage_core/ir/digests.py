"""What tells one graph from another: all of it, or the nodes and values that a placement speaks of."""

from __future__ import annotations

import hashlib
import weakref
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from collage_core.formats import Array
from collage_core.ir.graph import Graph
from collage_core.ir.subgraph import Subgraph

__all__ = ["graph_digest", "structure_digest"]


def graph_digest(graph: Graph) -> str:
    """Of the structure and of every constant: equal graphs give equal answers. Taken once of each."""
    if graph not in _graphs:
        _graphs[graph] = _digest(graph)
    return _graphs[graph]


def structure_digest(graph: Graph) -> str:
    """Of the nodes by their ids, and of all values' types: whether a placement speaks of this graph. Neither
    attributes nor constants' values are in it. Taken once of each graph.
    """
    if graph not in _structures:
        nodes = [(n.id, n.qualified_op, n.inputs, n.outputs) for n in graph.nodes]
        names = {
            *graph.inputs,
            *graph.outputs,
            *(v for n in graph.nodes for v in (*n.inputs, *n.outputs) if v),
        }
        types = [(v, str(graph.type_of(v))) for v in sorted(names)]
        told = repr((graph.inputs, graph.outputs, nodes, types))
        _structures[graph] = hashlib.sha256(told.encode()).hexdigest()[:16]
    return _structures[graph]


_graphs: WeakKeyDictionary[Graph, str] = WeakKeyDictionary()
_structures: WeakKeyDictionary[Graph, str] = WeakKeyDictionary()
_arrays: dict[int, tuple[weakref.ref[Array], str]] = {}
"""By the arrays' ids, of those that are alive: arrays are no keys."""


def _digest(graph: Graph) -> str:
    digest = hashlib.sha256(Subgraph(graph, graph.all_nodes, graph.outputs).key.encode())
    for n in graph.nodes:  # the key does not tell which of two constants of one shape is read where
        digest.update(repr((n.inputs, n.outputs)).encode())
    for name, n in sorted(graph.dequantised.items()):
        digest.update(repr((name, n.inputs, sorted(n.attributes.items()))).encode())
    for name in sorted(graph.constants.keys() - graph.dequantised.keys()):
        data = graph.constants[name]
        digest.update(f"{name} {data.dtype} {data.shape} {_data_digest(data)}".encode())
    return digest.hexdigest()[:32]


def _data_digest(data: Array) -> str:
    """Taken once of an array that is read-only down to its memory: a model and what passes make of it share
    most weights.
    """
    is_fixed = _is_read_only(data)
    known = _arrays.get(id(data))
    if is_fixed and known is not None and known[0]() is data:
        return known[1]
    found = hashlib.sha256(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data).hexdigest()
    if is_fixed:
        _arrays[id(data)] = (weakref.ref(data, partial(_forget, id(data))), found)
    return found


def _is_read_only(data: Array) -> bool:
    """A mapped file, which others may write to, is not."""
    owner: object = data
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable or isinstance(owner, np.memmap):
            return False
        owner = owner.base
    return owner is None or isinstance(owner, bytes)


def _forget(number: int, gone: weakref.ref[Array]) -> None:
    """Unless another array has that number by now."""
    known = _arrays.get(number)
    if known is not None and known[0] is gone:
        del _arrays[number]
