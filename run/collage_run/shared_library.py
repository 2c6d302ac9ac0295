"""Whether a vendor's package is installed, and where its shared library lies, for plugins that load one with
ctypes. Loads nothing.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, wraps
from pathlib import Path
from threading import Lock
from typing import TypeVar

__all__ = ["SharedLibrary", "installed_version", "once"]


@cache
def installed_version(distribution: str) -> str | None:
    """Of a package on the index; None where it is not installed. Asked once in a process."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


_Made = TypeVar("_Made")


def once(make: Callable[[], _Made]) -> Callable[[], _Made]:
    """What is made by the first call, and returned by every one, whichever threads call."""
    lock = Lock()
    made: list[_Made] = []

    @wraps(make)
    def known() -> _Made:
        with lock:
            if not made:
                made.append(make())
            return made[0]

    return known


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """distribution: the package on the index that brings it. file: its name, as a pattern (`libx.so.*`).
    variable: of the environment; where set, it names the file to take instead.
    """

    distribution: str
    file: str
    variable: str

    def find(self) -> Path | None:
        """The file: the one that the variable names, else the distribution's, else the environment's; None if
        there is none.
        """
        if named := os.environ.get(self.variable):
            path = Path(named)
            return path if path.is_file() else None
        try:
            files = importlib.metadata.files(self.distribution) or []
        except importlib.metadata.PackageNotFoundError:
            files = []
        found = [Path(str(f.locate())) for f in files if fnmatch(f.name, self.file)]
        candidates = [*found, *sorted(Path(sys.prefix, "lib").glob(self.file))]
        return next((p.resolve() for p in candidates if p.is_file()), None)

    def missing(self) -> str | None:
        """Why there is none; None where there is."""
        if self.find() is not None:
            return None
        if named := os.environ.get(self.variable):
            return f"{self.variable}={named} is no file"
        if self.version() is None:
            return f"{self.distribution} is not installed"
        return f"{self.distribution} is installed, but without {self.file}"

    def version(self) -> str | None:
        """Of the distribution, or the name of the file that stands in for it."""
        if named := os.environ.get(self.variable):
            return named
        return installed_version(self.distribution)
