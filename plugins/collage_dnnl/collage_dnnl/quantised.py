"""Groups between DequantizeLinear and QuantizeLinear, read as one primitive on whole numbers.

With s for scales and z for zero points, oneDNN computes of a product (its page "Quantization")

    y_q = saturate(round(post-ops(s_x * s_w * sum((x_q - z_x) * w_q) + bias) / s_y + z_y))

with sums in int32, the rest in float32, halves rounded to even. So does the group, node by node, but for two
things. ONNX adds z_y when it has rounded: of halves, an odd one makes the other neighbour. And floats are
multiplied in another order. Where that decides what is rounded, the two are a step apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collage_core.errors import Refusal
from collage_core.formats import Array
from collage_core.ir import Graph, Node, NodeSet, Subgraph
from collage_core.ir.steps import Steps, are_ordinary, steps_of
from collage_core.target import processor
from collage_dnnl.chain import Chain, parse
from collage_dnnl.enums import Alg, Arg
from collage_dnnl.kernels.plan import Argument, Constant, Eltwise, Plan
from collage_dnnl.steps import Binary, Step
from collage_dnnl.tensor import dense

__all__ = ["QUANTISERS", "Quantisation", "parse_group", "quantised_plan"]

QUANTISERS = frozenset(["DequantizeLinear", "QuantizeLinear"])
_PRODUCTS = frozenset(["Conv", "Gemm", "MatMul"])
_MAXIMA = frozenset(["GlobalMaxPool", "MaxPool"])
_POOLS = _MAXIMA | {"AveragePool", "GlobalAveragePool"}


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Of a chain. whole: by value or constant that is dequantised what it comes from. operands: of what the
    primitive works on, but for weights. output: None where floats are handed on. weights: their scales, one
    or one for each channel of the output, float32; None where there are none. They have no zero point.
    """

    whole: Mapping[str, str]
    operands: tuple[Steps, ...]
    output: Steps | None
    weights: Array | None = None


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
    chain = _inner(graph, given, inner, last)
    if isinstance(chain, Refusal):
        return chain
    end = chain.output if last is None else last.outputs[0]
    if subgraph.outputs != (end,):
        return Refusal("a value inside the group is read outside it", subgraph.nodes[0].name)
    if last is not None and last.inputs[0] != chain.output:
        return Refusal("what is quantised is not what the others end in", last.name)
    output = None if last is None else steps_of(graph, last)
    if isinstance(output, Refusal):
        return output
    steps: dict[str, Steps] = {}
    for node in given:
        if graph.is_constant(node.inputs[0]):
            return Refusal("what is dequantised is constant", node.name)
        found = steps_of(graph, node)
        if isinstance(found, Refusal):
            return found
        steps[node.outputs[0] if inner else node.inputs[0]] = found
    whole = {n.outputs[0]: n.inputs[0] for n in given} if inner else {}
    quantisation = Quantisation(whole, (*steps.values(),), output)
    if chain.anchor is None:
        checked = _elementwise(chain, steps, quantisation)
    elif chain.anchor.op_type in _PRODUCTS:
        checked = _product(graph, chain, chain.anchor, quantisation)
    else:
        checked = _pool(chain, chain.anchor, quantisation)
    return checked if isinstance(checked, Refusal) else (replace(chain, output=end), checked)


def _inner(graph: Graph, given: Sequence[Node], inner: Sequence[Node], last: Node | None) -> Chain | Refusal:
    """What is done between dequantising and quantising; nothing, where one of the two stands alone."""
    if inner:
        return parse(Subgraph(graph, NodeSet(n.id for n in inner)))
    alone = [*given, *([] if last is None else [last])]
    if len(alone) > 1:
        return Refusal("nothing is computed between the two", alone[0].name)
    (node,) = alone
    if not graph.type_of(node.outputs[0]).size or graph.is_constant(node.inputs[0]):
        return Refusal("no elements, or constants", node.name)
    x = node.inputs[0]
    return Chain(graph, None, x, (), x if last is not None else node.outputs[0])


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
    return replace(quantisation, whole=whole, weights=weights)


def _weights(graph: Graph, anchor: Node) -> Array | Refusal:
    """Their scales: one for all, or one for each channel of the output."""
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
    if not are_ordinary(scale):
        return Refusal("weights with scales that are not positive, or next to zero or infinity", anchor.name)
    return scale.reshape(-1)


def _pool(chain: Chain, anchor: Node, quantisation: Quantisation) -> Quantisation | Refusal:
    """The largest of whole numbers, where they stand for the same before and after, and averages without
    padding, which would stand for another number than zero.
    """
    if anchor.op_type not in _POOLS or chain.steps or list(quantisation.whole) != [anchor.inputs[0]]:
        return Refusal(f"{anchor.op_type} works on no whole numbers here", anchor.name)
    (source,), output = quantisation.operands, quantisation.output
    if output is None:
        return Refusal("what is pooled is not quantised again", anchor.name)
    if anchor.op_type in _MAXIMA:
        return quantisation if source == output else Refusal("quantised otherwise than before", anchor.name)
    padded = any(anchor.attributes.get("pads", ())) or anchor.attributes.get("auto_pad", "NOTSET") != "NOTSET"
    return Refusal("averages with padding", anchor.name) if padded else quantisation


def _elementwise(
    chain: Chain, quantised: Mapping[str, Steps], quantisation: Quantisation
) -> Quantisation | Refusal:
    """Of one that is quantised, with constants; of two, their sum and what follows it."""
    graph, steps = chain.graph, chain.steps
    computed = [s for s in steps if isinstance(s, Binary) and not graph.is_constant(s.operand)]
    if not steps:
        return quantisation  # one of the two alone
    if quantisation.output is None:
        return Refusal("what is computed of whole numbers is not quantised again")
    if chain.source not in quantised:
        return Refusal("what is dequantised is not what the others begin with")
    first = steps[0]
    if len(quantised) == 1:
        if computed:
            return Refusal("an operand that is computed")
        return _with_constant(graph, first, quantisation)
    if not isinstance(first, Binary) or first.alg != Alg.BINARY_ADD or [first] != computed:
        return Refusal("no sum of the two that are dequantised")
    if first.operand not in quantised or graph.shape_of(first.operand) != graph.shape_of(chain.source):
        return Refusal("a sum of two of other shapes, or not of whole numbers both")
    return replace(quantisation, operands=(quantised[chain.source], quantised[first.operand]))


def _with_constant(graph: Graph, first: Step, quantisation: Quantisation) -> Quantisation:
    """The same; with what is added first as whole numbers, where the model has it so."""
    if not isinstance(first, Binary) or first.alg != Alg.BINARY_ADD:
        return quantisation
    maker = graph.dequantised.get(first.operand)
    steps = None if maker is None else steps_of(graph, maker)
    if maker is None or not isinstance(steps, Steps):
        return quantisation
    whole = {**quantisation.whole, first.operand: maker.inputs[0]}
    return replace(quantisation, whole=whole, operands=(*quantisation.operands, steps))


def quantised_plan(plan: Plan, quantisation: Quantisation) -> Plan:
    """The plan of the same primitive on whole numbers. plan: made on a `Site` that reads these."""
    output = quantisation.output
    if plan.function == "binary":
        assert output is not None
        return _quantised_elementwise(plan, quantisation.operands, output)
    if plan.function == "pooling_forward":
        assert output is not None
        return _quantised_pool(plan, quantisation.operands[0], output)
    operands = zip((Arg.SRC,), quantisation.operands, strict=False)  # none of floats that are quantised
    ends = [*operands, *([] if output is None else [(Arg.DST, output)])]
    plan = _with_scales(plan, ends)
    if quantisation.weights is not None:
        mask = _channels(plan) if quantisation.weights.size > 1 else 0
        plan = _with(plan, Arg.ATTR_SCALES | Arg.WEIGHTS, quantisation.weights, mask)
    for arg, steps in ends:
        if steps.zero_point:
            plan = _with(plan, Arg.ATTR_ZERO_POINTS | arg, np.full(1, steps.zero_point, np.int32))
    return plan


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


def _quantised_elementwise(plan: Plan, operands: Sequence[Steps], output: Steps) -> Plan:
    """The primitive scales its operands and knows no zero points: what these make of the sum is taken off."""
    offset = sum(steps.scale * steps.zero_point for steps in operands)
    before = [Eltwise(Alg.ELTWISE_LINEAR, 1.0, -offset)] if offset else []
    after = Eltwise(Alg.ELTWISE_LINEAR, 1.0 / output.scale, output.zero_point)
    plan = _with_scales(plan, zip((Arg.SRC, Arg.SRC_1), operands, strict=False))
    return replace(plan, post_ops=(*before, *plan.post_ops, after), may_alias={})


def _quantised_pool(plan: Plan, source: Steps, output: Steps) -> Plan:
    """The primitive averages whole numbers, and has no scales: a step after it makes those of the output."""
    if source == output:
        return plan
    factor = source.scale / output.scale
    after = Eltwise(Alg.ELTWISE_LINEAR, factor, output.zero_point - factor * source.zero_point)
    return replace(plan, post_ops=(after,))


def _with_scales(plan: Plan, steps: Iterable[tuple[Arg, Steps]]) -> Plan:
    for arg, of in steps:
        plan = _with(plan, Arg.ATTR_SCALES | arg, np.full(1, of.scale, np.float32))
    return plan


def _with(plan: Plan, arg: int, data: Array, mask: int = 0) -> Plan:
    """With scales or zero points. mask: of the dimensions along which they vary."""
    dtype = data.dtype.name
    argument = Argument(arg, dense(data.shape, (0,), dtype), Constant(data, (0,), dtype=dtype))
    return replace(plan, arguments=(*plan.arguments, argument), masks={**plan.masks, arg: mask})
