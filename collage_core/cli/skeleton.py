"""Packages to begin with: a backend that passes its checks, to be filled with a library's kernels."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import keyword
import re
import shutil
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from collage_core.errors import CollageError
from collage_core.placement import VIEW
from collage_core.plugins import Registry

__all__ = ["KINDS", "write_skeleton"]

KINDS = ("operator", "graph", "device")
_ANY = "any"
"""What all kinds have."""
_SUFFIX = ".tmpl"
_PACKAGE = "package"
_NAME = re.compile(r"(?=.{1,64}$)[a-z][a-z0-9]*(_[a-z0-9]+)*")
_TAKEN = {VIEW, "benchmarks", "cli", "conformance", "core", "run"}


def write_skeleton(name: str, kind: str, folder: Path, registry: Registry) -> list[Path]:
    """Write the package of a backend of that name and kind (`KINDS`); the files, within `folder`.

    CollageError for a name that is no lower-case identifier or is taken, where something is in `folder`
    already, and where there is no room: nothing of it is left then.
    """
    if not _NAME.fullmatch(name):
        raise CollageError(
            f"{name!r} is no name for a backend: at most 64 lower-case letters, digits and single _, "
            "a letter first, no _ last"
        )
    if keyword.iskeyword(name):
        raise CollageError(f"{name!r} is no name for a backend: Python has that word")
    if name in _TAKEN or name in registry.backends or name in registry.devices:
        raise CollageError(f"the name {name!r} is taken")
    was_there = folder.exists()
    if was_there and (not folder.is_dir() or any(folder.iterdir())):
        raise CollageError(f"{folder} is there already")
    values = {
        "name": name,
        "title": name.title().replace("_", ""),
        "version": importlib.metadata.version("collage-core"),
    }
    root = importlib.resources.files("collage_core.cli") / "skeletons"
    # What a kind has of its own takes the place of what all have.
    templates = {**dict(_files(root / _ANY)), **dict(_files(root / kind))}
    written = []
    for place, template in templates.items():
        path = folder.joinpath(*(f"collage_{name}" if part == _PACKAGE else part for part in place))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(template.read_text("utf-8")).substitute(values), "utf-8")
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            if was_there:
                folder.mkdir(exist_ok=True)
            raise CollageError(f"cannot write {path}: {error.strerror or error}") from None
        written.append(path)
    return written


def _files(folder: Traversable, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Traversable]]:
    """Where what is made of a template lies, and the template."""
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            yield from _files(entry, (*place, entry.name))
        elif entry.name.endswith(_SUFFIX):
            yield (*place, entry.name.removesuffix(_SUFFIX)), entry
