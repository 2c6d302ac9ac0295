"""What OpenVINO computes otherwise than ONNX says, as far as the node alone tells: it is declined rather than
measured and found wrong. Version 2026.4's importer and CPU plugin; each was tried (tests/)."""

from __future__ import annotations

from collage_core import graph_library
from collage_core.errors import Refusal
from collage_core.graph_library import Fault
from collage_core.ir import Operator, Subgraph
from collage_core.resizing import doubtful_resize
from collage_openvino.integers import narrow_fault

__all__ = ["known_fault"]


def known_fault(subgraph: Subgraph) -> Refusal | None:
    """The first operator that OpenVINO would compute otherwise; None if none is known."""
    if (refusal := graph_library.known_fault(subgraph, "OpenVINO", _fault)) is not None:
        return refusal
    for node in subgraph.nodes:
        of_constants = bool(node.inputs) and not any(
            v and not subgraph.graph.is_constant(v) for v in node.inputs
        )
        if of_constants and node.op_type != "DequantizeLinear":  # which is taken into products as weights
            said = f"computes {node.op_type} of constants once, and may write over it in each run"
            return Refusal(f"OpenVINO {said}", node.name)
    computed = {v for n in subgraph.nodes for v in n.outputs} & set(subgraph.outputs)
    for node in subgraph.nodes:
        if node.op_type == "If" and (read := computed.intersection(node.captured.values())):
            return Refusal(f"OpenVINO lets an If write over {min(read)!r}, which is returned", node.name)
    return None


def _fault(op: Operator) -> str | None:
    fault = _FAULTS.get(op.op_type)
    return narrow_fault(op) or (None if fault is None else fault(op))


def _text(op: Operator, name: str, default: str) -> str:
    value = op.attribute(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def _has(op: Operator, index: int) -> bool:
    return len(op.node.inputs) > index and bool(op.node.inputs[index])


def _attention(op: Operator) -> str | None:
    if any(op.attribute(side, -1) >= 0 for side in ("left_window_size", "right_window_size")):
        return "lets Attention see beyond its window"
    if op.attribute("is_causal", 0) and any(op.node.outputs[3:]) and op.attribute("qk_matmul_output_mode", 0):
        return "returns other products of queries and keys of a causal Attention"
    return None


def _average_pool(op: Operator) -> str | None:
    if op.attribute("ceil_mode", 0) and op.attribute("count_include_pad", 0):
        return "counts other zeros in AveragePool's last windows"
    return None


def _prelu(op: Operator) -> str | None:
    data, slope = op.input_type(0), op.input_type(1)
    if data is None or slope is None or len(slope.shape) != 1 or len(data.shape) <= 2:
        return None
    is_taken_so = slope.shape == data.shape[1:2] != (1,)
    return "takes a row of PRelu's slopes for one of each channel" if is_taken_so else None


def _bit_shift(op: Operator) -> str | None:
    type = op.input_type(0)
    if type is not None and type.dtype == "uint8" and _text(op, "direction", "") == "LEFT":
        return "cuts a BitShift of uint8 off at the end of its range"
    return "shifts signed integers otherwise" if type is not None and type.dtype.startswith("int") else None


def _cast(op: Operator) -> str | None:
    type = op.input_type(0)
    if type is None or op.output_type().dtype != "bool" or type.dtype in ("bool", "int8", "uint8"):
        return None
    return f"takes some {type.dtype}s for false that are not zero"


def _convolution(op: Operator) -> str | None:
    data, bias = op.node.inputs[:2], op.node.inputs[2:3]
    if all(map(op.graph.is_constant, data)) and any(bias) and not all(map(op.graph.is_constant, bias)):
        return f"adds the bias of a {op.op_type} of constants again in each run"
    return None


def _dft(op: Operator) -> str | None:
    if op.graph.opsets.get("", 20) < 20:
        return None
    rank = len(op.graph.shape_of(op.node.inputs[0]))
    axis = -2
    if _has(op, 2):
        if not op.graph.is_constant(op.node.inputs[2]):
            return "transforms along axis 1, whatever DFT's axis"
        axis = int(op.graph.constants[op.node.inputs[2]].reshape(()))
    return None if axis % rank == 1 else "transforms along axis 1, whatever DFT's axis"


def _lrn(op: Operator) -> str | None:
    if op.attribute("bias", 1.0) % 1:
        return "cuts LRN's bias down to an integer"
    return "takes an even size of LRN for another window" if op.attribute("size") % 2 == 0 else None


def _lstm(op: Operator) -> str | None:
    if _has(op, 7):
        return "leaves out LSTM's peepholes"
    if op.attribute("clip"):
        return "does not clip LSTM's cell where it is read"
    return "leaves out LSTM's input_forget" if op.attribute("input_forget", 0) else None


def _defaults(*names: str) -> Fault:
    """Of an operator whose attributes of 0 are taken for left out; no default of theirs is 0."""

    def fault(op: Operator) -> str | None:
        zero = next((name for name in names if not op.attribute(name, 1.0)), None)
        return None if zero is None else f"takes the default for {op.op_type}'s {zero} of 0"

    return fault


def _greater(op: Operator) -> str | None:
    # So does its code for AVX-512; which code runs is its own to decide.
    return f"takes {op.op_type} of a NaN for true" if _of_floats(op) else None


def _mod(op: Operator) -> str | None:
    return "rounds the quotient of floats in Mod, and leaves another rest" if _of_floats(op) else None


def _of_floats(op: Operator) -> bool:
    type = op.input_type(0)
    return type is not None and type.dtype.startswith("float")


def _pad(op: Operator) -> str | None:
    if _text(op, "mode", "constant") != "constant" or not _has(op, 2):
        return None
    if op.graph.is_constant(op.node.inputs[2]):
        return None
    return "pads with zeros where Pad's value is computed"


def _lp_pool(op: Operator) -> str | None:
    return "scales LpPool's last windows" if op.attribute("ceil_mode", 0) else None


def _max_pool(op: Operator) -> str | None:
    column_major = op.attribute("storage_order", 0) and any(op.node.outputs[1:])
    return "counts other indices of MaxPool where they run by columns" if column_major else None


def _reduction_of_nothing(op: Operator) -> str | None:
    axes = op.graph.constants.get(op.node.inputs[1]) if _has(op, 1) else None
    skips = op.attribute("noop_with_empty_axes", 0) and (
        not _has(op, 1) or (axes is not None and not axes.size)
    )
    return f"hands on what {op.op_type} without axes is given" if skips else None


def _resize(op: Operator) -> str | None:
    mode = _text(op, "mode", "nearest")
    if mode != "nearest" and op.attribute("antialias", 0):
        return "filters otherwise when Resize is to avoid aliases"
    if mode == "cubic" and op.attribute("exclude_outside", 0):
        return "leaves out Resize's exclude_outside"
    reason = doubtful_resize(op)
    return None if reason is None else f"resizes otherwise: {reason}"


def _roi_align(op: Operator) -> str | None:
    if _text(op, "mode", "avg") == "max":
        return "takes the largest of other numbers in RoiAlign"
    return None if op.attribute("sampling_ratio", 0) else "samples other places of RoiAlign without a ratio"


def _space_to_depth(op: Operator) -> str | None:
    return "leaves out SpaceToDepth's mode" if _text(op, "mode", "") == "CRD" else None


_FAULTS: dict[str, Fault] = {
    "Attention": _attention,
    "AveragePool": _average_pool,
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast,
    "Celu": lambda op: "takes Celu of a NaN for 0",
    **dict.fromkeys(("Conv", "ConvTranspose"), _convolution),
    "DFT": _dft,
    "DynamicQuantizeLinear": lambda op: (
        "multiplies where DynamicQuantizeLinear divides, and rounds otherwise"
    ),
    **dict.fromkeys(("Greater", "GreaterOrEqual"), _greater),
    "HardSigmoid": _defaults("alpha", "beta"),
    "Hardmax": lambda op: "takes others than the first of equal maxima in Hardmax",
    "LRN": _lrn,
    "LSTM": _lstm,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "Mod": _mod,
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum"), _reduction_of_nothing),
    "PRelu": _prelu,
    "Pad": _pad,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Selu": _defaults("alpha", "gamma"),
    **dict.fromkeys(("Shrink", "ThresholdedRelu"), lambda op: f"makes NaNs of infinities in {op.op_type}"),
    "SpaceToDepth": _space_to_depth,
    "Upsample": _resize,
}
