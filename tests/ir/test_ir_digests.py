"""Graphs are told apart by their structure and by every element of their constants."""

from __future__ import annotations

import gc

import numpy as np
from onnx import helper, numpy_helper

from collage_core.formats import Array
from collage_core.ir import Graph, from_model
from collage_core.ir.digests import _arrays, graph_digest, structure_digest


def _graph(weights: Array) -> Graph:
    dtype = helper.np_dtype_to_tensor_dtype(weights.dtype)
    proto = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "digests",
        [helper.make_tensor_value_info("x", dtype, [2, 300])],
        [helper.make_tensor_value_info("y", dtype, [2, 300])],
        [numpy_helper.from_array(weights, "w")],
    )
    graph = from_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)]))
    return graph.replace(constants={"w": weights})


def _weights(last: float = 1.0) -> Array:
    weights = np.ones(300, np.float32)
    weights[-1] = last
    return weights


def test_equal_graphs_and_others() -> None:
    first = graph_digest(_graph(_weights()))
    assert graph_digest(_graph(_weights())) == first
    assert graph_digest(_graph(_weights(np.nextafter(np.float32(1), np.float32(2))))) != first
    assert graph_digest(_graph(_weights().astype(np.float64))) != first


def test_what_was_written_to_is_read_again() -> None:
    weights = _weights()
    first = graph_digest(_graph(weights))
    weights[0] = 2.0
    assert graph_digest(_graph(weights)) != first


def test_what_was_written_to_behind_a_view_or_between_is_read_again() -> None:
    weights = _weights()
    seen = weights[:]
    seen.flags.writeable = False
    first = graph_digest(_graph(seen))
    weights[0] = 2.0
    assert graph_digest(_graph(seen)) != first
    frozen = _weights()
    frozen.flags.writeable = False
    first = graph_digest(_graph(frozen))
    frozen.flags.writeable = True
    frozen[0] = 2.0
    assert graph_digest(_graph(frozen)) != first


def test_what_a_placement_speaks_of_does_not_hang_on_weights() -> None:
    first = structure_digest(_graph(_weights()))
    assert structure_digest(_graph(_weights(2.0))) == first
    assert structure_digest(_graph(_weights().astype(np.float64))) != first, "of another type"


def test_arrays_are_remembered_while_they_live() -> None:
    gc.collect()
    before = len(_arrays)
    weights = _weights()
    weights.flags.writeable = False
    graph = _graph(weights)
    digest = graph_digest(graph)
    assert len(_arrays) == before + 1
    assert graph_digest(_graph(weights[:])) == digest, "a view of it is another array with the same elements"
    del graph, weights
    gc.collect()
    assert len(_arrays) == before
