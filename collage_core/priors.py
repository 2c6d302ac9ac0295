"""What a backend's kernels reached elsewhere, as a package ships it: the first guesses on a new machine.

Guesses order what is measured first. Nothing is placed by them, and no bound is drawn from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from collage_core.errors import CollageError

__all__ = ["Priors"]

_VERSION = 1
_FORMAT = "collage-priors"


@dataclass(frozen=True, slots=True)
class Priors:
    """Of one backend. shares: by kind of kernel, the share of the roofline that the middle one reached, above
    0. Kinds are what `collage costs priors` calls them. peaks: the version of what they are shares of; those
    of another version are left alone.
    """

    backend: str
    peaks: str
    shares: Mapping[str, float]

    @classmethod
    def read(cls, file: Path | Traversable) -> Priors:
        """What `to_json` was written to. CollageError, which names the file, where that is something else."""
        try:
            return cls.of_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # of which wrong JSON and wrong UTF-8 are some
            raise CollageError(f"{file}: {error}") from None

    @classmethod
    def read_all(cls, folder: Path | Traversable) -> list[Priors]:
        """Of the folder's JSON files, in the order of their names: of one machine each, say."""
        files = [file for file in folder.iterdir() if file.name.endswith(".json")]
        return [cls.read(file) for file in sorted(files, key=lambda file: file.name)]

    @classmethod
    def of_json(cls, text: str) -> Priors:
        """ValueError says what is wrong with it."""
        try:
            told: Any = json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(told, dict) or told.get("format") != _FORMAT:
            raise ValueError("no priors of a backend")
        if told.get("version") != _VERSION:
            raise ValueError(f"priors of version {told.get('version')}; this Collage reads {_VERSION}")
        backend, peaks, shares = told.get("backend"), told.get("peaks"), told.get("shares")
        if not (isinstance(backend, str) and isinstance(peaks, str) and isinstance(shares, dict)):
            raise ValueError("priors without a backend, peaks or shares")
        for kind, share in shares.items():
            if type(share) not in (int, float) or not 0.0 < share < math.inf:
                raise ValueError(f"the share of {kind} is {share!r}, no number above 0")
        return cls(backend, peaks, {kind: float(share) for kind, share in shares.items()})

    def to_json(self) -> str:
        """A line for each kind, in order: what differs between two such files can be read."""
        head = {"format": _FORMAT, "version": _VERSION, "backend": self.backend, "peaks": self.peaks}
        shares = {kind: float(f"{share:.3g}") for kind, share in sorted(self.shares.items())}
        return json.dumps({**head, "shares": shares}, indent=1, ensure_ascii=False) + "\n"
