"""The contract with a library that quantises models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from collage_core.formats import Array
from collage_core.peer import PeerInfo

__all__ = ["Quantizer"]


class Quantizer(ABC):
    """Makes a quantised model of one of floats, statically: what values range over is seen on samples."""

    name: str

    @abstractmethod
    def info(self) -> PeerInfo:
        """Cheap; loads nothing."""

    @abstractmethod
    def quantise(
        self, model: Path, samples: Sequence[Mapping[str, Array]], excluded: Collection[str], output: Path
    ) -> None:
        """Write the quantised model, in QDQ form, with what it needs beside it. Runs in a worker.

        model: an ONNX file with static shapes, whose nodes all have names. samples: inputs by name. excluded:
        names of nodes that stay floats. BackendError, with what the library says, where it cannot.
        """
