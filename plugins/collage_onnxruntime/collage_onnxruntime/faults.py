"""What ONNX Runtime computes otherwise than ONNX says, or refuses only when it runs, as far as the node alone
tells: it is declined rather than measured. Version 1.32; each was tried (tests/)."""

from __future__ import annotations

from collage_core.graph_library import Fault
from collage_core.ir import Node, Operator
from collage_core.resizing import doubtful_resize
from collage_core.target import processor

__all__ = ["fault_of", "is_cubic_resize"]


def fault_of(op: Operator) -> str | None:
    """What ONNX Runtime computes otherwise; None if nothing is known."""
    fault = _FAULTS.get(op.op_type)
    return None if fault is None else fault(op)


def is_cubic_resize(node: Node) -> bool:
    """Whether it computes images in no other layout than ONNX's."""
    mode = node.attributes.get("mode", "nearest")
    return node.op_type == "Resize" and not node.domain and mode in ("cubic", b"cubic")


def _has(op: Operator, index: int) -> bool:
    return len(op.node.inputs) > index and bool(op.node.inputs[index])


def _attention(op: Operator) -> str | None:
    if op.attribute("is_causal", 0) and any(op.node.outputs[3:]) and op.attribute("qk_matmul_output_mode", 0):
        return "returns other products of queries and keys of a causal Attention"
    if _has(op, 4) and not all((*op.node.outputs, "", "")[1:3]):
        return "wants what it is given of the past returned with the present"
    mask, keys = op.input_type(3), op.input_type(1)
    if mask is None or keys is None or mask.dtype == "" or len(keys.shape) < 2 or not mask.shape:
        return None
    past = op.input_type(4)
    length = [keys.shape[-2], past.shape[-2] if past is not None else 0]
    if all(isinstance(d, int) for d in (*length, mask.shape[-1])) and mask.shape[-1] != sum(map(int, length)):
        return "wants an attention mask over all keys"
    return None


def _batch_normalization(op: Operator) -> str | None:
    return "writes the running means into an input" if op.attribute("training_mode", 0) else None


def _convolution_of_integers(op: Operator) -> str | None:
    zero = op.input_type(3)
    return "has one zero point for all weights" if zero is not None and zero.shape not in ((), (1,)) else None


def _in_floating_point(op: Operator) -> str | None:
    type = op.input_type(0)
    if type is None or type.dtype not in ("int32", "int64"):
        return None
    if type.dtype == "int32" and op.op_type == "ReduceMean":
        return None  # of 32 bits it loses nothing
    return f"computes {op.op_type} of {type.dtype} in floating point"


def _largest(op: Operator) -> str | None:
    type = op.input_type(0)
    empty = type is not None and type.dtype == "bool" and 0 in type.shape
    return f"has no {op.op_type} of nothing that is bool" if empty else None


def _local_response(op: Operator) -> str | None:
    type = op.input_type(0)
    return "has no LRN but of images" if type is not None and len(type.shape) != 4 else None


def _lstm(op: Operator) -> str | None:
    return "does not clip LSTM's cell where it is read" if op.attribute("clip") else None


def _product(op: Operator) -> str | None:
    """On processors whose sums of products are too narrow constant weights are made uint8 (`open_session`).
    What is computed stays as it is.
    """
    if processor().multiplies_int8:
        return None
    data, weights = (op.node.inputs[k] for k in (_OPERANDS[op.op_type]))
    if "Q" not in op.op_type and "Integer" not in op.op_type:  # floats: what they were made from
        sources = [op.graph.producer(v) for v in (data, weights)]
        if any(n is None or n.op_type != "DequantizeLinear" for n in sources):
            return None
        data, weights = (n.inputs[0] for n in sources if n is not None)
    dtypes = [op.graph.type_of(v).dtype for v in (data, weights)]
    if dtypes != ["uint8", "int8"] or op.graph.is_constant(weights):
        return None
    return "lets sums of uint8 by int8 that is computed saturate on this processor"


def _resize(op: Operator) -> str | None:
    reason = doubtful_resize(op)
    return None if reason is None else f"resizes otherwise: {reason}"


def _shrink(op: Operator) -> str | None:
    type = op.input_type(0)
    if type is None or type.dtype in ("float16", "float32", "int8", "uint8", "int16", "uint16"):
        return None
    return f"shrinks {type.dtype} in float32"


_OPERANDS = {
    **dict.fromkeys(["Conv", "Gemm", "MatMul", "MatMulInteger"], (0, 1)),
    **dict.fromkeys(["QLinearConv", "QLinearMatMul"], (0, 3)),
}
"""Of products: which inputs are multiplied."""

_FAULTS: dict[str, Fault] = {
    **dict.fromkeys(_OPERANDS, _product),
    "Attention": _attention,
    "BatchNormalization": _batch_normalization,
    "ConvInteger": _convolution_of_integers,
    "LRN": _local_response,
    "LSTM": _lstm,
    **dict.fromkeys(
        [
            "Einsum",
            "Pow",
            "ReduceL1",
            "ReduceLogSumExp",
            "ReduceMean",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
        ],
        _in_floating_point,
    ),
    "MaxUnpool": lambda op: "leaves out MaxUnpool's output_shape" if _has(op, 2) else None,
    "ReduceMax": _largest,
    "ReduceMin": _largest,
    "Resize": _resize,
    "Shrink": _shrink,
    "Upsample": _resize,
}
