"""Models of one to a dozen operators, as exporters leave them."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import assume
from hypothesis import strategies as st
from onnx import helper

from collage_benchmarks.generator.builder import Builder, Case
from collage_benchmarks.generator.catalogue import OPERATORS, operators
from collage_benchmarks.generator.idioms import IDIOMS

__all__ = ["graphs"]

_MOST_NODES = 12
_NAMES = ("{kind}{number}", "/model.{number}/{kind}_output_0", "{kind}:{number}", "{number}")


@st.composite
def graphs(draw: st.DrawFn, opset: int) -> Case:
    """1 to 12 operators in sequence and in parallel, with outputs that nobody uses, and values used twice.

    Among them are what exporters leave behind (see `IDIOMS`), axes and shapes that are computed, values that
    are returned and used, and inputs that are returned as they are.
    """
    b = Builder(draw, opset, reuse=6, plain=False)
    b.names = b.choice(_NAMES)
    names = [n for n in operators(dynamic=False, random=False) if OPERATORS[n].at(opset)]
    # Not drawn one by one: hypothesis prefers the ends of a range, and these are to be evenly spread.
    for _ in range(int(b.rng.integers(1, _MOST_NODES + 1))):
        undo, b.second_opinion = b.snapshot(), True
        if b.one_in(5):
            b.choice(IDIOMS)(b)
        else:
            OPERATORS[names[b.rng.integers(len(names))]].apply(b)
        # A second opinion is worth more than the dtypes that ONNX Runtime lacks.
        if not b.settled or (not b.second_opinion and not b.one_in(24)):
            undo()
    assume(b.nodes)
    returned = _returned(b)
    if b.one_in(6):
        b.input(np.zeros(b.shape(), "float32"))  # which nobody reads
    case = b.case(returned, value_infos=b.flag())
    if b.one_in(4):
        for node in case.model.graph.node:
            node.name = ""
    if b.one_in(6):
        _as_inputs(case.model.graph)
    onnx.checker.check_model(case.model, full_check=True)
    return case


def _as_inputs(graph: onnx.GraphProto) -> None:
    """Initialisers are inputs with a default, as all were once."""
    for tensor in graph.initializer:
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def _returned(b: Builder) -> list[str]:
    """What nothing else uses, mostly; some of what is used; an input perhaps."""
    computed = {v for n in b.nodes for v in n.output if n.op_type != "Constant"}
    used = {v for n in b.nodes for v in n.input}
    known = [v for v in b.values if v.name in computed and v.name not in b.shapeless]
    ends = [v.name for v in known if v.name not in used]
    found = [n for n in ends if not b.one_in(6)] or ends[-1:]
    found += [v.name for v in known if v.name in used and b.one_in(6)]
    assume(found)
    if b.inputs and b.one_in(8):
        found.append(next(iter(b.inputs)))
    if b.initializers and b.one_in(12):
        found.append(next(iter(b.initializers)))
    return found
