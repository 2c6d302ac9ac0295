"""How a kernel of ONNX Runtime behaves once it is built: its calls, its buffers, its constants, and what it
raises.
"""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from collage_onnxruntime import plugin
from collage_onnxruntime.backend import OnnxRuntimeBackend
from onnxruntime_groups import array, block, variants_of

from collage_core.backend import plain_variant
from collage_core.errors import BackendError
from collage_core.formats import Array
from collage_core.ir import Subgraph
from collage_core.placement import Group, Placement
from collage_core.plugins import Registry
from collage_core.reference import evaluate
from collage_core.runtime import build
from collage_core.target import Target
from collage_core.testing import bind, make_group, node


def _residual() -> tuple[Subgraph, dict[str, Array]]:
    graph, inputs = block()
    return Subgraph(graph, graph.all_nodes), inputs


def test_bound_calls_of_one_kernel_are_independent(backend: OnnxRuntimeBackend, target: Target) -> None:
    part, inputs = _residual()
    variant = variants_of(backend, part)[-1]
    kernel = backend.build(part, variant, target)
    given = [{k: v * factor for k, v in inputs.items()} for factor in (1.0, -2.0, 3.0)]
    bound = [bind(kernel, part, variant, g) for g in given]
    del kernel
    for i in (0, 2, 1, 1, 0, 2):
        bound[i].call()
    for g, b in zip(given, bound, strict=True):
        expected = evaluate(part.graph, {k: v.astype(np.float32) for k, v in g.items()})
        for name, output in zip(part.outputs, b.outputs, strict=True):
            np.testing.assert_allclose(output, expected[name], atol=1e-4 * np.abs(expected[name]).max())


def test_two_threads_may_call_one_kernel_at_once(backend: OnnxRuntimeBackend, target: Target) -> None:
    """Each with buffers of its own, and answers that are its own."""
    part, inputs = _residual()
    variant = variants_of(backend, part)[0]
    kernel = backend.build(part, variant, target)
    bound = [bind(kernel, part, variant, {k: v * f for k, v in inputs.items()}) for f in (1.0, -2.0)]
    expected = []
    for b in bound:
        b.call()
        expected.append([output.copy() for output in b.outputs])
    assert not np.array_equal(expected[0][0], expected[1][0])

    def many(index: int) -> None:
        for _ in range(200):
            for output in bound[index].outputs:
                output[...] = np.nan
            bound[index].call()
            for output, right in zip(bound[index].outputs, expected[index], strict=True):
                np.testing.assert_array_equal(output, right)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(many, range(2)))


def test_it_reads_and_writes_the_arrays_themselves(backend: OnnxRuntimeBackend, target: Target) -> None:
    """What the arrays hold when the call comes counts, in every layout."""
    x, constants = array(2, 16, 8, 8), {"w": array(16, 16, 3, 3, seed=5), "b": array(16, seed=6)}
    part = make_group([node("Conv", ["x", "w", "b"], "c")], {"x": x}, constants)
    for variant in variants_of(backend, part):
        b = bind(backend.build(part, variant, target), part, variant, {"x": x})
        b.inputs[0][...] = 2 * x
        b.call()
        expected = evaluate(part.graph, {"x": 2 * x})["c"]
        np.testing.assert_allclose(b.outputs[0], expected, atol=1e-4 * np.abs(expected).max())


def test_a_call_keeps_its_buffers(backend: OnnxRuntimeBackend, target: Target) -> None:
    x = array(64)
    part = make_group([node("Neg", ["x"], "y")], {"x": x})
    (variant,) = variants_of(backend, part)
    b = bind(backend.build(part, variant, target), part, variant, {"x": x})
    call, memory = b.call, [weakref.ref(_owner(a)) for a in (*b.inputs, *b.outputs)]
    del b
    gc.collect()
    assert all(m() is not None for m in memory)
    call()
    del call
    gc.collect()
    assert all(m() is None for m in memory)


def _owner(array: Array) -> Array:
    return _owner(array.base) if isinstance(array.base, np.ndarray) else array


@pytest.mark.parametrize("op", ["Gather", "MatMul", "Mul"])
def test_constants_are_not_needed_after_building(
    op: str, backend: OnnxRuntimeBackend, target: Target
) -> None:
    """Packed like those of a product, or not, like a table of embeddings."""
    x = np.array([3, 299, 0]) if op == "Gather" else array(200, 300)
    order = ["c", "x"] if op == "Gather" else ["x", "c"]
    table = array(300, 200) if op != "Mul" else array(200, 300, seed=1)
    part = make_group([node(op, order, "y")], {"x": x}, {"c": table})
    graph = part.graph.replace(constants={"c": table.copy()})
    part = Subgraph(graph, graph.all_nodes)
    variant = plain_variant(part)
    b = bind(backend.build(part, variant, target), part, variant, {"x": x})
    expected = evaluate(graph, {"x": x})["y"].copy()
    graph.constants["c"].fill(np.nan)
    b.call()
    np.testing.assert_allclose(b.outputs[0], expected, atol=1e-4 * np.abs(expected).max())


def test_what_the_library_raises_when_it_runs_names_the_step(target: Target) -> None:
    indices, table = np.array([0, 2]), array(3, 4)
    part = make_group([node("Gather", ["table", "i"], "y")], {"i": indices}, {"table": table})
    group = Group("onnxruntime", tuple(part.node_set), plain_variant(part))
    registry = Registry([plugin], entry_points=False)
    executable = build(part.graph, Placement((group,), (), target), registry)
    np.testing.assert_array_equal(executable(indices)["y"], table[indices])
    with pytest.raises(BackendError, match=r"step onnxruntime: nodes 0 failed: .*out of data bounds"):
        executable(indices + 1)
