"""The placement problem as plain numbers: what the searches solve, free of ONNX, backends and measurement.

Nodes, values, formats and backends are small integers; names are kept by whoever made the problem. All costs
in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NO_BACKEND", "Choice", "Problem", "ProblemValue", "Solution"]

NO_BACKEND = -1
"""Backend of groups that cost nothing and belong to nobody (views); crossings to and from them are free."""


@dataclass(frozen=True, slots=True)
class ProblemValue:
    """A value that at least one choice reads or writes across its border.

    producer: node that computes it, or None for a model input. consumers: nodes that read it, ascending.
    input_format: the format in which a model input arrives; None otherwise.
    output_format: the format in which the model must return it; None if it is no model output.
    """

    producer: int | None
    consumers: tuple[int, ...]
    input_format: int | None = None
    output_format: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate: nodes that one kernel of one backend would run, in given formats, at a given cost.

    nodes: bitmask over node indices. reads and writes: value index -> format index, for the values that cross
    the border (constants excluded). A value that is written and also read outside is in `writes`; a value
    that stays inside is in neither.
    """

    nodes: int
    backend: int
    reads: Mapping[int, int]
    writes: Mapping[int, int]
    cost_ms: float


@dataclass(frozen=True, slots=True)
class Problem:
    """Cover every node exactly once by choices whose graph of groups is acyclic, at least total cost
    (`search.cost.total_ms`).

    nodes are 0..node_count-1, topologically ordered (a value's producer is smaller than its consumers).
    conversion_ms[(value, from, to)]: what the last hop costs on the way of a value that is produced in the
    first format to the second; a pair that is missing is impossible. ways[(value, from, to)]: the format from
    which that hop goes, where it is another one than `from`; to that one leads a way of its own. Hops that
    ways share are made, and paid, once. Conversions belong to no backend's crossing.
    group_ms[backend]: constant per group of a backend.
    crossing_ms[backend]: once per value that this backend produces and of which some consumer's backend is
    another one (neither being NO_BACKEND; model inputs and outputs belong to NO_BACKEND).
    """

    node_count: int
    values: tuple[ProblemValue, ...]
    choices: tuple[Choice, ...]
    conversion_ms: Mapping[tuple[int, int, int], float]
    group_ms: Mapping[int, float] = field(default_factory=dict)
    crossing_ms: Mapping[int, float] = field(default_factory=dict)
    ways: Mapping[tuple[int, int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Solution:
    """Choices (indices into `problem.choices`, in an executable order) and what they cost.

    optimal: whether it is proven. lower_bound_ms: a bound that no placement can beat (equal to total_ms when
    optimal; None when unknown). method: which search answered. states: how many it looked at.
    """

    choices: tuple[int, ...]
    total_ms: float
    optimal: bool
    lower_bound_ms: float | None
    method: str
    states: int = 0
