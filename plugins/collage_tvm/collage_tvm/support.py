"""What can be compiled: one operator at a time, told without TVM, each refusal with its reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from collage_core.errors import Refusal
from collage_core.ir import Operator, TensorType
from collage_tvm.axes import text_of
from collage_tvm.resize import check_resize

__all__ = ["SUPPORTED", "check_operator"]

FLOATS = frozenset({"float32", "float64"})
NUMBERS = FLOATS | {"int32", "int64"}
MOVABLE = NUMBERS | {"bool", "float16", "int8", "uint8", "int16"}
INDICES = frozenset({"int32", "int64"})
_MAX_ELEMENTS = 2**31 - 1
_MAX_AVERAGED_WINDOW = 32
_MAX_RANK = 8

Check = Callable[[Operator], "str | None"]
"""Why an operator is declined, or None."""


def check_operator(op: Operator) -> Refusal | None:
    """Why TVM would not be asked to compile one node; None if it can be."""
    reason = _reason(op)
    return None if reason is None else Refusal(reason, op.node.name)


def _reason(op: Operator) -> str | None:
    if op.node.domain:
        return f"operators of domain {op.node.domain!r} are not lowered to TVM"
    if op.op_type in _UNSCHEDULED:
        return f"there is no schedule for {op.op_type} yet, and TVM's code without one is not worth running"
    check = SUPPORTED.get(op.op_type)
    if check is None:
        return f"{op.op_type} is not lowered to TVM"
    for name in [*op.node.inputs, *op.node.outputs]:
        # an empty constant is a parameter that says nothing
        if name and (fault := _fault_of(op.graph.type_of(name), op.graph.is_constant(name))):
            return f"{name!r} {fault}"
    return check(op)


@lru_cache(maxsize=4096)
def _fault_of(type: TensorType, may_be_empty: bool) -> str | None:
    """Asked for each value of each group: of a large network a million times, of few types."""
    if type.symbolic_dims:
        return f"has the dimension {type.symbolic_dims[0]!r}, which is not known"
    if type.size == 0 and not may_be_empty:
        return "is empty"
    if type.size > _MAX_ELEMENTS:
        return "has more elements than 32-bit indices reach"
    if len(type.shape) > _MAX_RANK:
        return f"has more than {_MAX_RANK} dimensions"
    return None


def _dtype(op: Operator, allowed: frozenset[str], index: int = 0) -> str | None:
    type = op.input_type(index)
    if type is not None and type.dtype not in allowed:
        return f"{op.op_type} is compiled for {', '.join(sorted(allowed))}, not for {type.dtype}"
    return None


def _over(allowed: frozenset[str]) -> Check:
    return lambda op: _dtype(op, allowed)


def _constant(op: Operator, index: int, what: str) -> str | None:
    name = op.node.inputs[index] if index < len(op.node.inputs) else ""
    if name and not op.graph.is_constant(name):
        return f"{what} is not a constant"
    return None


def _all(*checks: Check) -> Check:
    def check(op: Operator) -> str | None:
        return next((reason for c in checks if (reason := c(op)) is not None), None)

    return check


def _parameters(*parameters: tuple[int, str]) -> Check:
    return _all(*[lambda op, k=k, what=what: _constant(op, k, what) for k, what in parameters])


def _one_output(op: Operator) -> str | None:
    return "only its first output is computed" if any(op.node.outputs[1:]) else None


def _cast(op: Operator) -> str | None:
    target = op.output_type().dtype
    return _dtype(op, MOVABLE) or (None if target in MOVABLE else f"a cast to {target} is not compiled")


def _power(op: Operator) -> str | None:
    # Of integers it would be computed in floating point.
    return _dtype(op, FLOATS) or _dtype(op, NUMBERS, 1)


def _where(op: Operator) -> str | None:
    return _dtype(op, MOVABLE - {"float16"}, 1)


def _dropout(op: Operator) -> str | None:
    training = op.node.inputs[2] if len(op.node.inputs) > 2 else ""
    if training and not (op.graph.is_constant(training) and not op.graph.constants[training].any()):
        return "a dropout that may be training is not compiled"
    return _one_output(op)


def _batch_normalization(op: Operator) -> str | None:
    if op.attribute("training_mode", 0):
        return "training statistics are not compiled"
    return _dtype(op, FLOATS) or _one_output(op)


def _pad(op: Operator) -> str | None:
    if reason := _parameters((1, "the padding"), (3, "the list of axes"))(op):
        return reason
    mode = text_of(op, "mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        return f"padding mode {mode!r} is not compiled"
    data = op.graph.constants[op.node.inputs[1]] if len(op.node.inputs) > 1 else op.attribute("pads")
    pads = [int(p) for p in np.ravel(data if data is not None else ())]
    type, out = op.input_type(0), op.output_type()
    assert type is not None
    axes = op.graph.constants[op.node.inputs[3]].size if any(op.node.inputs[3:]) else len(type.shape)
    if len(pads) != 2 * axes or len(out.shape) != len(type.shape):
        return "the padding does not fit the input"
    if min(pads, default=0) < 0:
        return "a padding that crops is not compiled"
    largest = {"reflect": -1, "wrap": 0}.get(mode)
    padded = [d for d, o in zip(type.static_shape, out.static_shape, strict=True) if d != o]
    if largest is not None and padded and max(pads) > min(padded) + largest:
        return f"padding of mode {mode!r} by more than the input holds is not compiled"
    return _dtype(op, MOVABLE)


def _reduce(op: Operator) -> str | None:
    if reason := _constant(op, 1, "the list of axes"):
        return reason
    if (type := op.input_type(0)) is not None and not type.shape:
        return "a reduction of a single number is not compiled"
    if op.attribute("noop_with_empty_axes", 0) and not op.attribute("axes"):
        axes = op.node.inputs[1] if len(op.node.inputs) > 1 else ""
        if not axes or not op.graph.constants[axes].size:
            return "a reduction over no axes is not compiled"
    return _dtype(op, NUMBERS)


def _pool(op: Operator) -> str | None:
    kernel = op.attribute("kernel_shape")
    if op.op_type == "AveragePool" and max(kernel) > _MAX_AVERAGED_WINDOW:
        return f"an average over windows longer than {_MAX_AVERAGED_WINDOW} is not compiled"
    return _one_output(op) or _dtype(op, FLOATS)


def _softmax(op: Operator) -> str | None:
    type = op.input_type(0)
    if type is not None and not type.shape:
        return "a softmax of a single number is not compiled"
    if op.graph.opsets.get("", 13) < 13 and type is not None and op.attribute("axis", 1) == len(type.shape):
        return "a softmax over no dimension is not compiled"
    return _dtype(op, FLOATS)


def _resize(op: Operator) -> str | None:
    if reason := check_resize(op):
        return reason
    return _dtype(op, FLOATS if text_of(op, "mode", "nearest") == "linear" else MOVABLE)


def _arg(op: Operator) -> str | None:
    type = op.input_type(0)
    if type is not None and not type.shape:
        return f"an {op.op_type} of a single number is not compiled"
    return _dtype(op, NUMBERS)


def _one_hot(op: Operator) -> str | None:
    return _dtype(op, INDICES) or _constant(op, 1, "the depth") or _dtype(op, MOVABLE - {"float16"}, 2)


def _convolution(op: Operator) -> str | None:
    weights = op.input_type(1)
    if weights is None or len(weights.shape) < 3:
        return "a convolution without spatial dimensions is not compiled"
    if weights.size > _MAX_ELEMENTS // 2:
        return "its weights have more elements than 32-bit indices reach when they are repacked"
    return _constant(op, 1, "the tensor of weights")


def _product(op: Operator) -> str | None:
    types = [op.input_type(k) for k in (0, 1)]
    return (
        None
        if all(t is not None and t.shape for t in types)
        else "a product of single numbers is not compiled"
    )


def _square(op: Operator) -> str | None:
    type = op.input_type(0)
    return None if type is not None and len(type.shape) == 4 else "only images of rank 4 are compiled"


def _table() -> dict[str, Check]:
    numbers, floats, movable = _over(NUMBERS), _over(FLOATS), _over(MOVABLE)
    table: dict[str, Check] = {}
    for ops, check in (
        ("Abs Add Clip Div Max Min Mul Neg PRelu Relu Sign Sub Sum", numbers),
        ("Greater GreaterOrEqual Less LessOrEqual", numbers),
        ("Equal", _over(NUMBERS | {"bool"})),
        ("And Not Or Xor", _over(frozenset({"bool"}))),
        (
            """Ceil Celu Cos Elu Exp Floor HardSigmoid HardSwish IsNaN LeakyRelu Log Mean Mish Reciprocal
            Round Selu Shrink Sigmoid Sin Softplus Softsign Sqrt Swish Tanh ThresholdedRelu""",
            floats,
        ),
        ("Erf Gelu", _over(frozenset({"float32"}))),
        ("Cast", _cast),
        ("Mod", _over(INDICES)),
        ("Pow", _power),
        ("Where", _where),
        ("Identity", movable),
        ("Dropout", _dropout),
        ("BatchNormalization", _batch_normalization),
        ("Concat Expand Flatten Reshape Squeeze Split Tile Transpose Unsqueeze", movable),
        ("DepthToSpace SpaceToDepth", _all(movable, _square)),
        (
            "Slice",
            _all(
                movable,
                _parameters((1, "the start"), (2, "the end"), (3, "the list of axes"), (4, "the step")),
            ),
        ),
        ("Pad", _pad),
        ("Gather GatherElements GatherND", _all(movable, lambda op: _dtype(op, INDICES, 1))),
        ("Resize Upsample", _resize),
        ("OneHot", _one_hot),
        ("Trilu", _all(_over(MOVABLE - {"float16"}), _parameters((1, "the diagonal")))),
        ("ArgMax ArgMin", _arg),
        ("CumSum", _all(numbers, _parameters((1, "the axis")))),
        ("LRN", floats),
        ("ReduceMax ReduceMin ReduceProd ReduceSum ReduceL1 ReduceSumSquare", _reduce),
        ("ReduceL2 ReduceMean ReduceLogSum ReduceLogSumExp", _all(_reduce, floats)),
        ("Softmax LogSoftmax", _softmax),
        ("InstanceNormalization", floats),
        ("LayerNormalization", _all(floats, _one_output)),
        ("AveragePool LpPool MaxPool", _pool),
        ("GlobalAveragePool GlobalMaxPool", floats),
        ("Conv", _all(floats, _convolution)),
        ("MatMul", _all(floats, _product)),
        ("Gemm", floats),
    ):
        table |= dict.fromkeys(ops.split(), check)
    return table


SUPPORTED = _table()
_UNSCHEDULED = frozenset(
    [
        "ConvTranspose",
        "Einsum",
        "LSTM",
        "GRU",
        "RNN",
        "TopK",
    ]
)
