"""Operators on whole numbers: elementwise, pooling, Softmax, Concat, Gemm, products with weights in blocks,
and the conversions of the library's own domain.

Its quantizer writes them (`QuantFormat.QOperator`), and so do models that were quantised with it. A number is
a step from the operator's at most: sums are of floats here.
"""

from __future__ import annotations

from functools import partial

from collage_core.ir import Call
from collage_onnxruntime.definitions.text import AXES_SINCE, State, attributes_text

__all__ = ["STATED"]

_TWO = """(a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero) => (c) {{
  x = DequantizeLinear (a, a_scale, a_zero)
  y = DequantizeLinear (b, b_scale, b_zero)
  z = {op} (x, y)
  c = QuantizeLinear (z, c_scale, c_zero) }}"""

_ONE = """(a, a_scale, a_zero, c_scale, c_zero) => (c) {{
  x = DequantizeLinear (a, a_scale, a_zero)
  {steps}
  c = QuantizeLinear (z, c_scale, c_zero) }}"""

_WHERE = """(d, a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero) => (c) {
  x = DequantizeLinear (a, a_scale, a_zero)
  y = DequantizeLinear (b, b_scale, b_zero)
  z = Where (d, x, y)
  c = QuantizeLinear (z, c_scale, c_zero) }"""

_BLOCKS_SINCE = 21
"""The opset from which DequantizeLinear takes blocks, and numbers of four bits."""
_TYPES = {4: 21, 8: 2}
"""Of `onnx.TensorProto`, by bits: UINT4, UINT8."""
_ENDS = {
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), 8),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), 5),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), 5),
    "QLinearWhere": 9,
}
_QUANTISED_SINCE = 10
"""The opset that brings DequantizeLinear."""


def _state(state: State, ends: int | None, call: Call) -> str | None:
    """ends: how many inputs there are where the last, the output's zero point, says of which type that is."""
    if call.opset < _QUANTISED_SINCE or (ends is not None and call.given[ends - 1 :] != (True,)):
        return None
    return state(call)


def _leaky_relu(call: Call) -> str:
    return _ONE.format(steps=f"z = LeakyRelu <alpha: float = {call.attributes.get('alpha', 0.01)}> (x)")


def _softmax(call: Call) -> str | None:
    """`opset` says whose meaning it has: before 13 all axes from `axis` on are one."""
    axis = call.attributes.get("axis", -1)
    if call.opset < AXES_SINCE or (axis != -1 and call.attributes["opset"] < AXES_SINCE):
        return None
    return _ONE.format(steps=f"z = Softmax <axis: int = {axis}> (x)")


def _average_pool(call: Call) -> str | None:
    attributes = dict(call.attributes)
    if attributes.pop("channels_last", 0):
        return None
    return _ONE.format(steps=f"z = AveragePool {attributes_text(attributes)} (x)")


def _global_average_pool(call: Call) -> str | None:
    return None if call.attributes.get("channels_last", 0) else _ONE.format(steps="z = GlobalAveragePool (x)")


def _concat(call: Call) -> str:
    count = (len(call.given) - 2) // 3
    inputs = ", ".join(f"a{k}, s{k}, z{k}" for k in range(count))
    steps = " ".join(f"x{k} = DequantizeLinear (a{k}, s{k}, z{k})" for k in range(count))
    parts = ", ".join(f"x{k}" for k in range(count))
    return f"""(scale, zero, {inputs}) => (c) {{ {steps}
      z = Concat <axis: int = {call.attributes["axis"]}> ({parts})
      c = QuantizeLinear (z, scale, zero) }}"""


def _gemm(call: Call) -> str | None:
    """Of the weights one scale for each column; `c`, of int32, counts in steps of the product's."""
    if call.opset < AXES_SINCE or call.has(7) != call.has(8):
        return None
    axis = 0 if call.attributes.get("transB", 0) else 1
    bias = (
        """scales = Mul (a_scale, b_scale)
      steps = Mul (scales, alpha)
      v = Cast <to: int = 1> (c)
      w = Mul (v, steps)"""
        if call.has(6)
        else ""
    )
    last = "y = QuantizeLinear (z, y_scale, y_zero)" if call.has(7) else "y = Identity (z)"
    return f"""(a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero) => (y) {{
      x = DequantizeLinear (a, a_scale, a_zero)
      m = DequantizeLinear <axis: int = {axis}> (b, b_scale, b_zero)
      alpha = Constant <value_float = {float(call.attributes.get("alpha", 1.0))}> ()
      {bias}
      z = Gemm {attributes_text(call.attributes)} (x, m{", w" if bias else ""})
      {last} }}"""


def _matmul_n_bits(call: Call) -> str | None:
    """Weights of four bits, two in a byte, the lower first, or of eight: (columns, blocks, bytes), and for
    each block a scale and a zero point. In ONNX's own form they are (rows, columns), dequantised in blocks;
    before opset 21, which brings that, floats are computed of them.
    """
    block_size, rows, columns = (int(call.attributes[n]) for n in ("block_size", "K", "N"))
    bits = int(call.attributes.get("bits", 4))
    is_packed = bool(call.attributes.get("weight_prepacked", 0))  # in an order of some device's own
    if call.opset < AXES_SINCE or bits not in _TYPES or call.has(4) or is_packed:
        return None
    blocks = -(-rows // block_size)
    zeros = f"zeros = ConstantOfShape <value: tensor = uint8[1] {{{1 << (bits - 1)}}}> (few)"
    if call.has(3):
        zeros = _unpacked("zero_points", "zeros", bits, columns, blocks)
    return f"""(a, b, scales, zero_points, g_idx, bias) => (y) {{
      few = Constant <value_ints = [{blocks}, {columns}]> ()
      {_unpacked("b", "whole", bits, columns, rows)}
      {zeros}
      flat = Constant <value_ints = [{columns}, {blocks}]> ()
      of_columns = Reshape (scales, flat)
      scale = Transpose (of_columns)
      {_dequantised(bits, rows, columns, blocks, block_size, in_blocks=call.opset >= _BLOCKS_SINCE)}
      {"m = MatMul (a, weights) y = Add (m, bias)" if call.has(5) else "y = MatMul (a, weights)"} }}"""


def _dequantised(bits: int, rows: int, columns: int, blocks: int, block_size: int, *, in_blocks: bool) -> str:
    """weights of whole, zeros and scale, all of them (rows, columns), of blocks of rows."""
    if in_blocks:
        return f"""number = Cast <to: int = {_TYPES[bits]}> (whole)
      zero = Cast <to: int = {_TYPES[bits]}> (zeros)
      weights = DequantizeLinear <axis: int = 0, block_size: int = {block_size}> (number, scale, zero)"""
    wide = f"""second = Constant <value_ints = [1]> () none = Constant <value_ints = [0]> ()
      shape = Constant <value_ints = [{blocks}, {block_size}, {columns}]> ()
      long = Constant <value_ints = [-1, {columns}]> () end = Constant <value_ints = [{rows}]> ()"""
    each = " ".join(
        f"""{v}_apart = Unsqueeze ({v}, second) {v}_wide = Expand ({v}_apart, shape)
      {v}_long = Reshape ({v}_wide, long) {v}_each = Slice ({v}_long, none, end, none)"""
        for v in ("zero", "scale")
    )
    return f"""{wide} number = Cast <to: int = 1> (whole) zero = Cast <to: int = 1> (zeros) {each}
      steps = Sub (number, zero_each) weights = Mul (steps, scale_each)"""


def _unpacked(packed: str, result: str, bits: int, columns: int, rows: int) -> str:
    """uint8 (rows, columns) of numbers that lie packed, column after column, each column in whole bytes."""
    name = f"{packed}_"
    halves = f"""{name}shift = Constant <value: tensor = uint8[1] {{4}}> ()
      {name}last = Constant <value_ints = [-1]> ()
      {name}up = BitShift <direction: string = "LEFT"> ({packed}, {name}shift)
      {name}low = BitShift <direction: string = "RIGHT"> ({name}up, {name}shift)
      {name}high = BitShift <direction: string = "RIGHT"> ({packed}, {name}shift)
      {name}lower = Unsqueeze ({name}low, {name}last)
      {name}higher = Unsqueeze ({name}high, {name}last)
      {name}numbers = Concat <axis: int = -1> ({name}lower, {name}higher)"""
    return f"""{halves if bits == 4 else f"{name}numbers = Identity ({packed})"}
      {name}shape = Constant <value_ints = [{columns}, -1]> ()
      {name}first = Constant <value_ints = [0]> ()
      {name}end = Constant <value_ints = [{rows}]> ()
      {name}axis = Constant <value_ints = [1]> ()
      {name}columns = Reshape ({name}numbers, {name}shape)
      {name}cut = Slice ({name}columns, {name}first, {name}end, {name}axis)
      {result} = Transpose ({name}cut)"""


def _dynamic_mat_mul(call: Call) -> str:
    """Activations are quantised as they come."""
    scaled = _scaled("whole", is_added=call.has(4))
    return f"""(a, b, b_scale, b_zero, bias) => (y) {{
      whole, a_scale, a_zero = DynamicQuantizeLinear (a) {scaled} }}"""


def _mat_mul_to_float(call: Call) -> str:
    scaled = _scaled("a", is_added=call.has(6))
    return f"(a, b, a_scale, b_scale, a_zero, b_zero, bias) => (y) {{ {scaled} }}"


def _scaled(a: str, *, is_added: bool) -> str:
    """y, the product of whole numbers in their scales, plus a bias."""
    return f"""sum = MatMulInteger ({a}, b, a_zero, b_zero) number = Cast <to: int = 1> (sum)
      scale = Mul (a_scale, b_scale) z = Mul (number, scale)
      {"y = Add (z, bias)" if is_added else "y = Identity (z)"}"""


def _conversion(op: str, call: Call) -> str | None:
    """As ONNX's, which take no axis at first; how many scales there are is not known here."""
    if call.opset < AXES_SINCE:
        return None
    axis = call.attributes.get("axis", 1)
    return f"(x, scale, zero) => (y) {{ y = {op} <axis: int = {axis}> (x, scale, zero) }}"


_BY_NAME: dict[str, State] = {
    "QLinearAdd": lambda call: _TWO.format(op="Add"),
    "QLinearMul": lambda call: _TWO.format(op="Mul"),
    "QLinearSigmoid": lambda call: _ONE.format(steps="z = Sigmoid (x)"),
    "QLinearLeakyRelu": _leaky_relu,
    "QLinearSoftmax": _softmax,
    "QLinearAveragePool": _average_pool,
    "QLinearGlobalAveragePool": _global_average_pool,
    "QLinearConcat": _concat,
    "QLinearWhere": lambda call: _WHERE,
    "QGemm": _gemm,
    "MatMulNBits": _matmul_n_bits,
    "DynamicQuantizeMatMul": _dynamic_mat_mul,
    "MatMulIntegerToFloat": _mat_mul_to_float,
    "QuantizeLinear": lambda call: _conversion("QuantizeLinear", call),
    "DequantizeLinear": lambda call: _conversion("DequantizeLinear", call),
}
STATED: dict[str, State] = {n: partial(_state, state, _ENDS.get(n)) for n, state in _BY_NAME.items()}
"""By operator."""
