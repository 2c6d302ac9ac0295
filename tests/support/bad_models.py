"""Models that ONNX forbids, or that Collage cannot place, and what must be said about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from small_models import model_of, relu_model, tensor, vector

__all__ = ["BAD_MODELS"]

_node = helper.make_node


def _spoilt(spoil: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    model = relu_model()
    spoil(model)
    return model


def _with_weight(weight: TensorProto) -> onnx.ModelProto:
    return model_of(_node("Add", ["x", "w"], ["y"], name="sum"), weights=[weight])


def _with_constant(**value: Any) -> onnx.ModelProto:
    return model_of(_node("Constant", [], ["c"], **value), _node("Add", ["x", "c"], ["y"]))


def _branch(
    *nodes: NodeProto, outputs: Sequence[str] = ("z",), weights: Sequence[TensorProto] = ()
) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "branch", [], [helper.make_empty_tensor_value_info(v) for v in outputs], weights
    )


def _choice(then: onnx.GraphProto, otherwise: onnx.GraphProto | None = None) -> onnx.ModelProto:
    """An If between a branch and Relu(x), or another."""
    otherwise = otherwise or _branch(_node("Relu", ["x"], ["z"], name="relu"))
    node = _node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=otherwise)
    return model_of(node, inputs=[vector("c", (), TensorProto.BOOL)])


def _nested(inner: NodeProto) -> onnx.ModelProto:
    """A branch of a branch."""
    choice = _node("If", ["c"], ["z"], name="inner", then_branch=_branch(inner), else_branch=_branch(inner))
    return _choice(_branch(choice))


def _loop(*inputs: str) -> onnx.ModelProto:
    body = helper.make_graph(
        [_node("Relu", ["s"], ["r"])],
        "body",
        [vector("i", (), TensorProto.INT64), vector("go", (), TensorProto.BOOL), vector("s")],
        [vector("go", (), TensorProto.BOOL), vector("r")],
    )
    return model_of(_node("Loop", inputs, ["y"], name="loop", body=body))


def _functions(**calls: str) -> onnx.ModelProto:
    """Functions by name, each of which calls another."""
    model = model_of(_node(next(iter(calls)), ["x"], ["y"], domain="com.acme"))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.acme", 1)]
    for name, called in calls.items():
        body = [_node(called, ["a"], ["b"], domain="com.acme")]
        model.functions.append(helper.make_function("com.acme", name, ["a"], ["b"], body, opsets))
    return model


def _sequence_input() -> onnx.ModelProto:
    value = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, (2, 3))
    return model_of(_node("ConcatFromSequence", ["s"], ["y"], axis=0), inputs=[value])


def _sequence_output() -> onnx.ModelProto:
    model = model_of(_node("SequenceConstruct", ["x"], ["s"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, (2, 3)))
    return model


def _sparse() -> onnx.ModelProto:
    model = model_of(_node("Add", ["x", "w"], ["y"]))
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 1]), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [6]))
    return model


def _conv(weights: Sequence[int], **attributes: Any) -> onnx.ModelProto:
    node = _node("Conv", ["image", "w"], ["y"], name="conv", **attributes)
    return model_of(node, inputs=[vector("image", (1, 3, 8, 8)), vector("w", weights)])


BAD_MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    # order and names
    "cycle": (
        lambda: model_of(
            _node("Add", ["x", "b"], ["a"], name="one"), _node("Relu", ["a"], ["b"], name="two")
        ),
        "node one (Add) reads 'b', which nothing before it computes: only two (Relu) does",
    ),
    "reads itself": (
        lambda: model_of(_node("Add", ["x", "y"], ["y"], name="one")),
        "node one (Add) reads 'y'",
    ),
    "missing initializer": (
        lambda: model_of(_node("Add", ["x", "w"], ["y"], name="one")),
        "node one (Add) reads 'w', which nothing before it computes: nothing does",
    ),
    "value computed twice": (
        lambda: model_of(_node("Relu", ["x"], ["y"], name="one"), _node("Neg", ["x"], ["y"], name="two")),
        "'y' is computed by 'two' and 'one'",
    ),
    "value computed over an input": (
        lambda: model_of(_node("Relu", ["x"], ["x"], name="one"), _node("Relu", ["x"], ["y"])),
        "'x' is computed by 'one', and given",
    ),
    "constant computed twice": (
        lambda: model_of(
            _node("Constant", [], ["w"], value_float=1.0),
            _node("Add", ["x", "w"], ["y"]),
            weights=[tensor("w")],
        ),
        "'w' is computed twice",
    ),
    "two inputs of a name": (
        lambda: model_of(_node("Relu", ["x"], ["y"]), inputs=[vector("x")]),
        "the model has 2 inputs named 'x'",
    ),
    "two initializers of a name": (
        lambda: model_of(_node("Add", ["x", "w"], ["y"]), weights=[tensor("w"), tensor("w")]),
        "the model has 2 initializers named 'w'",
    ),
    "input without a name": (
        lambda: model_of(_node("Relu", ["x"], ["y"]), inputs=[vector("")]),
        "an input of the model has no name",
    ),
    "output that nobody makes": (
        lambda: model_of(_node("Relu", ["x"], ["y"]), outputs=[vector("q")]),
        "the model returns 'q', which nothing computes",
    ),
    "no outputs": (lambda: model_of(_node("Relu", ["x"], ["y"]), outputs=[]), "the model returns nothing"),
    "empty graph": (lambda: model_of(outputs=[]), "no graph in it"),
    "empty model": (onnx.ModelProto, "no graph in it"),
    # types
    "unknown element type": (
        lambda: _spoilt(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99)),
        "value 'x' has the unknown element type 99",
    ),
    "no element type": (
        lambda: _spoilt(lambda m: m.graph.input[0].ClearField("type")),
        "the model does not say the element type of input 'x'",
    ),
    "texts": (
        lambda: model_of(_node("Identity", ["t"], ["y"]), inputs=[vector("t", (2,), TensorProto.STRING)]),
        "'t' holds texts, which is not supported",
    ),
    "sequence": (_sequence_input, "value 's' is a sequence, not a tensor"),
    "sequence returned": (_sequence_output, "value 's' is a sequence, not a tensor"),
    "an operator of Collage's own": (
        lambda: model_of(_node("Region", ["x"], ["y"], name="own", domain="collage")),
        "node 'own' is of the domain 'collage', which has no operators",
    ),
    "output of any size": (
        lambda: model_of(
            _node("SplitToSequence", ["x"], ["s"], axis=0),
            _node("ConcatFromSequence", ["s"], ["y"], name="all", axis=0),
        ),
        "how large output 'y' can become cannot be told, for SplitToSequence_0 (SplitToSequence)",
    ),
    "no shape": (
        lambda: _spoilt(lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")),
        "the model does not say the shape of input 'x'; give it with --shape x=",
    ),
    "open dimension": (
        lambda: model_of(_node("Relu", ["q"], ["y"]), inputs=[vector("q", ("batch", 3))]),
        "input 'q' has an open dimension 'batch' in its shape [batch,3]",
    ),
    "negative dimension": (
        lambda: model_of(_node("Relu", ["q"], ["y"]), inputs=[vector("q", (-1, 3))]),
        "input 'q' has an open dimension 'q_0' in its shape [q_0,3]",
    ),
    "too large for any memory": (
        lambda: model_of(_node("Relu", ["q"], ["y"]), inputs=[vector("q", (1 << 40, 1 << 40))]),
        "more than this machine's memory",
    ),
    "shape of what is too large": (
        lambda: model_of(_node("Shape", ["q"], ["y"]), inputs=[vector("q", (1 << 40, 1 << 40))]),
        "more than this machine's memory",
    ),
    "too large inside": (
        lambda: _conv((4, 3, 3, 3), pads=[1 << 40] * 4),
        "'y' (float32[1,4,2199023255558,2199023255558]) takes",
    ),
    # constants
    "weight too short": (
        lambda: _with_weight(tensor("w", bytes=8)),
        "constant 'w' (float32[2, 3]) cannot be read",
    ),
    "weight too long": (
        lambda: _with_weight(tensor("w", bytes=80)),
        "constant 'w' (float32[2, 3]) cannot be read",
    ),
    "weight of negative size": (
        lambda: _with_weight(tensor("w", dims=(-2, 3))),
        "constant 'w' has the shape [-2, 3]",
    ),
    "weight of unknown type": (
        lambda: _with_weight(tensor("w", type=77)),
        "constant 'w' has the unknown element type 77",
    ),
    "sparse weight": (_sparse, "sparse initializer 'w' is not supported"),
    "constant too short": (
        lambda: _with_constant(value=tensor("c", bytes=8)),
        "Constant 'c' (float32[2, 3]) cannot be read",
    ),
    "constant without a value": (_with_constant, "Constant 'c' does not have one attribute"),
    "constant text": (
        lambda: _with_constant(value_string="text"),
        "attribute 'value_string' is not supported",
    ),
    # operators
    "operator that does not exist": (
        lambda: model_of(_node("Frob", ["x"], ["y"], name="frob"), outputs=[vector("y")]),
        "node 'frob': there is no operator 'Frob' in ONNX",
    ),
    "operator of an unknown domain": (
        lambda: model_of(_node("Frob", ["x"], ["y"], name="frob", domain="com.acme")),
        "computed by 'frob' (com.acme.Frob), cannot be inferred: onnx does not know the operator",
    ),
    "operator of an unknown domain, typed": (
        lambda: model_of(_node("Frob", ["x"], ["y"], name="frob", domain="com.acme"), outputs=[vector("y")]),
        "no backend offers to run node 'frob' (com.acme.Frob)",
    ),
    "domain that is not imported": (
        lambda: model_of(_node("Frob", ["x"], ["y"], name="frob", domain="com.acme"), domains=()),
        "node frob (com.acme.Frob): the model does not say which opset of com.acme it speaks",
    ),
    "no operator at all": (
        lambda: model_of(_node("", ["x"], ["y"], name="frob")),
        "node 'frob': there is no operator '' in ONNX",
    ),
    "too few inputs": (
        lambda: model_of(_node("Relu", [], ["y"], name="relu")),
        "node relu (Relu) is not valid",
    ),
    "too many inputs": (
        lambda: model_of(_node("Relu", ["x", "x"], ["y"], name="relu")),
        "node relu (Relu) is not valid at opset 20",
    ),
    "too many outputs": (
        lambda: model_of(_node("Relu", ["x"], ["y", "z"], name="relu")),
        "node relu (Relu) is not valid",
    ),
    "unknown attribute": (
        lambda: model_of(_node("Softmax", ["x"], ["y"], name="soft", axle=1)),
        "node soft (Softmax) is not valid at opset 20: Unrecognized attribute: axle",
    ),
    "attribute of another type": (
        lambda: model_of(_node("Softmax", ["x"], ["y"], name="soft", axis="one")),
        "node soft (Softmax) is not valid",
    ),
    "attribute that is missing": (
        lambda: model_of(_node("Cast", ["x"], ["y"], name="cast")),
        "node cast (Cast) is not valid at opset 20: Required attribute 'to' is missing",
    ),
    "attribute out of range": (
        lambda: model_of(_node("Softmax", ["x"], ["y"], name="soft", axis=9)),
        "computed by 'soft' (Softmax), cannot be inferred",
    ),
    "attribute that is no UTF-8": (
        lambda: model_of(_node("Gelu", ["x"], ["y"], name="gelu", approximate=b"\xff")),
        "node 'gelu': attribute 'approximate' is not UTF-8",
    ),
    # bodies of control flow
    "body that reads what nobody computes": (
        lambda: _choice(_branch(_node("Relu", ["q"], ["z"]))),
        "node choice (If) reads 'q', which nothing before it computes: nothing does",
    ),
    "body that reads itself": (
        lambda: _choice(_branch(_node("Relu", ["z"], ["z"], name="one"))),
        "node 'choice', then_branch: node one (Relu) reads 'z', which nothing before it computes",
    ),
    "body that yields what nobody computes": (
        lambda: _choice(_branch(_node("Relu", ["x"], ["q"]))),
        "node choice (If) reads 'z', which nothing before it computes",
    ),
    "body that computes a value twice": (
        lambda: _choice(_branch(_node("Relu", ["x"], ["z"]), _node("Neg", ["x"], ["z"]))),
        "node 'choice', then_branch: 'z' is computed by 'Neg_1' and 'Relu_0'",
    ),
    "body with an operator that does not exist": (
        lambda: _nested(_node("Frob", ["x"], ["z"], name="frob")),
        "node 'choice', then_branch: node 'inner', else_branch: node 'frob': there is no operator 'Frob'",
    ),
    "body with a wrong attribute": (
        lambda: _choice(_branch(_node("Softmax", ["x"], ["z"], name="soft", axle=1))),
        "node 'choice', then_branch: node soft (Softmax) is not valid at opset 20: Unrecognized attribute",
    ),
    "body with a name that is no UTF-8": (
        lambda: _choice(_branch(_node("Gelu", ["x"], ["z"], name="gelu", approximate=b"\xff"))),
        "node 'choice', then_branch: node 'gelu': attribute 'approximate' is not UTF-8",
    ),
    "body with texts": (
        lambda: _choice(
            _branch(
                _node("Relu", ["x"], ["z"]), weights=[tensor("w", dims=[0], bytes=0, type=TensorProto.STRING)]
            )
        ),
        "node 'choice', then_branch: 'w' holds texts, which is not supported",
    ),
    "body with a short weight": (
        lambda: _choice(_branch(_node("Add", ["x", "w"], ["z"]), weights=[tensor("w", bytes=8)])),
        "node 'choice', then_branch: constant 'w' (float32[2, 3]) cannot be read",
    ),
    "branches of different ranks": (
        lambda: _choice(_branch(_node("ReduceSum", ["x"], ["z"], keepdims=0))),
        "computed by 'choice' (If), cannot be inferred: its branches yield float32[2,3] and float32[]",
    ),
    "branches of different types": (
        lambda: _choice(_branch(_node("Cast", ["x"], ["z"], to=TensorProto.INT32))),
        "computed by 'choice' (If), cannot be inferred: ",
    ),
    "branches that yield too much": (
        lambda: _choice(_branch(_node("Relu", ["x"], ["z"]), _node("Neg", ["x"], ["q"]), outputs=["z", "q"])),
        "node choice (If): its then_branch has 2 outputs, which should be 1",
    ),
    "loop without an end": (
        lambda: _loop("", "", "x"),
        "node loop (Loop) has neither a trip count nor a condition",
    ),
    "loop whose body takes too much": (
        lambda: _loop("", "x"),
        "node loop (Loop): its body has 3 inputs, which should be 2",
    ),
    "function that calls itself": (lambda: _functions(One="One"), "functions cannot be inlined: Cycle"),
    "functions in a circle": (
        lambda: _functions(One="Two", Two="One"),
        "functions cannot be inlined: Cycle",
    ),
    "old operator with too few outputs": (
        lambda: model_of(_node("TopK", ["x"], ["y", "z"], name="top", k=-9, axis=5), opset=9),
        "computed by 'top' (TopK), cannot be inferred",
    ),
    # shapes that do not fit
    "sum of different shapes": (
        lambda: model_of(_node("Add", ["x", "z"], ["y"], name="sum"), inputs=[vector("z", (4, 5))]),
        "computed by 'sum' (Add), cannot be inferred: ",
    ),
    "kernel larger than the image": (
        lambda: _conv((4, 3, 19, 19)),
        "computed by 'conv' (Conv), cannot be inferred",
    ),
    "channels that do not fit": (lambda: _conv((4, 5, 3, 3)), "node conv (Conv) cannot be evaluated"),
    "no groups": (lambda: _conv((4, 3, 3, 3), group=0), "node conv (Conv) cannot be evaluated"),
    "reshape to another size": (
        lambda: model_of(
            _node("Reshape", ["x", "shape"], ["y"], name="shape"),
            weights=[numpy_helper.from_array(np.array([7, 9]), "shape")],
        ),
        "node shape (Reshape) cannot be evaluated",
    ),
    # versions
    "newer opset": (
        lambda: model_of(_node("Relu", ["x"], ["y"]), opset=999),
        "the model needs opset 999 of ONNX; the installed onnx",
    ),
    "newer format": (
        lambda: _spoilt(lambda m: setattr(m, "ir_version", 999)),
        "the model has the newer ONNX format 999; the installed onnx",
    ),
    "no opset": (
        lambda: _spoilt(lambda m: m.ClearField("opset_import")),
        "node relu (Relu): the model does not say which opset of ONNX it speaks",
    ),
    "opset zero": (lambda: model_of(_node("Relu", ["x"], ["y"]), opset=0), "is not valid at opset 0"),
    "two opsets": (
        lambda: model_of(_node("Relu", ["x"], ["y"]), domains=[("ai.onnx", 7)]),
        "the model imports two opsets of '': 20, 7",
    ),
}
"""By what is wrong: a function that makes the model, and a part of what must be said."""
