"""Names of operators: ONNX operator types, and the aliases of TVM's Relay that the paper's examples use.

An alias is an ONNX operator type, or several, with a condition on where it stands: `conv2d` is a `Conv` with
two spatial dimensions.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import onnx

from collage_core.errors import CollageError
from collage_core.ir.occurrence import Occurrence

__all__ = ["OpName", "op_name_of", "resolve_op"]

Condition = Callable[[Occurrence], "str | None"]
"""None when the operator is meant; otherwise what it lacks."""


@dataclass(frozen=True, slots=True)
class OpName:
    """What a name given to `is_op` stands for: operator types of a domain, and the alias with its condition.

    `alias` is "" where the name says no more than the type does, so that `relu` and `Relu` are one.
    """

    op_types: tuple[str, ...]
    domain: str = ""
    alias: str = ""

    def refuses(self, op: Occurrence) -> str | None:
        """None if `op` is meant by this name, otherwise why not."""
        if op.node.op_type not in self.op_types or op.node.domain != self.domain:
            return f"it is a {_full_name(op.node.op_type, op.node.domain)}"
        return _ALIASES[self.alias][1](op) if self.alias else None


def resolve_op(name: str, domain: str = "") -> OpName:
    """What `name` stands for in `domain`, in any case, with or without Relay's prefix `nn.`.

    CollageError if ONNX knows no such operator (with the closest names), or if the name means two things.
    """
    if domain:
        return OpName((name,), domain)
    if name in _onnx_types().values():
        return OpName((name,))
    key = name.lower().removeprefix("nn.").removeprefix("image.")
    if key in _AMBIGUOUS:
        raise CollageError(f"operator {name!r} is ambiguous: say {_AMBIGUOUS[key]}")
    if key in _RENAMED:
        return OpName((_RENAMED[key],))
    if key in _ALIASES:
        return OpName(_ALIASES[key][0], "", key)
    if key in _onnx_types():
        return OpName((_onnx_types()[key],))
    close = difflib.get_close_matches(key, [*_RENAMED, *_ALIASES, *_onnx_types()], n=3)
    hint = f"; did you mean {', '.join(_onnx_types().get(c, c) for c in close)}?" if close else ""
    raise CollageError(f"no operator is called {name!r}{hint}")


def op_name_of(op: Occurrence) -> str:
    """The alias that fits `op` best (`conv2d`, `dense`, `add`, `relu`), else its ONNX type."""
    if op.node.domain:
        return op.node.op_type
    for alias in _CONDITIONAL_OF.get(op.node.op_type, ()):
        if _ALIASES[alias][1](op) is None:
            return alias
    return _ALIAS_OF.get(op.node.op_type, op.node.op_type)


@cache
def _onnx_types() -> dict[str, str]:
    """Lower-case name -> name of every operator type of ONNX itself, old ones too."""
    return {s.name.lower(): s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}


def _full_name(op_type: str, domain: str) -> str:
    return f"{domain}.{op_type}" if domain else op_type


def _rank(op: Occurrence, index: int) -> int | None:
    type = op.input_type(index)
    return None if type is None else len(type.shape)


def _spatial(rank: int) -> Condition:
    def condition(op: Occurrence) -> str | None:
        found = _rank(op, 0)
        if found == rank + 2:
            return None
        return f"it has {'no input' if found is None else f'{found - 2} spatial dimensions'}, not {rank}"

    return condition


def _is_dense(op: Occurrence) -> str | None:
    if op.node.op_type == "MatMul" and not (op.graph.is_constant(op.node.inputs[1]) and _rank(op, 1) == 2):
        return "its second operand is not a constant matrix"
    return None


def _is_batch_matmul(op: Occurrence) -> str | None:
    ranks = (_rank(op, 0) or 0, _rank(op, 1) or 0)
    return (
        None if min(ranks) >= 3 else f"its operands have {ranks[0]} and {ranks[1]} dimensions, not 3 or more"
    )


def _is_bias_add(op: Occurrence) -> str | None:
    for v in op.node.inputs:
        if op.graph.is_constant(v):
            shape = op.graph.type_of(v).shape
            if len(shape) == 1 or sum(d != 1 for d in shape) == 1:
                return None
    return "no operand is a constant vector"


_AMBIGUOUS = {
    "max": "'Max' (elementwise) or 'ReduceMax'",
    "min": "'Min' (elementwise) or 'ReduceMin'",
    "sum": "'Sum' (elementwise) or 'ReduceSum'",
    "mean": "'Mean' (elementwise) or 'ReduceMean'",
}

_RENAMED = {
    "matmul": "MatMul",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "negative": "Neg",
    "leaky_relu": "LeakyRelu",
    "log_softmax": "LogSoftmax",
    "batch_norm": "BatchNormalization",
    "layer_norm": "LayerNormalization",
    "instance_norm": "InstanceNormalization",
    "group_norm": "GroupNormalization",
    "concatenate": "Concat",
    "expand_dims": "Unsqueeze",
    "broadcast_to": "Expand",
    "strided_slice": "Slice",
    "take": "Gather",
    "gather_nd": "GatherND",
    "batch_flatten": "Flatten",
    "one_hot": "OneHot",
    "prod": "ReduceProd",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "logical_not": "Not",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "less_equal": "LessOrEqual",
    "greater_equal": "GreaterOrEqual",
    "depth_to_space": "DepthToSpace",
    "space_to_depth": "SpaceToDepth",
    "copy": "Identity",
}
"""Aliases that are only another spelling of one ONNX type. Types whose lower-case name is Relay's own (relu,
add) need none.
"""

_ALIASES: dict[str, tuple[tuple[str, ...], Condition]] = {
    "dense": (("Gemm", "MatMul"), _is_dense),
    "batch_matmul": (("MatMul",), _is_batch_matmul),
    "bias_add": (("Add",), _is_bias_add),
    **{
        alias.format(rank): ((op_type,), _spatial(rank))
        for alias, op_type in (
            ("conv{}d", "Conv"),
            ("conv{}d_transpose", "ConvTranspose"),
            ("max_pool{}d", "MaxPool"),
            ("avg_pool{}d", "AveragePool"),
            ("global_max_pool{}d", "GlobalMaxPool"),
            ("global_avg_pool{}d", "GlobalAveragePool"),
            ("resize{}d", "Resize"),
        )
        for rank in (1, 2, 3)
    },
}

_OWN_NAMES = (
    "Abs Acos Add And Asin Atan Cast Ceil Clip Cos Cosh Dropout Equal Erf Exp Floor Gelu Greater Identity "
    "Less Log Mod Not Or Pad PRelu Relu Reshape Round Selu Sigmoid Sign Sin Sinh Softmax Softplus Split Sqrt "
    "Squeeze Tan Tanh Tile TopK Transpose Where Xor"
)
"""Types whose lower-case name is Relay's own."""

_ALIAS_OF = {t: t.lower() for t in _OWN_NAMES.split()} | {t: alias for alias, t in _RENAMED.items()}

_CONDITIONAL_OF: dict[str, list[str]] = {}
"""Type -> the aliases with conditions that may fit it, in the order in which they are tried."""
for _alias, (_op_types, _) in _ALIASES.items():
    for _op_type in _op_types:
        if _alias != "bias_add":  # a rule that asks for 'add' means every addition
            _CONDITIONAL_OF.setdefault(_op_type, []).append(_alias)
