"""Models of a few nodes, and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

__all__ = ["model_of", "relu_model", "tensor", "vector"]


def vector(
    name: str, shape: Sequence[int | str] | None = (2, 3), type: int = TensorProto.FLOAT
) -> ValueInfoProto:
    """What a model says of an input or an output."""
    return helper.make_tensor_value_info(name, type, shape)


def tensor(
    name: str, *, dims: Sequence[int] = (2, 3), bytes: int = 24, type: int = TensorProto.FLOAT
) -> TensorProto:
    """A weight of so many zero bytes, whether that fits `dims` or not."""
    return TensorProto(name=name, data_type=type, dims=dims, raw_data=b"\0" * bytes)


def model_of(
    *nodes: NodeProto,
    inputs: Sequence[ValueInfoProto] = (),
    outputs: Sequence[ValueInfoProto] | None = None,
    weights: Sequence[TensorProto] = (),
    opset: int = 20,
    domains: Sequence[tuple[str, int]] = (("com.acme", 1),),
) -> onnx.ModelProto:
    """Reads x, float32[2,3], and `inputs`; returns y unless `outputs` says otherwise."""
    graph = helper.make_graph(
        nodes,
        "g",
        [vector("x"), *inputs],
        [vector("y", None)] if outputs is None else outputs,
        weights,
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*d) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def relu_model() -> onnx.ModelProto:
    """y = Relu(x), float32[2,3]: a good one, to be spoilt."""
    return model_of(helper.make_node("Relu", ["x"], ["y"], name="relu"), outputs=[vector("y")])
