"""Groups between DequantizeLinear and QuantizeLinear, read as one primitive on whole numbers.

With s for scales and z for zero points, oneDNN computes of a product (its page "Quantization")

    y_q = saturate(round(post-ops(s_x * s_w * sum((x_q - z_x) * w_q) + bias) / s_y) + z_y)

with sums in int32, the rest in float32, halves rounded to even. So does the group, node by node, but for the
order in which floats are multiplied: where that decides what is rounded, the two are a step apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collage_core.device import processor
from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Node, NodeSet, Subgraph
from collage_dnnl.chain import Chain, parse
from collage_dnnl.enums import Alg, Arg
from collage_dnnl.kernels.plan import Argument, Constant, Eltwise, Plan
from collage_dnnl.steps import Binary
from collage_dnnl.tensor import FP32, dense

__all__ = ["QUANTISERS", "Quantisation", "parse_group", "quantised_plan"]

QUANTISERS = frozenset(["DequantizeLinear", "QuantizeLinear"])
_PRODUCTS = frozenset(["Conv", "Gemm", "MatMul"])
_EIGHT_BITS = frozenset(["int8", "uint8"])


@dataclass(frozen=True, slots=True)
class Scale:
    """value = scale * (number - zero_point). scale: float32, of one element or one for each channel."""

    scale: Array
    zero_point: int

    @property
    def number(self) -> float:
        """The scale, of one element."""
        return float(self.scale.item())


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Of a chain. whole: by value or constant that is dequantised what it comes from. operands: of what the
    primitive works on, one or two, weights among them. output: None where floats are handed on.
    """

    whole: Mapping[str, str]
    operands: tuple[Scale, ...]
    output: Scale | None


def parse_group(subgraph: Subgraph) -> tuple[Chain, Quantisation | None] | Refusal:
    """Read a group as a chain, which may work on whole numbers; the Refusal names the node at which that
    fails.
    """
    if not any(n.op_type in QUANTISERS and not n.domain for n in subgraph.nodes):
        chain = parse(subgraph)
        return chain if isinstance(chain, Refusal) else (chain, None)
    graph, nodes = subgraph.graph, list(subgraph.nodes)
    last = nodes.pop() if nodes[-1].op_type == "QuantizeLinear" else None
    given = [n for n in nodes if n.op_type == "DequantizeLinear"]
    inner = [n for n in nodes if n not in given]
    if not given or not inner:
        return Refusal("oneDNN works on whole numbers from a DequantizeLinear on", subgraph.nodes[0].name)
    within = Subgraph(graph, NodeSet(n.id for n in inner))
    chain = parse(within)
    if isinstance(chain, Refusal):
        return chain
    end = chain.output if last is None else last.outputs[0]
    if subgraph.outputs != (end,):
        return Refusal("a value inside the group is read outside it", given[0].name)
    if within.outputs != (chain.output if last is None else last.inputs[0],):
        return Refusal("what is quantised is not what the others end in", inner[-1].name)
    output = None if last is None else _scale(graph, last, last.outputs[0])
    if isinstance(output, Refusal):
        return output
    scales = {}
    for node in given:
        found = _scale(graph, node, node.inputs[0])
        if isinstance(found, Refusal):
            return found
        scales[node.outputs[0]] = found
    whole = {n.outputs[0]: n.inputs[0] for n in given}
    if chain.anchor is not None and chain.anchor.op_type in _PRODUCTS:
        quantisation = _product(graph, chain, chain.anchor, Quantisation(whole, (*scales.values(),), output))
    else:
        quantisation = _sum(chain, scales, Quantisation(whole, (), output))
    if isinstance(quantisation, Refusal):
        return quantisation
    return replace(chain, output=end), quantisation


def _scale(graph: Graph, node: Node, number: str) -> Scale | Refusal:
    """That by which a QuantizeLinear or DequantizeLinear makes or reads `number`."""
    scale = graph.constants.get(node.inputs[1])
    zero = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
    if scale is None or zero is None:
        return Refusal("a scale or zero point that is computed", node.name)
    if (dtype := graph.type_of(number).dtype) not in _EIGHT_BITS:
        return Refusal(f"{dtype}, not int8 or uint8", node.name)
    if graph.is_constant(number):
        return Refusal("what is dequantised is constant", node.name)
    if scale.size != 1 or zero.size != 1:
        return Refusal("several scales of what is no weight", node.name)
    if scale.dtype != np.float32 or node.attributes.get("precision", 0):
        return Refusal(f"a scale of {scale.dtype}, not float32", node.name)
    return Scale(scale.reshape(1), int(zero.item()))


def _product(graph: Graph, chain: Chain, anchor: Node, quantisation: Quantisation) -> Quantisation | Refusal:
    """With the weights, which oneDNN sums in int32 where the processor does."""
    if list(quantisation.whole) != [anchor.inputs[0]]:
        return Refusal("what is dequantised is not what is multiplied", anchor.name)
    if any(isinstance(s, Binary) and not graph.is_constant(s.operand) for s in chain.steps):
        return Refusal("an operand beside what is quantised is computed", anchor.name)
    if not processor().multiplies_int8:
        return Refusal("this processor's products of eight bits saturate", anchor.name)
    weights = _weights(graph, anchor)
    if isinstance(weights, Refusal):
        return weights
    name = anchor.inputs[1]
    whole = {**quantisation.whole, name: graph.dequantised[name].inputs[0]}
    return Quantisation(whole, (*quantisation.operands, weights), quantisation.output)


def _weights(graph: Graph, anchor: Node) -> Scale | Refusal:
    """One scale for all, or one for each channel of the output."""
    if anchor.op_type == "Gemm" and (
        anchor.attributes.get("transA", 0)
        or float(anchor.attributes.get("alpha", 1.0)) != 1.0
        or float(anchor.attributes.get("beta", 1.0)) != 1.0
    ):
        return Refusal("a Gemm with factors, or of a transposed value", anchor.name)
    name = anchor.inputs[1]
    maker = graph.dequantised.get(name)
    if maker is None:
        return Refusal("weights that are floats", anchor.name)
    rank = len(graph.shape_of(name))
    if anchor.op_type != "Conv" and rank != 2:
        return Refusal(f"weights of {rank} dimensions", anchor.name)
    if (dtype := graph.type_of(maker.inputs[0]).dtype) != "int8":
        return Refusal(f"weights of {dtype}, not int8", anchor.name)
    if len(maker.inputs) > 2 and maker.inputs[2] and graph.constants[maker.inputs[2]].any():
        return Refusal("weights with a zero point", anchor.name)
    scale = graph.constants[maker.inputs[1]]
    is_first = anchor.op_type == "Conv" or bool(anchor.attributes.get("transB", 0))
    channel = 0 if is_first else rank - 1
    if maker.attributes.get("block_size", 0) or scale.dtype != np.float32:
        return Refusal("weights with scales of blocks, or not of float32", anchor.name)
    if scale.size > 1 and int(maker.attributes.get("axis", 1)) % rank != channel:
        return Refusal("weights with scales along another axis than the output's channels", anchor.name)
    return Scale(scale.reshape(-1), 0)


def _sum(chain: Chain, scales: Mapping[str, Scale], quantisation: Quantisation) -> Quantisation | Refusal:
    """Of two, which are quantised as one."""
    first, *rest = chain.steps
    if chain.anchor is not None or not isinstance(first, Binary) or any(isinstance(s, Binary) for s in rest):
        return Refusal("neither a product nor a sum of what is dequantised")
    shape = chain.graph.shape_of(chain.output)
    values = chain.source, first.operand
    if first.alg != Alg.BINARY_ADD or any(chain.graph.shape_of(v) != shape for v in values):
        return Refusal("a sum of two of other shapes, or none")
    if len(scales) != 2 or set(values) != set(scales) or quantisation.output is None:
        return Refusal("a sum of two that are not both quantised, as is what they make")
    return replace(quantisation, operands=tuple(scales[v] for v in values))


def quantised_plan(plan: Plan, quantisation: Quantisation) -> Plan:
    """The plan of the same primitive on whole numbers. plan: made on a `Site` that reads these."""
    output = quantisation.output
    if plan.function == "binary":
        assert output is not None
        return _quantised_sum(plan, quantisation.operands, output)
    source, weights = quantisation.operands
    scaled = [(Arg.SRC, source), (Arg.WEIGHTS, weights), *([] if output is None else [(Arg.DST, output)])]
    plan = _with_scales(plan, scaled, _channels(plan))
    points = [(arg, scale.zero_point) for arg, scale in scaled if scale.zero_point]
    arguments = (_constant(Arg.ATTR_ZERO_POINTS | arg, np.full(1, z, np.int32), "int32") for arg, z in points)
    masks = {**plan.masks, **{Arg.ATTR_ZERO_POINTS | arg: 0 for arg, _ in points}}
    return replace(plan, arguments=(*plan.arguments, *arguments), masks=masks)


def _channels(plan: Plan) -> int:
    """The mask of the dimensions of weights that are channels of the output: the last of a product's; of a
    convolution's the first, or the first two, where groups come before.
    """
    weights, output = (
        next(a.tensor for a in plan.arguments if a.arg == arg) for arg in (Arg.WEIGHTS, Arg.DST)
    )
    if plan.function == "matmul":
        return 1 << (weights.rank - 1)
    return 0b11 if weights.rank > output.rank else 0b1


def _quantised_sum(plan: Plan, operands: Sequence[Scale], output: Scale) -> Plan:
    """The primitive scales its operands and knows no zero points: what these make of the sum is taken off."""
    offset = sum(scale.number * scale.zero_point for scale in operands)
    before = [Eltwise(Alg.ELTWISE_LINEAR, 1.0, -offset)] if offset else []
    after = Eltwise(Alg.ELTWISE_LINEAR, 1.0 / output.number, output.zero_point)
    plan = _with_scales(plan, zip((Arg.SRC, Arg.SRC_1), operands, strict=True), 0)
    return replace(plan, post_ops=(*before, *plan.post_ops, after), may_alias={})


def _with_scales(plan: Plan, scaled: Iterable[tuple[Arg, Scale]], channels: int) -> Plan:
    """channels: mask of those scales that are several."""
    arguments, masks = list(plan.arguments), dict(plan.masks)
    for arg, scale in scaled:
        arguments.append(_constant(Arg.ATTR_SCALES | arg, scale.scale, FP32))
        masks[Arg.ATTR_SCALES | arg] = channels if scale.scale.size > 1 else 0
    return replace(plan, arguments=tuple(arguments), masks=masks)


def _constant(arg: int, data: Array, dtype: str) -> Argument:
    return Argument(arg, dense(data.shape, (0,), dtype), Constant(data, (0,), dtype=dtype))
