"""Fused groups: found by the rule, one primitive each, right in every variant and in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from collage_dnnl.rules import POST_OPS_RULE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage_core.devices import IMMEDIATE
from collage_core.errors import Refusal
from collage_core.formats import empty
from collage_core.ir import NodeSet, Subgraph
from collage_core.reference import evaluate
from collage_core.rules import generate
from collage_core.testing import make_graph, node

Floats = np.ndarray[Any, np.dtype[np.float32]]


def values(*shape: int, seed: int = 0) -> Floats:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def conv(channels: int = 16) -> tuple[onnx.NodeProto, dict[str, Floats], dict[str, Floats]]:
    made = node("Conv", ["x", "w", "bias"], ["c"], pads=[1, 1, 1, 1])
    constants = {"w": values(channels, channels, 3, 3, seed=1), "bias": values(channels, seed=2)}
    return made, {"x": values(1, channels, 9, 9)}, constants


def test_a_residual_is_summed_in_place(run_group: Any) -> None:
    first, inputs, constants = conv()
    nodes = [first, node("Add", ["r", "c"], ["s"]), node("Relu", ["s"], ["y"])]
    outcome = run_group(nodes, {**inputs, "r": values(1, 16, 9, 9, seed=3)}, constants)
    residual = outcome.subgraph.inputs.index("r")
    for variant, kernel in outcome.kernels.items():
        assert kernel.may_alias == {0: residual}
        assert variant.inputs[residual] == variant.outputs[0], "it was not tried in place"


def test_a_residual_that_the_anchor_reads_too_is_never_overwritten(run_group: Any) -> None:
    first, inputs, constants = conv()
    outcome = run_group([first, node("Add", ["c", "x"], ["y"])], inputs, constants)
    assert all(not kernel.may_alias for kernel in outcome.kernels.values())


def test_an_operand_read_twice_is_never_overwritten(run_group: Any) -> None:
    first, inputs, constants = conv()
    nodes = [first, node("Add", ["c", "r"], ["s"]), node("Mul", ["s", "r"], ["y"])]
    outcome = run_group(nodes, {**inputs, "r": values(1, 16, 9, 9, seed=3)}, constants)
    assert all(not kernel.may_alias for kernel in outcome.kernels.values())


@pytest.mark.parametrize("anchor", ["MatMul", "Conv", "ConvTranspose"])
def test_constant_per_channel_addend_becomes_the_bias(run_group: Any, anchor: str) -> None:
    if anchor == "MatMul":
        x, w, b = values(2, 5, 16), values(16, 24, seed=1), values(24, seed=2)
    else:
        x, w, b = values(1, 16, 5, 5), values(16, 16, 3, 3, seed=1), values(16, 1, 1, seed=2)
    nodes = [node(anchor, ["x", "w"], ["p"]), node("Add", ["b", "p"], ["s"]), node("Gelu", ["s"], ["y"])]
    outcome = run_group(nodes, {"x": x}, {"w": w, "b": b})
    assert all(kernel.may_alias == {} for kernel in outcome.kernels.values())
    assert not any(outcome.declined) or anchor != "MatMul"


def test_attention_scores_with_scale_and_mask(run_group: Any) -> None:
    nodes = [
        node("MatMul", ["q", "k"], ["p"]),
        node("Div", ["p", "scale"], ["s"]),
        node("Add", ["s", "mask"], ["y"]),
    ]
    inputs = {"q": values(2, 3, 8, 4), "k": values(2, 3, 4, 8, seed=1), "mask": values(2, 1, 1, 8, seed=2)}
    run_group(nodes, inputs, {"scale": np.array(2.0, np.float32)})


@pytest.mark.parametrize(
    "branch",
    [
        [node("Sigmoid", ["c"], ["s"]), node("Mul", ["c", "s"], ["y"])],
        [node("HardSigmoid", ["c"], ["s"], alpha=0.2), node("Mul", ["s", "c"], ["y"])],
        [node("Softplus", ["c"], ["t"]), node("Tanh", ["t"], ["s"]), node("Mul", ["c", "s"], ["y"])],
    ],
    ids=["swish", "hardswish", "mish"],
)
def test_branches_that_join_are_one_step(run_group: Any, branch: list[onnx.NodeProto]) -> None:
    first, inputs, constants = conv()
    run_group([first, *branch], inputs, constants)
    graph = make_graph([first, *branch], inputs, constants)
    assert graph.all_nodes in generate(graph, POST_OPS_RULE).groups
    run_group(branch, {"c": values(2, 3, 4)})


@pytest.mark.parametrize(
    "tail",
    [
        [node("Add", ["a", "b"], ["y"]), node("Mul", ["y", "a"], ["z"])],
        [node("Sub", ["b", "a"], ["y"]), node("Abs", ["y"], ["z"])],
        [node("Div", ["k", "a"], ["y"]), node("Tanh", ["y"], ["z"])],
        [node("Sub", ["k", "a"], ["y"]), node("Add", ["y", "b"], ["z"])],
        [node("Sqrt", ["e"], ["f"]), node("Add", ["f", "k"], ["y"]), node("Div", ["a", "y"], ["z"])],
        [node("Relu", ["a"], ["y"]), node("Sigmoid", ["y"], ["s"]), node("Mul", ["s", "b"], ["z"])],
        [node("Mul", ["a", "k"], ["y"]), node("Sigmoid", ["y"], ["s"]), node("Sub", ["s", "row"], ["z"])],
    ],
    ids=lambda nodes: "-".join(n.op_type for n in nodes),
)
def test_elementwise_chains(run_group: Any, tail: list[onnx.NodeProto]) -> None:
    known = {
        "a": values(2, 3, 4, 5) + np.float32(4),
        "b": values(2, 3, 4, 5, seed=1),
        "row": values(3, 1, 1, seed=2),
    }
    known["e"] = np.abs(known["a"]) + np.float32(0.5)
    read = {v for n in tail for v in n.input}
    inputs = {n: v for n, v in known.items() if n in read}
    constants = {"k": np.array(0.75, np.float32)} if "k" in read else {}
    run_group(tail, inputs, constants)


@pytest.mark.parametrize(
    ("anchor", "constants"),
    [
        (node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2]), {}),
        (node("AveragePool", ["x"], ["p"], kernel_shape=[2, 2], pads=[1, 0, 0, 1]), {}),
        (node("GlobalAveragePool", ["x"], ["p"]), {}),
        (node("Softmax", ["x"], ["p"], axis=1), {}),
        (node("Softmax", ["x"], ["p"]), {}),
        (node("Resize", ["x", "", "scales"], ["p"]), {"scales": np.array([1, 1, 2, 2], np.float32)}),
    ],
    ids=lambda v: v.op_type if isinstance(v, onnx.NodeProto) else "",
)
def test_post_operations_of_other_anchors(
    run_group: Any, anchor: onnx.NodeProto, constants: dict[str, Floats]
) -> None:
    nodes = [anchor, node("Tanh", ["p"], ["t"]), node("Mul", ["t", "m"], ["y"])]
    run_group(nodes, {"x": values(1, 16, 6, 6)}, {**constants, "m": values(16, 1, 1, seed=1)})


def test_relu_after_batch_normalization(run_group: Any) -> None:
    vectors = {n: np.abs(values(16, seed=i)) for i, n in enumerate("sbmv")}
    nodes = [node("BatchNormalization", ["x", *vectors], ["n"]), node("Relu", ["n"], ["y"])]
    run_group(nodes, {"x": values(2, 16, 6, 6)}, vectors)


_UNARY = st.sampled_from(["Relu", "Tanh", "Sigmoid", "Gelu", "HardSwish", "Abs", "Elu", "Softplus"])
_STEP = st.one_of(
    _UNARY.map(lambda op: (op, None, None)),
    st.tuples(
        st.sampled_from(["Add", "Mul", "Sub", "Max"]),
        st.sampled_from([(), (1,), (16, 1, 1), (1, 16, 1, 1), (1, 16, 6, 5), (1, 1, 6, 5), (5,)]),
        st.sampled_from(["constant", "input"]),
    ),
)


@given(
    st.lists(_STEP, min_size=1, max_size=8),
    st.sampled_from(
        ["Conv", "Grouped", "ConvTranspose", "MatMul", "Add", "MaxPool", "AveragePool", "Softmax", "Resize"]
    ),
    st.randoms(),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_drawn_chains(
    run_group: Any, backend: Any, target: Any, steps: list[Any], anchor: str, random: Any
) -> None:
    """Any chain that the rule finds as a whole is right in every variant; what it does not find, `variants`
    declines too.
    """
    constants: dict[str, Floats] = {}
    inputs: dict[str, Floats] = {"x": values(1, 16, 6, 5)}
    if anchor == "Conv":
        constants["w"] = values(16, 16, 3, 3, seed=1) * np.float32(0.1)
        nodes = [node("Conv", ["x", "w"], ["v0"], pads=[1, 1, 1, 1])]
    elif anchor == "Grouped":
        constants["w"] = values(16, 2, 3, 3, seed=1) * np.float32(0.1)
        nodes = [node("Conv", ["x", "w"], ["v0"], pads=[1, 1, 1, 1], group=8)]
    elif anchor == "ConvTranspose":
        constants["w"] = values(16, 16, 3, 3, seed=1) * np.float32(0.1)
        nodes = [node("ConvTranspose", ["x", "w"], ["v0"], pads=[1, 1, 1, 1])]
    elif anchor == "Softmax":
        nodes = [node("Softmax", ["x"], ["v0"])]
    elif anchor == "Resize":
        inputs["x"] = values(1, 16, 3, 5)
        constants["scales"] = np.array([1, 1, 2, 1], np.float32)
        nodes = [node("Resize", ["x", "", "scales"], ["v0"])]
    elif anchor == "MatMul":
        constants["w"] = values(5, 5, seed=1)
        nodes = [node("MatMul", ["x", "w"], ["v0"])]
    elif anchor == "Add":
        inputs["w"] = values(1, 16, 6, 5, seed=1)
        nodes = [node("Add", ["x", "w"], ["v0"])]
    else:
        nodes = [node(anchor, ["x"], ["v0"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    for i, (op, shape, kind) in enumerate(steps):
        operands = [f"v{i}"]
        if shape is not None:
            operands.append(f"o{i}")
            (constants if kind == "constant" else inputs)[f"o{i}"] = values(*shape, seed=10 + i)
            random.shuffle(operands)
        nodes.append(node(op, operands, [f"v{i + 1}"]))
    graph = make_graph(nodes, inputs, constants)
    declined = backend.variants(Subgraph(graph, graph.all_nodes), target)
    assert isinstance(declined, Refusal) == (graph.all_nodes not in generate(graph, POST_OPS_RULE).groups)
    if isinstance(declined, Refusal):
        assert "at most 8" in declined.reason or (anchor == "Resize" and "spatial" in declined.reason)
    else:
        run_group(nodes, inputs, constants)


def test_the_rule_finds_what_can_be_fused_and_nothing_else() -> None:
    """A residual block: conv+relu and conv+add+relu, but not across the branch."""
    w = values(8, 8, 3, 3)
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="c1", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], name="r1"),
        node("Conv", ["b", "w"], ["c"], name="c2", pads=[1, 1, 1, 1]),
        node("Add", ["c", "b"], ["d"], name="add"),
        node("Relu", ["d"], ["y"], name="r2"),
    ]
    graph = make_graph(nodes, {"x": values(1, 8, 6, 6)}, {"w": w})
    found = {
        tuple(sorted(graph.node(i).name for i in group)) for group in generate(graph, POST_OPS_RULE).groups
    }
    singles = {("c1",), ("r1",), ("c2",), ("add",), ("r2",)}
    assert found == singles | {("c1", "r1"), ("add", "c2"), ("add", "c2", "r2"), ("add", "r2")}


def test_a_value_read_elsewhere_stays_visible(backend: Any, target: Any) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Tanh", ["a"], ["b"])]
    graph = make_graph(nodes, {"x": values(3)}, outputs=["a", "b"])
    declined = backend.variants(Subgraph(graph, graph.all_nodes), target)
    assert isinstance(declined, Refusal)
    assert "outside" in declined.reason


def test_bound_kernels_read_what_the_buffers_hold_then(backend: Any, target: Any) -> None:
    """Two bindings of one kernel are independent, and new inputs are seen."""
    first, inputs, constants = conv()
    graph = make_graph([first], inputs, constants)
    group = Subgraph(graph, NodeSet([graph.nodes[0].id]))
    variant = backend.variants(group, target)[0]
    kernel = backend.build(group, variant, target)
    bindings = []
    for _ in range(2):
        x, y = empty((1, 16, 9, 9), variant.inputs[0]), empty((1, 16, 9, 9), variant.outputs[0])
        bindings.append((x, y, kernel.bind([x], [y], np.empty(kernel.workspace_bytes, np.uint8), IMMEDIATE)))
    del kernel
    for seed in (4, 5):
        for i, (x, _, _) in enumerate(bindings):
            x[...] = values(1, 16, 9, 9, seed=seed + 10 * i)
        for x, y, bound in bindings:
            assert not bound()
            expected = evaluate(graph, {"x": np.ascontiguousarray(x)})["c"]
            np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
