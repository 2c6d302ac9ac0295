"""The reference and ONNX Runtime asked the same: what each answers, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from collage_core.costs.check import standards
from collage_core.errors import ModelError
from collage_core.ir import from_model
from collage_core.reference import evaluate

__all__ = ["Answer", "difference", "disagreement", "one_node", "original", "reference", "runtime", "shown"]

Tensor = npt.NDArray[Any]
Answer = list[Tensor] | str
"""Outputs in order, or why there are none."""

_RTOL = {"float64": 1e-6, "float32": 1e-4, "float16": 4e-3}
_IR_VERSION = 10


def reference(model: onnx.ModelProto, inputs: Mapping[str, Tensor]) -> Answer:
    """What ours says to the model as it was given."""
    try:
        return list(evaluate(from_model(model), inputs).values())
    except ModelError as error:
        return str(error)


def original(model: onnx.ModelProto, inputs: Mapping[str, Tensor]) -> Answer:
    """What `onnx.reference` says without our operators."""
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, dict(inputs))]
    except Exception as error:  # whatever its operators happen to raise
        return f"{type(error).__name__}: {error}"


def runtime(model: onnx.ModelProto, inputs: Mapping[str, Tensor]) -> Answer:
    """What ONNX Runtime says without rewriting anything."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, dict(inputs)))
    except Exception as error:  # its errors have no common type
        return str(error)


def disagreement(model: onnx.ModelProto, inputs: Mapping[str, Tensor]) -> str | None:
    """How the two differ, by the name of the operator and with what each says.

    None where they agree, and where ONNX Runtime has no opinion: it runs not every type of every operator.
    """
    theirs = runtime(model, inputs)
    if isinstance(theirs, str):
        return None
    ours = reference(model, inputs)
    why = ours if isinstance(ours, str) else difference(ours, theirs, _computed_in(model))
    if why is None:
        return None
    node = model.graph.node[-1]
    opset = next(o.version for o in model.opset_import if not o.domain)
    return (
        f"{node.op_type} at opset {opset}: {why}\n  reference: {shown(ours)}\n  ONNX Runtime: {shown(theirs)}"
    )


def _computed_in(model: onnx.ModelProto) -> list[str]:
    """Of each output, the least precise type on the way to it: ONNX has the statistics of normalisations be
    float32, whatever they are of (`stash_type`).
    """
    graph = from_model(model)
    found = standards(graph)
    return [s if isinstance(s := found.get(v), str) else graph.type_of(v).dtype for v in graph.outputs]


def difference(
    left: Sequence[Tensor], right: Sequence[Tensor], computed_in: Sequence[str] = ()
) -> str | None:
    """What differs beyond what rounding explains. computed_in: types that are less precise than the outputs'
    own, where there are such.
    """
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"output {i} is {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        if a.dtype.kind not in "fc":
            if not np.array_equal(a, b):
                return f"output {i} has other values"
            continue
        wide, other = (v.astype(np.float64) for v in (a, b))
        finite = other[np.isfinite(other)]
        rtol = max(_RTOL[a.dtype.name], *(_RTOL.get(t, 0.0) for t in computed_in[i : i + 1]), 0.0)
        # A sum's rounding is that of its largest terms.
        atol = rtol * max(1.0, 0.1 * float(np.abs(finite).max(initial=0)))
        if not np.allclose(wide, other, rtol=rtol, atol=atol, equal_nan=True):
            return f"output {i} has other numbers"
    return None


def shown(answer: Answer) -> str:
    """An answer in one line, numbers to four digits or, of double precision, ten: "[[1, 2.5]], [0]"."""
    if isinstance(answer, str):
        return "refused"
    return ", ".join(_listed(a.tolist(), 10 if a.dtype == np.float64 else 4) for a in answer)


def _listed(values: Any, digits: int) -> str:
    if isinstance(values, list):
        return f"[{', '.join(_listed(v, digits) for v in values)}]"
    return f"{values:.{digits}g}" if isinstance(values, float) else str(values).lower()


def one_node(
    op: str,
    opset: int,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Any] | None = None,
    outputs: int = 1,
    constants: Sequence[int] = (),
) -> tuple[onnx.ModelProto, dict[str, Tensor]]:
    """A model of one node and what it is fed; inputs that are None are absent, those in `constants` fixed."""
    given = {i: a for i, a in enumerate(inputs) if a is not None}
    node = helper.make_node(
        op,
        ["" if i not in given else f"x{i}" for i in range(len(inputs))],
        [f"y{i}" for i in range(outputs)],
        **(attributes or {}),
    )
    infos = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for i, a in given.items()
        if i not in constants
    ]
    graph = helper.make_graph(
        [node],
        op,
        infos,
        [onnx.ValueInfoProto(name=v) for v in node.output],
        [numpy_helper.from_array(a, f"x{i}") for i, a in given.items() if i in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSION)
    return model, {f"x{i}": a for i, a in given.items() if i not in constants}
