"""BERT's encoder (Devlin et al., arXiv 1810.04805) as an exporter writes it."""

from __future__ import annotations

import math

import numpy as np
import onnx

from collage_benchmarks.networks.builder import GraphBuilder

__all__ = ["bert_encoder"]


def bert_encoder(
    *,
    layers: int = 2,
    hidden: int = 768,
    heads: int = 12,
    tokens: int = 128,
    vocab: int = 30522,
    intermediate: int | None = None,
    pooler: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """`input_ids`, `token_type_ids` int64 [1, tokens] -> `last_hidden_state` [1, tokens, hidden].

    With `pooler` also `pooler_output` [1, hidden]. GELU is decomposed, attention is not masked.
    """
    g = GraphBuilder(f"bert_{layers}x{hidden}", seed=seed)
    x = _embeddings(g, tokens, hidden, vocab)
    for layer in range(layers):
        path = f"encoder/layer.{layer}"
        x = _attention(g, f"{path}/attention", x, tokens, hidden, heads)
        x = _feed_forward(g, path, x, hidden, intermediate or 4 * hidden)
    g.output(g.op("encoder", "Identity", x, output="last_hidden_state"))
    if pooler:
        _pooler(g, "last_hidden_state", hidden)
    return g.model()


def _embeddings(g: GraphBuilder, tokens: int, hidden: int, vocab: int) -> str:
    path, weight = "embeddings", "embeddings"
    words = g.op(
        f"{path}/word_embeddings",
        "Gather",
        g.normal(f"{weight}.word_embeddings.weight", (vocab, hidden), 0.05),
        g.input("input_ids", [1, tokens], "int64"),
    )
    kinds = g.op(
        f"{path}/token_type_embeddings",
        "Gather",
        g.normal(f"{weight}.token_type_embeddings.weight", (2, hidden), 0.05),
        g.input("token_type_ids", [1, tokens], "int64"),
    )
    positions = g.op(
        f"{path}/position_embeddings",
        "Gather",
        g.normal(f"{weight}.position_embeddings.weight", (max(512, tokens), hidden), 0.05),
        g.constant(f"{weight}.position_ids", np.arange(tokens, dtype=np.int64)[None]),
    )
    total = g.op(f"{path}/sum", "Add", g.op(f"{path}/types", "Add", words, kinds), positions)
    return _layer_norm(g, f"{path}/LayerNorm", total, hidden)


def _attention(g: GraphBuilder, path: str, x: str, tokens: int, hidden: int, heads: int) -> str:
    inner, size = f"{path}/self", hidden // heads
    split = g.constant(f"/{inner}/split", np.array([1, tokens, heads, size], np.int64))

    def head(name: str, perm: list[int]) -> str:
        y = _dense(g, f"{inner}/{name}", x, hidden, hidden)
        y = g.op(f"{inner}/{name}", "Reshape", y, split)
        return g.op(f"{inner}/{name}", "Transpose", y, perm=perm)

    query, key = head("query", [0, 2, 1, 3]), head("key", [0, 2, 3, 1])
    value = head("value", [0, 2, 1, 3])
    scores = g.op(f"{inner}/scores", "MatMul", query, key)
    root = g.constant(f"/{inner}/root", np.array(math.sqrt(size), np.float32))
    weights = g.op(inner, "Softmax", g.op(inner, "Div", scores, root), axis=-1)
    mixed = g.op(
        f"{inner}/context", "Transpose", g.op(f"{inner}/context", "MatMul", weights, value), perm=[0, 2, 1, 3]
    )
    joined = g.constant(f"/{inner}/joined", np.array([1, tokens, hidden], np.int64))
    y = _dense(g, f"{path}/output/dense", g.op(f"{inner}/context", "Reshape", mixed, joined), hidden, hidden)
    return _layer_norm(g, f"{path}/output/LayerNorm", g.op(f"{path}/output", "Add", y, x), hidden)


def _feed_forward(g: GraphBuilder, path: str, x: str, hidden: int, inner: int) -> str:
    y = _dense(g, f"{path}/intermediate/dense", x, hidden, inner)
    y = _gelu(g, f"{path}/intermediate/intermediate_act_fn", y)
    y = _dense(g, f"{path}/output/dense", y, inner, hidden)
    return _layer_norm(g, f"{path}/output/LayerNorm", g.op(f"{path}/output", "Add", y, x), hidden)


def _gelu(g: GraphBuilder, path: str, x: str) -> str:
    """x * (1 + erf(x / sqrt 2)) * 0.5, in the exporter's order."""
    root = g.constant(f"/{path}/root", np.array(math.sqrt(2), np.float32))
    one = g.constant(f"/{path}/one", np.array(1, np.float32))
    half = g.constant(f"/{path}/half", np.array(0.5, np.float32))
    y = g.op(path, "Add", g.op(path, "Erf", g.op(path, "Div", x, root)), one)
    return g.op(f"{path}/half", "Mul", g.op(path, "Mul", x, y), half)


def _dense(g: GraphBuilder, path: str, x: str, features_in: int, features_out: int) -> str:
    weight = path.replace("/", ".")
    y = g.op(path, "MatMul", x, g.normal(f"{weight}.weight", (features_in, features_out), features_in**-0.5))
    return g.op(path, "Add", g.normal(f"{weight}.bias", (features_out,), 0.05), y)


def _layer_norm(g: GraphBuilder, path: str, x: str, features: int) -> str:
    weight = path.replace("/", ".")
    return g.op(
        path,
        "LayerNormalization",
        x,
        g.normal(f"{weight}.weight", (features,), 0.1, 1.0),
        g.normal(f"{weight}.bias", (features,), 0.05),
        axis=-1,
        epsilon=1e-12,
    )


def _pooler(g: GraphBuilder, x: str, hidden: int) -> None:
    first = g.op("pooler", "Gather", x, g.constant("pooler.index", np.array(0, np.int64)), axis=1)
    y = g.op(
        "pooler/dense",
        "Gemm",
        first,
        g.normal("pooler.dense.weight", (hidden, hidden), hidden**-0.5),
        g.normal("pooler.dense.bias", (hidden,), 0.05),
        transB=1,
    )
    g.output(g.op("pooler/activation", "Tanh", y, output="pooler_output"))
