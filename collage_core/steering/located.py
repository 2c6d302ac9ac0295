"""Values of a YAML file that a person has written: each is asked for with its type, and knows its line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from pathlib import Path

import yaml
from collage_run.files import regular

from collage_core.errors import PlacementError

__all__ = ["Located", "read_yaml"]

_MOST_BYTES = 32 << 20
_END_CHARACTERS = 200
"""What is told of the beginning and the end of a message that a text of the file makes too long."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Only composed with: no tag makes an object, and an alias is the node that it stands for."""


def read_yaml(path: str | Path, *, empty: bool = False) -> Located:
    """The one document of a file. PlacementError, in one line with the place, where there is none. empty:
    whether a file of nothing but comments is one without keys.
    """
    try:
        with open(path, "rb", opener=lambda p, flags: regular(p, flags | os.O_CLOEXEC)) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PlacementError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > _MOST_BYTES:
        raise PlacementError(
            f"{path}: more than {_MOST_BYTES >> 20} MiB is no file that a person has written"
        )
    try:
        node = yaml.compose(data, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise PlacementError(f"{place}: not YAML: {error.problem or error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise PlacementError(f"{path}: not YAML: {error}") from None
    if node is None and empty:
        node = yaml.MappingNode("", [])
    if node is None:
        raise PlacementError(f"{path}: nothing is in it")
    return Located(node, str(path), "the file")


class Located:
    """A value, and where it stands. what: for messages."""

    def __init__(self, node: yaml.Node, file: str, what: str) -> None:
        self._node, self._file, self._what = node, file, what

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self._file}:{self._node.start_mark.line + 1}"

    def wrong(self, text: str) -> PlacementError:
        """The error that says so, with the place."""
        if len(text) > 2 * _END_CHARACTERS:
            text = f"{text[:_END_CHARACTERS]} ... {text[-_END_CHARACTERS:]}"
        return PlacementError(f"{self.where}: {text}")

    def fields(self, known: Collection[str], required: Collection[str] = ()) -> dict[str, Located]:
        """By key, those that are there."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.wrong(f"{self._what} is no mapping; it has {_listed(known)}")
        found: dict[str, Located] = {}
        for key, value in self._node.value:
            name = Located(key, self._file, f"a key of {self._what}").text()
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {_listed(known)}"
                raise Located(key, self._file, "").wrong(f"{self._what} has no {name!r}; {hint}")
            if name in found:
                raise Located(key, self._file, "").wrong(f"{name!r} of {self._what} is given twice")
            found[name] = Located(value, self._file, f"{name!r} of {self._what}")
        for name in required:
            if name not in found:
                raise self.wrong(f"{self._what} lacks {name!r}")
        return found

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """A mapping of texts, by key."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.wrong(f"{self._what} is no mapping")
        found: dict[str, str] = {}
        for key, value in self._node.value:
            name = Located(key, self._file, f"a key of {self._what}")
            if name.text() in found:
                raise name.wrong(f"{name.text()!r} of {self._what} is given twice")
            found[name.text()] = Located(value, self._file, f"a value of {self._what}").text(empty=True)
        return tuple(sorted(found.items()))

    def parts(self, what: str) -> list[Located]:
        """Of a list."""
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.wrong(f"{self._what} is no list")
        return [Located(part, self._file, what) for part in self._node.value]

    def text(self, *, empty: bool = False) -> str:
        """As it is written: `1.0`, `yes` and `null` are texts like others."""
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.wrong(f"{self._what} is no text")
        if not self._node.value and not empty:
            raise self.wrong(f"{self._what} is empty")
        return str(self._node.value)

    def texts(self, *, empty: bool = False) -> tuple[str, ...]:
        """A list of texts; of one, the text alone will do. empty: whether there may be none."""
        if isinstance(self._node, yaml.ScalarNode):
            return (self.text(),)
        found = tuple(part.text() for part in self.parts(f"an element of {self._what}"))
        if not found and not empty:
            raise self.wrong(f"{self._what} is empty")
        return found

    def number(self, least: int, most: int) -> int:
        """A whole number."""
        text = self.text()
        if not text.isdecimal() or not text.isascii() or len(text) > 9 or not least <= int(text) <= most:
            raise self.wrong(f"{self._what} is {text!r}, and no whole number from {least} to {most}")
        return int(text)


def _listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in names)
