"""Plans of MatMul and Gemm."""

from __future__ import annotations

from dataclasses import replace

from collage_core.ir import Node
from collage_dnnl.chain import Chain
from collage_dnnl.enums import Alg, Arg
from collage_dnnl.kernels.plan import (
    Argument,
    BinaryPostOp,
    Constant,
    Eltwise,
    Output,
    Plan,
    Source,
    packed_weights,
)
from collage_dnnl.kernels.site import Site
from collage_dnnl.kernels.spatial import take_bias
from collage_dnnl.steps import Binary, Step
from collage_dnnl.tensor import Groups, Tensor, dense, regroup

__all__ = ["plan_gemm", "plan_matmul"]

_PostOps = tuple[Eltwise | BinaryPostOp, ...]


def plan_matmul(site: Site, chain: Chain, node: Node) -> Plan:
    """numpy's matmul. With one matrix on the right, the dimensions on the left become rows of one matrix
    wherever strides allow it.
    """
    a_name, b_name = node.inputs
    a, b = site.tensor(a_name), site.tensor(b_name)
    out_layout, rank = site.layout(chain.output), len(site.shape(chain.output))
    bias, steps = None, chain.steps
    if b.rank > 1:
        bias, steps = take_bias(site, steps, chain.output, rank - 1)
    row, column = a.rank > 1, b.rank > 1
    a = a if row else a.expanded(2)
    b = b if column else Tensor((*b.dims, 1), (*b.strides, 1), b.dtype)
    batch = rank - row - column
    rows: list[int] = [batch] if row else []
    columns: list[int] = [rank - 1] if column else []
    attempts: list[tuple[Tensor | None, Tensor | None, Groups]] = []
    if all(d == 1 for d in b.dims[:-2]):
        merged = regroup(a, [range(a.rank - 1), [a.rank - 1]])
        matrix = Tensor(b.dims[-2:], b.strides[-2:], b.dtype)
        attempts.append((merged, matrix, [[*range(batch), *rows], columns]))
    if a.dims[:-2] == b.dims[:-2] and batch:
        sides = [regroup(t, [range(batch), [batch], [batch + 1]]) for t in (a, b)]
        attempts.append((sides[0], sides[1], [range(batch), rows, columns]))
    attempts.append(
        (a.expanded(batch + 2), b.expanded(batch + 2), [*([d] for d in range(batch)), rows, columns])
    )
    output = site.tensor(chain.output)
    for left, right, groups in attempts:
        dst = regroup(output, groups)
        ops = site.post_ops(steps, chain.output, out_layout, groups)
        if left is None or right is None or dst is None or ops is None:
            continue
        return _plan(dst, (left, site.source(a_name)), (right, site.source(b_name)), bias, ops)
    raise AssertionError("the last attempt merges nothing")


def plan_gemm(site: Site, chain: Chain, node: Node) -> Plan:
    """alpha * A' * B' + beta * C: alpha goes into constant weights or before the other post-operations."""
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    a, b = site.tensor(node.inputs[0]), site.tensor(node.inputs[1])
    if node.attributes.get("transA", 0):
        a = a.permuted((1, 0))
    if node.attributes.get("transB", 0):
        b = b.permuted((1, 0))
    out_layout = site.layout(chain.output)
    output = site.tensor(chain.output)
    source = site.source(node.inputs[1])
    scaled = alpha == 1.0 or isinstance(source, Constant)
    if isinstance(source, Constant):
        source = replace(source, factor=alpha)
    before: list[Eltwise | BinaryPostOp] = [] if scaled else [Eltwise(Alg.ELTWISE_LINEAR, alpha)]
    bias: Constant | None = None
    steps: tuple[Step, ...] = chain.steps
    c = node.inputs[2] if len(node.inputs) > 2 else ""
    if c and beta != 0.0:
        found, _ = take_bias(site, (Binary(Alg.BINARY_ADD, c),), chain.output, 1)
        if found is not None and scaled:
            bias = Constant(found.data, found.layout, beta)
        else:
            before += _addend(site, c, beta, chain.output, output)
    elif scaled:
        bias, steps = take_bias(site, steps, chain.output, 1)
    ops = site.post_ops(steps, chain.output, out_layout)
    assert ops is not None  # no dimensions are merged
    return _plan(output, (a, site.source(node.inputs[0])), (b, source), bias, (*before, *ops))


def _addend(site: Site, name: str, beta: float, output: str, dst: Tensor) -> list[Eltwise | BinaryPostOp]:
    """The steps that add beta * C: for a variable C, x + beta * c is (x / beta + c) * beta."""
    layout = site.layout(output)
    tensor, source = site.operand(name, layout)
    if isinstance(source, Constant):
        return [BinaryPostOp(Alg.BINARY_ADD, tensor, Constant(source.data, source.layout, beta))]
    is_residual = (tensor.dims, tensor.dtype) == (dst.dims, dst.dtype)
    added = BinaryPostOp(Alg.BINARY_ADD, tensor, source, is_residual)
    if beta == 1.0:
        return [added]
    return [Eltwise(Alg.ELTWISE_LINEAR, 1.0 / beta), added, Eltwise(Alg.ELTWISE_LINEAR, beta)]


def _plan(
    dst: Tensor,
    left: tuple[Tensor, Source],
    right: tuple[Tensor, Source],
    bias: Constant | None,
    ops: _PostOps,
) -> Plan:
    packed = isinstance(right[1], Constant)
    arguments = [Argument(Arg.SRC, left[0], left[1]), Argument(Arg.WEIGHTS, right[0], right[1], packed)]
    bias_tensor: Tensor | None = None
    if bias is not None:
        dims = (1,) * (dst.rank - 1) + dst.dims[-1:]
        bias_tensor = dense(dims, tuple(range(dst.rank)))
        arguments.append(Argument(Arg.BIAS, bias_tensor, bias))
    arguments.append(Argument(Arg.DST, dst, Output()))
    weights = packed_weights(right[0], left[0]) if packed else right[0]
    return Plan("matmul", (left[0], weights, bias_tensor, dst), tuple(arguments), ops)
