"""What an executable costs beyond its kernels: the paper's epsilon (section 4.2), but measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collage_core.ir import Graph

__all__ = ["Transitions", "copied_mib"]


@dataclass(frozen=True, slots=True)
class Transitions:
    """group_ms: by backend, what each of its groups and conversions takes in an executable beyond what it
    takes alone. crossing_ms: once per value that some group of another backend than its producer's reads.
    copy_ms_per_mib: per MiB of the model's inputs and outputs, which are copied in and out.
    """

    group_ms: Mapping[str, float] = field(default_factory=dict)
    crossing_ms: float = 0.0
    copy_ms_per_mib: float = 0.0


def copied_mib(graph: Graph) -> float:
    """MiB of the model's inputs and outputs, which every run copies in and out."""
    return sum(graph.type_of(v).size_bytes for v in (*graph.inputs, *graph.outputs)) / 2**20
