"""Matrix products and what is made of them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from collage_benchmarks.generator.builder import FLOATS, Builder, Value
from collage_benchmarks.generator.domains import ANY, SMALL, Domain
from collage_benchmarks.generator.family import Family

__all__ = ["FAMILY"]

FAMILY = Family()

_EQUATIONS = {
    "ij,jk->ik": ("ij", "jk"),
    "ij,jk": ("ij", "jk"),
    "bij,bjk->bik": ("bij", "bjk"),
    "ij->ji": ("ij",),
    "ij->i": ("ij",),
    "ii->i": ("ii",),
    "i,i->": ("i", "i"),
    "i,j->ij": ("i", "j"),
    "bhik,bhjk->bhij": ("bhik", "bhjk"),
    "ij,ij->ij": ("ij", "ij"),
    "...ij,...jk->...ik": ("bij", "bjk"),
    "ij,jk,kl->il": ("ij", "jk", "kl"),
}


@FAMILY.add("MatMul")
def matmul(b: Builder) -> None:
    x, y = _matrices(b, b.dtype("MatMul"), ANY)
    b.node("MatMul", [x, y])


def _matrices(b: Builder, dtype: str, domain: Domain, other: str | None = None) -> tuple[Value, Value]:
    """Two stacks of matrices, or vectors, as numpy.matmul takes them."""
    x = b.some(dtype, 1, 4, domain, most=512, fits=lambda v: 0 not in v.shape)
    inner = x.shape[-1]
    how = b.integer(0, 3)
    if how == 0:
        shape: tuple[int, ...] = (inner,)
    else:
        lead = () if how == 1 or x.rank < 3 else b.broadcastable(x.shape[:-2])
        shape = (*lead, inner, b.choice([1, 2, 3, 7, 16, 17]))
    return x, b.operand(other or dtype, shape, domain)


@FAMILY.add("Gemm")
def gemm(b: Builder) -> None:
    m, k, n = (b.choice([1, 2, 3, 7, 16, 17]) for _ in range(3))
    a, c = b.choice([None, 0, 1]), b.choice([None, 0, 1])
    x = b.operand(b.dtype("Gemm"), (k, m) if a else (m, k))
    y = b.operand(x.dtype, (n, k) if c else (k, n))
    z = b.operand(x.dtype, b.broadcastable((m, n))) if b.flag() else None
    whole = x.dtype not in FLOATS
    factors = [None, 1.0, 2.0] if whole else [None, 0.5, 1.0, 2.0, 0.0]
    b.node("Gemm", [x, y, z], alpha=b.choice(factors), beta=b.choice(factors), transA=a, transB=c)


@FAMILY.add("Einsum")
def einsum(b: Builder) -> None:
    equation = b.choice(list(_EQUATIONS))
    dtype = b.dtype("Einsum", None, (*FLOATS, "int64", "int32"))
    sizes = {letter: b.choice([1, 2, 3, 7]) for letter in "bhijkl"}
    operands = [b.operand(dtype, [sizes[i] for i in term]) for term in _EQUATIONS[equation]]
    b.node("Einsum", operands, equation=equation)


@FAMILY.add("Det")
def determinant(b: Builder) -> None:
    n = b.integer(1, 4)
    b.node("Det", [b.operand(b.dtype("Det"), (*b.shape(0, 2, 8), n, n))])


@FAMILY.add("MatMulInteger")
def matmul_integer(b: Builder) -> None:
    first = b.dtype("MatMulInteger")
    x, y = _matrices(b, first, Domain(-9, 9), b.dtype("MatMulInteger", "T2"))
    zero = b.operand(x.dtype, (), SMALL) if b.flag() else None
    other = b.operand(y.dtype, (), SMALL) if zero and b.flag() else None
    b.node("MatMulInteger", [x, y, zero, other])


@FAMILY.add("Attention")
def attention(b: Builder) -> None:
    """In its form of rank 4 or of rank 3, with fewer heads for keys perhaps, a mask and what came before."""
    batch, groups, repeat, width = b.sizes((1, 2), (1, 2), (1, 2), (1, 4))
    queries, keys, before = b.sizes((1, 4), (1, 5), (1, 3))
    heads, dtype = groups * repeat, b.dtype("Attention", "T1", FLOATS)
    flat, past = b.one_in(3), b.one_in(3)

    def stack(count: int, length: int) -> Value:
        shape = (batch, length, count * width) if flat else (batch, count, length, width)
        return b.operand(dtype, shape)

    q, k, v = stack(heads, queries), stack(groups, keys), stack(groups, keys)
    total = keys + (before if past else 0)
    mask: Value | None = None
    if b.flag():
        kind = b.choice([dtype, "bool"])
        shape = b.choice([(queries, total), (batch, 1, queries, total), (batch, heads, queries, total)])
        mask = b.input(np.ones(shape, "bool")) if kind == "bool" else b.operand(dtype, shape)
    earlier = [b.operand(dtype, (batch, groups, before, width)) for _ in range(2)] if past else []
    sizes = {"q_num_heads": heads, "kv_num_heads": groups} if flat else {}
    causal = b.choice([None, 0, 1]) if not past and queries <= keys else None
    outputs = [True, past, past, not past and b.one_in(4)]
    b.node(
        "Attention",
        [q, k, v, mask, *earlier],
        outputs if any(outputs[1:]) else 1,
        is_causal=causal,
        scale=b.choice([None, 0.5]),
        softcap=b.choice([None, 0.0, 2.0]),
        qk_matmul_output_mode=b.choice([None, 0]),
        softmax_precision=b.choice([None, TensorProto.FLOAT]),
        **sizes,
    )


@FAMILY.add("RotaryEmbedding")
def rotary(b: Builder) -> None:
    batch, length, heads, half = b.sizes((1, 2), (1, 4), (1, 3), (1, 3))
    width, flat = 2 * half, b.flag()
    dtype = b.dtype("RotaryEmbedding", None, FLOATS)
    shape = (batch, length, heads * width) if flat else (batch, heads, length, width)
    x = b.operand(dtype, shape)
    told = b.flag()
    places: Value | None = None
    if told:
        table: tuple[int, ...] = (length + 3, half)
        places = b.input(b.rng.integers(0, length + 3, (batch, length)).astype("int64"))
    else:
        table = (batch, length, half)
    cosines, sines = b.operand(dtype, table), b.operand(dtype, table)
    b.node(
        "RotaryEmbedding",
        [x, cosines, sines, places],
        interleaved=b.choice([None, 0, 1]),
        num_heads=heads if flat else None,
    )
