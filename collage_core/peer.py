"""The contract between core and a peer: a whole runtime that results are compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from collage_core.formats import Array
from collage_core.target import Target

__all__ = ["Peer", "PeerInfo", "PeerSession"]


class PeerSession(ABC):
    """A whole model loaded in a peer, its buffers bound."""

    @abstractmethod
    def set_inputs(self, inputs: Mapping[str, Array]) -> None:
        """Copy new inputs in (by name of the graph's inputs, row-major)."""

    @abstractmethod
    def run(self) -> None:
        """Run once; return when it is finished. This call is timed."""

    @abstractmethod
    def outputs(self) -> dict[str, Array]:
        """Copies of the last run's outputs, by name."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """As `BackendInfo`, for a whole runtime that is only compared with."""

    name: str
    version: str
    library_version: str | None
    reason: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def available(self) -> bool:
        return self.reason is None


class Peer(ABC):
    """A whole runtime that results are compared with, at its own best settings. `load` runs in a worker of
    its own.
    """

    name: str

    @abstractmethod
    def info(self) -> PeerInfo:
        """Cheap; loads nothing."""

    @abstractmethod
    def load(self, model: Path, target: Target) -> PeerSession:
        """Load an ONNX file with static shapes for `target`, with exactly its threads, fp32 where the model
        says fp32.
        """

    def load_beside(self, model: Path, target: Target, count: int) -> Sequence[PeerSession]:
        """So many sessions that run beside each other, each in a thread of its own, with the target's threads
        among them: as the runtime serves several requests at a time best. Otherwise as `load`.
        """
        share = replace(target, threads=max(1, target.threads // count))
        return [self.load(model, share) for _ in range(count)]

    def environment(self, target: Target) -> Mapping[str, str]:
        """As `Backend.environment`."""
        return {}
