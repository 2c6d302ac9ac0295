"""What a backend's kernels reached elsewhere, as a package ships it: the first guesses on a new machine.

Guesses order what is measured first, choose what is tried at once, and say who is compared in `quick`. No
bound is drawn from them, and what they say of an answer is not believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from collage_core.errors import CollageError

__all__ = ["Priors", "is_share"]

_VERSION = 1
_FORMAT = "collage-priors"
_LEAST, _MOST = 1e-6, 1e3
"""A kernel reaches no share beyond these: whatever says so would hide it, or be measured before all."""


def is_share(value: object) -> bool:
    """Whether it is a number from 1e-6 to 1e3, as a share of the roofline is."""
    return type(value) in (int, float) and _LEAST <= value <= _MOST  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Priors:
    """Of one backend. shares: by kind of kernel, the roofline's time over what a kernel took, of which the
    median; 1 is the roofline itself, which kernels that leave work out may pass. A kind is text that core
    makes of the heaviest operator, its form and the layouts; one that it does not make does no harm. peaks:
    the version of the peaks that rooflines are drawn from; of another version nothing is used.

    ValueError for what is no share (`is_share`).
    """

    backend: str
    peaks: str
    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        if not (isinstance(self.backend, str) and isinstance(self.peaks, str)):
            raise ValueError("priors without a backend or peaks")
        if not isinstance(self.shares, Mapping):
            raise ValueError("priors without shares")
        for kind, share in self.shares.items():
            if not is_share(share):
                raise ValueError(
                    f"the share of {kind} is {share!r:.20}, no number from {_LEAST:g} to {_MOST:g}"
                )

    @classmethod
    def read(cls, file: Path | Traversable) -> Priors:
        """What `to_json` was written to. CollageError, which names the file, where that is something else."""
        try:
            return cls.of_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # of which wrong JSON and wrong UTF-8 are some
            said = getattr(error, "strerror", None) or error
            raise CollageError(f"priors are not used: {file}: {said}") from None

    @classmethod
    def read_all(cls, folder: Path | Traversable) -> list[Priors]:
        """Of the folder's JSON files, in the order of their names: of one machine each, say. CollageError for
        the first that is none, and where there is no such folder.
        """
        try:
            files = [file for file in folder.iterdir() if file.name.endswith(".json")]
        except OSError as error:
            raise CollageError(f"priors are not used: {folder}: {error.strerror or error}") from None
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
        fields: dict[str, Any] = {name: told.get(name) for name in ("backend", "peaks", "shares")}
        return cls(**fields)

    def to_json(self) -> str:
        """Shares by three digits, a line for each kind, in order: what differs can be read."""
        head = {"format": _FORMAT, "version": _VERSION, "backend": self.backend, "peaks": self.peaks}
        shares = {kind: float(f"{share:.3g}") for kind, share in sorted(self.shares.items())}
        return json.dumps({**head, "shares": shares}, indent=1, ensure_ascii=False) + "\n"
