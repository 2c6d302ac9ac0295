"""What is compared: ways to use a library, and for each of them settings beside those in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collage_core.target import Target

__all__ = ["IN_USE", "OPERATORS", "PIECES", "USES", "WHOLE", "WITHIN", "Choice", "Use", "choices"]

IN_USE = "in use"
WITHIN = 0.02
"""Of the best that was found: settings need not be nearer."""
WHOLE, PIECES = "whole graph", "pieces"
OPERATORS = "operator libraries"
_PEER = "called directly"

Settings = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Use:
    """library: a peer's and graph backend's name, or `OPERATORS`. how: called directly, or as Collage calls
    it: with the whole graph as one group, or with pieces of eight nodes, as in a mix, so that it goes from
    one model to the next all the time.
    """

    library: str
    how: str

    @property
    def name(self) -> str:
        return f"{self.library} {self.how}".replace(" ", "-")

    @property
    def is_peer(self) -> bool:
        return self.how == _PEER

    def __str__(self) -> str:
        return f"{self.library}, {self.how}"


USES = (
    Use("onnxruntime", _PEER),
    Use("openvino", _PEER),
    Use("onnxruntime", WHOLE),
    Use("openvino", WHOLE),
    Use("onnxruntime", PIECES),
    Use("openvino", PIECES),
    Use(OPERATORS, "mixed"),
)
"""The operator libraries share one pool of threads (GNU OpenMP), so their settings are those of a mix."""


@dataclass(frozen=True, slots=True)
class Choice:
    """settings: in place of the plugin's own, by the library's names; None leaves one to the library.
    environment: variables beside those that the plugin sets.
    """

    label: str
    settings: Settings = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def choices(use: Use, target: Target) -> tuple[Choice, ...]:
    """The settings in use, and others: one at a time, and those together that may need each other. The number
    of threads and the precision are always the same.
    """
    others = {"onnxruntime": _onnxruntime, "openvino": _openvino, OPERATORS: _operators}[use.library](target)
    return (Choice(IN_USE), *others)


def _onnxruntime(target: Target) -> Sequence[Choice]:
    spinning = "session.intra_op.allow_spinning"
    stop, spin_us = "session.force_spinning_stop", "session.intra_op.spin_duration_us"
    found = [
        Choice("spinning after runs too", {spinning: "1", stop: None, spin_us: None}),
        Choice("spinning within runs", {spinning: "1", stop: "1", spin_us: None}),
        Choice("spinning for 200 us", {spinning: "1", stop: None, spin_us: "200"}),
        Choice("no spinning", {spinning: "0", stop: None, spin_us: None}),
        Choice(
            "nodes in parallel", {"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": target.threads}
        ),
        Choice("extended optimisations", {"graph_optimization_level": "ORT_ENABLE_EXTENDED"}),
        Choice("no arena", {"enable_cpu_mem_arena": False}),
        Choice("no memory pattern", {"enable_mem_pattern": False}),
    ]
    if target.threads > 1:
        from collage_onnxruntime.session import affinities

        pinned = affinities(target.threads)
        found += [
            Choice("pinned threads", pinned),
            Choice("threads not pinned", dict.fromkeys(pinned)),
        ]
    return found


def _openvino(target: Target) -> Sequence[Choice]:
    pinned, together = {"ENABLE_CPU_PINNING": "YES"}, "EXCLUSIVE_ASYNC_REQUESTS"
    lets_choose = dict.fromkeys(("PERFORMANCE_HINT", "NUM_STREAMS", "ENABLE_CPU_PINNING", together))
    return [
        Choice("pinned threads", pinned),
        Choice("exclusive requests", {together: "YES"}),
        Choice("requests not exclusive", {together: "NO"}),
        Choice("pinned threads, requests not exclusive", {**pinned, together: "NO"}),
        Choice("throughput hint, 1 stream", {"PERFORMANCE_HINT": "THROUGHPUT"}),
        Choice("no hint", {"PERFORMANCE_HINT": None}),
        Choice("hyper-threading", {"ENABLE_HYPER_THREADING": "YES"}),
        Choice("no hyper-threading", {"ENABLE_HYPER_THREADING": "NO"}),
        Choice("performance cores only", {"SCHEDULING_CORE_TYPE": "PCORE_ONLY"}),
        Choice("the library's defaults", lets_choose),
    ]


def _operators(target: Target) -> Sequence[Choice]:
    return [
        Choice("threads wait actively", environment={"OMP_WAIT_POLICY": "active"}),
        Choice("threads wait passively", environment={"OMP_WAIT_POLICY": "passive"}),
        Choice("threads spin for some 20 us", environment={"GOMP_SPINCOUNT": "1000"}),
        Choice("pinned threads", environment={"OMP_PROC_BIND": "true"}),
        Choice(
            "pinned threads, one to a core", environment={"OMP_PROC_BIND": "spread", "OMP_PLACES": "cores"}
        ),
    ]
