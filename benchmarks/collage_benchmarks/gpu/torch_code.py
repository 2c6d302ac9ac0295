"""A graph as PyTorch would have it: source of a module, for eager runs and for its compiler.

It is what a person would write down: one call of `torch` for each node, no interpreter between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collage_core.errors import CollageError
from collage_core.formats import Array
from collage_core.ir import Graph, Node

__all__ = ["module_of", "source_of"]

_Arguments = Sequence[str]


def source_of(graph: Graph) -> tuple[str, dict[str, Array]]:
    """The source of `forward(self, ...)` with the graph's inputs in their order, and the constants that it
    finds on `self`, by attribute. CollageError for an operator, or a form of one, that has no counterpart.
    """
    names: dict[str, str] = {value: f"x{i}" for i, value in enumerate(graph.inputs)}
    held: dict[str, Array] = {}

    def name_of(value: str) -> str:
        if value not in names:
            if not graph.is_constant(value):
                names[value] = f"v{len(names)}"
            else:
                attribute = f"c{len(held)}"
                held[attribute] = graph.constants[value]
                names[value] = f"self.{attribute}"
        return names[value]

    lines = [f"def forward(self, {', '.join(names.values())}):"]
    for node in graph.nodes:
        given = [name_of(v) if v else "None" for v in node.inputs]
        lines.append(f"    {name_of(node.outputs[0])} = {_call(graph, node, given)}")
    lines.append(f"    return ({''.join(names[v] + ', ' for v in graph.outputs)})")
    return "\n".join(lines) + "\n", held


def module_of(graph: Graph, dtype: str) -> Any:
    """A `torch.nn.Module` in evaluation mode; floats are held as `dtype`, torch's name for one."""
    import torch
    import torch.nn.functional

    source, held = source_of(graph)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(source, scope)  # our own text

    class Module(torch.nn.Module):  # type: ignore[misc]
        forward = scope["forward"]

    module = Module()
    for attribute, array in held.items():
        tensor = torch.from_numpy(np.array(array))  # one that may be written
        module.register_buffer(
            attribute, tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
        )
    return module.eval()


def _call(graph: Graph, node: Node, given: _Arguments) -> str:
    maker = _MAKERS.get(node.op_type)
    if maker is None:
        raise CollageError(f"{node.op_type} ({node.name}) has no counterpart in torch here")
    return maker(graph, node, given)


def _named(function: str) -> Callable[[Graph, Node, _Arguments], str]:
    return lambda graph, node, given: f"{function}({', '.join(given)})"


def _infix(operator: str) -> Callable[[Graph, Node, _Arguments], str]:
    return lambda graph, node, given: f" {operator} ".join(given)


def _window(node: Node, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and the same padding on both sides."""
    attributes: Mapping[str, Any] = node.attributes
    pads = [*attributes.get("pads", (0,) * 2 * rank)]
    if pads[:rank] != pads[rank:] or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise CollageError(f"{node.name} pads one side more than the other")
    strides, dilations = ([*attributes.get(name, ())] or [1] * rank for name in ("strides", "dilations"))
    return strides, dilations, pads[:rank]


def _conv(graph: Graph, node: Node, given: _Arguments) -> str:
    rank = len(graph.shape_of(node.inputs[0])) - 2
    strides, dilations, pads = _window(node, rank)
    group = node.attributes.get("group", 1)
    bias = given[2] if len(given) > 2 else "None"
    told = f"stride={strides}, padding={pads}, dilation={dilations}, groups={group}"
    if node.op_type == "Conv":
        return f"F.conv{rank}d({given[0]}, {given[1]}, {bias}, {told})"
    if any(node.attributes.get("output_padding", ())) or "output_shape" in node.attributes:
        raise CollageError(f"{node.name} says its output's shape")
    return f"F.conv_transpose{rank}d({given[0]}, {given[1]}, {bias}, {told})"


def _pool(graph: Graph, node: Node, given: _Arguments) -> str:
    rank = len(graph.shape_of(node.inputs[0])) - 2
    strides, dilations, pads = _window(node, rank)
    kernel, ceil = [*node.attributes["kernel_shape"]], bool(node.attributes.get("ceil_mode", 0))
    told = f"{given[0]}, {kernel}, stride={strides}, padding={pads}, ceil_mode={ceil}"
    if node.op_type == "MaxPool":
        return f"F.max_pool{rank}d({told}, dilation={dilations})"
    return f"F.avg_pool{rank}d({told}, count_include_pad={bool(node.attributes.get('count_include_pad', 0))})"


def _gemm(graph: Graph, node: Node, given: _Arguments) -> str:
    if (node.attributes.get("alpha", 1.0), node.attributes.get("beta", 1.0)) != (1.0, 1.0):
        raise CollageError(f"{node.name} scales its products")
    a = f"{given[0]}.T" if node.attributes.get("transA", 0) else given[0]
    bias = given[2] if len(given) > 2 else "None"
    if node.attributes.get("transB", 0) and len(given) > 2:
        return f"F.linear({a}, {given[1]}, {bias})"
    product = f"{a} @ {given[1]}{'.T' if node.attributes.get('transB', 0) else ''}"
    return f"{product} + {bias}" if len(given) > 2 else product


def _layer_norm(graph: Graph, node: Node, given: _Arguments) -> str:
    shape = graph.shape_of(node.inputs[0])
    axis = node.attributes.get("axis", -1) % len(shape)
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    return f"F.layer_norm({given[0]}, {[*shape[axis:]]}, {', '.join(given[1:])}, eps={epsilon!r})"


def _clip(graph: Graph, node: Node, given: _Arguments) -> str:
    if not all(graph.is_constant(v) for v in node.inputs[1:] if v):
        raise CollageError(f"{node.name} has limits that are computed")
    limits = [float(graph.constants[v]) if v else None for v in node.inputs[1:]]
    return f"torch.clamp({', '.join([given[0], *map(repr, limits)])})"


def _shaped(graph: Graph, node: Node, given: _Arguments) -> str:
    return f"{given[0]}.reshape({[*graph.shape_of(node.outputs[0])]})"


def _gather(graph: Graph, node: Node, given: _Arguments) -> str:
    axis, table = node.attributes.get("axis", 0), graph.shape_of(node.inputs[0])
    if axis == 0 and len(table) == 2:
        return f"F.embedding({given[1]}, {given[0]})"
    picked = f"torch.index_select({given[0]}, {axis}, {given[1]}.reshape(-1))"
    return f"{picked}.reshape({[*graph.shape_of(node.outputs[0])]})"


_MAKERS: Mapping[str, Callable[[Graph, Node, _Arguments], str]] = {
    "Add": _infix("+"),
    "AveragePool": _pool,
    "Clip": _clip,
    "Concat": lambda graph, node, given: f"torch.cat([{', '.join(given)}], {node.attributes['axis']})",
    "Conv": _conv,
    "ConvTranspose": _conv,
    "Div": _infix("/"),
    "Flatten": _shaped,
    "Gather": _gather,
    "Gelu": lambda graph, node, given: (
        f"F.gelu({given[0]}, approximate={node.attributes.get('approximate', 'none')!r})"
    ),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda graph, node, given: f"{given[0]}.mean((2, 3), keepdim=True)",
    "Identity": lambda graph, node, given: given[0],
    "LayerNormalization": _layer_norm,
    "MatMul": _infix("@"),
    "MaxPool": _pool,
    "Mul": _infix("*"),
    "Relu": _named("F.relu"),
    "Reshape": _shaped,
    "Sigmoid": _named("torch.sigmoid"),
    "Softmax": lambda graph, node, given: f"F.softmax({given[0]}, {node.attributes.get('axis', -1)})",
    "Sub": _infix("-"),
    "Tanh": _named("torch.tanh"),
    "Transpose": lambda graph, node, given: f"{given[0]}.permute({[*node.attributes['perm']]})",
}
"""By operator of ONNX, as the passes leave it."""
