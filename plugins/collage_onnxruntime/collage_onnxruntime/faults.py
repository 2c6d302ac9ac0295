"""What ONNX Runtime computes otherwise than ONNX says, or refuses only when it runs, as far as the node alone
tells: it is declined rather than measured. Version 1.32; each was tried (tests/)."""

from __future__ import annotations

from collage_core.graph_library import Fault
from collage_core.ir import Node, Operator
from collage_core.resizing import doubtful_resize

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


def _resize(op: Operator) -> str | None:
    reason = doubtful_resize(op)
    return None if reason is None else f"resizes otherwise: {reason}"


def _shrink(op: Operator) -> str | None:
    type = op.input_type(0)
    if type is None or type.dtype in ("float16", "float32", "int8", "uint8", "int16", "uint16"):
        return None
    return f"shrinks {type.dtype} in float32"


_FAULTS: dict[str, Fault] = {
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
