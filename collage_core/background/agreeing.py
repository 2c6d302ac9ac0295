"""Whether what is to take over answers as what it replaces does, and no slower."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import quantiles
from typing import Protocol

import numpy as np

from collage_core.costs.check import compare_all, standards
from collage_core.costs.inputs import synthesise_inputs
from collage_core.errors import StepError
from collage_core.formats import Array
from collage_core.runtime import Bundle, Executable
from collage_core.runtime.plan import rounded_on_the_way

__all__ = ["Answering", "refusal", "slower"]

_TURNS, _UNTIMED, _TIMED = 3, 2, 5
"""Of each, and runs of a turn: in the first ones threads of the other one may still be spinning."""
_BETWEEN_S = 0.01
_SLOWER = 1.05
_SLOWER_S = 1e-4
"""Less is told of nothing here: requests were measured in processes of their own, and long."""


class Answering(Protocol):
    """What answers requests with an executable: `inference.Contexts`."""

    executable: Executable

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """A request. Returns what is valid of the outputs."""

    def close(self) -> None:
        """Let go of all."""


def refusal(
    bundle: Bundle,
    answering: Answering,
    before: Answering | None,
    asked: Mapping[str, Array] | None,
    between: Callable[[], None],
) -> str | None:
    """Why it cannot take over from `before`, which answers now; None where it can. StepError where it cannot
    run.

    It is held to all that `before` answers, whatever of it requests want, as placements are held to the
    reference. bundle: what `answering` is made of. asked: the inputs of a request; None where there was none:
    some are made up. between: called after each run.
    """
    inputs = synthesise_inputs(bundle.graph) if asked is None else asked
    if before is None:
        _answers(answering, inputs)
        return None
    here, there = before.executable, answering.executable
    if here.inputs != there.inputs or here.outputs != there.outputs:
        return "it has other inputs or outputs than what answers now"
    try:
        expected = _answers(before, inputs)
    except StepError:  # what does not run here is not what others are held to
        _answers(answering, inputs)
        return None
    between()
    held_to = standards(bundle.graph, rounded_to=rounded_on_the_way(bundle.graph, bundle.placement))
    reason = compare_all(_answers(answering, inputs), expected, held_to).reason
    if reason is not None:
        return reason
    between()
    return slower(answering, before, inputs, between)


def slower(
    answering: Answering, before: Answering, inputs: Mapping[str, Array], between: Callable[[], None]
) -> str | None:
    """Why it is to take over nothing: here it takes longer than what answers now. None where it does not.

    A placement was measured in a process that had its libraries alone, with variables that are read when they
    are loaded. This one has loaded others before. between: called after each run.
    """
    buffers = [(one, _outputs(one)) for one in (before, answering)]
    took_s: tuple[list[float], list[float]] = ([], [])
    for _ in range(_TURNS):
        for (one, outputs), took in zip(buffers, took_s, strict=True):
            time.sleep(_BETWEEN_S)
            for number in range(_UNTIMED + _TIMED):
                begun_s = time.perf_counter()
                one.run(inputs, outputs)
                if number >= _UNTIMED:
                    took.append(time.perf_counter() - begun_s)
                between()
    # Others may be at work. That makes some runs slow, and what is meant here makes all.
    was_s, is_s = (quantiles(took, n=4)[0] for took in took_s)
    if is_s <= was_s * _SLOWER or is_s - was_s <= _SLOWER_S:
        return None
    return f"in this process it takes {is_s * 1e3:.3g} ms, and what answers takes {was_s * 1e3:.3g} ms"


def _answers(answering: Answering, inputs: Mapping[str, Array]) -> dict[str, Array]:
    return answering.run(inputs, _outputs(answering))


def _outputs(answering: Answering) -> dict[str, Array]:
    types = answering.executable.buffers
    return {name: np.empty(type.static_shape, np.dtype(type.dtype)) for name, type in types.items()}
