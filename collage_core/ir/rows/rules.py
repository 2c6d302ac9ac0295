"""Where rows are behind a node. What no table has, nobody has proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from collage_core.ir.bodies import bodies_of
from collage_core.ir.opkinds import OpKind, op_kind
from collage_core.ir.randomness import draws
from collage_core.ir.rows.computing import COMPUTING, elementwise
from collage_core.ir.rows.moving import MOVING
from collage_core.ir.rows.sizes import SPREADS, shape_state, sized
from collage_core.ir.rows.tracing import FREE, NotProvenError, Rows, Sized, State, Tracing
from collage_core.ir.types import Node

__all__ = ["states_of"]


def states_of(tracing: Tracing, node: Node) -> str | None:
    """Adds the states of what the node yields. Returns why they are not known, None where they are."""
    try:
        state = _state(tracing, node)
    except NotProvenError as error:
        return str(error)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # a model may be anything
        return f"it is not understood ({error!r})"
    if state is not FREE:
        for number, v in enumerate(node.outputs):
            if v:
                tracing.states[v] = _of_output(tracing, node, state, number)
    return None


def _of_output(tracing: Tracing, node: Node, state: State, number: int) -> State:
    """Of what is known of the first one."""
    if isinstance(state, Rows):
        several = _SEVERAL.get(node.op_type)
        return state if several is None else several(state, number)
    if len(node.outputs) > 1:  # which of its numbers are in which one nobody has looked at
        return Sized(np.ones(tracing.shape(node.outputs[number]), bool))
    return state


def _state(tracing: Tracing, node: Node) -> State:
    if draws(tracing.graph, node):
        raise NotProvenError("it draws random numbers")
    states = [tracing.state(v) for v in node.inputs if v]
    if all(state is FREE for state in states):
        return FREE
    if node.domain or bodies_of(node):
        raise NotProvenError("nothing is known of this operator")
    if node.op_type in ("Shape", "Size"):
        return shape_state(tracing, node)
    if not any(isinstance(state, Rows) for state in states):
        return SPREADS.get(node.op_type, sized)(tracing, node)
    rule = COMPUTING.get(node.op_type) or MOVING.get(node.op_type)
    if rule is None and op_kind(tracing.graph, node) <= OpKind.BROADCAST:
        rule = elementwise
    if rule is None:
        raise NotProvenError("nothing is known of this operator")
    return rule(tracing, node)


def _of_sequences(state: Rows, number: int) -> Rows:
    """The first output of an LSTM has a dimension of directions before the rows, those behind it do not."""
    return Rows(2) if number == 0 else state


_SEVERAL: Mapping[str, Callable[[Rows, int], Rows]] = {
    "GRU": _of_sequences,
    "LSTM": _of_sequences,
    "RNN": _of_sequences,
}
"""Of operators whose outputs have their rows in different places, by the number of the output."""
