"""Options that a person sets in a file instead of giving them each time."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from collage_core.steering.located import Located, read_yaml

__all__ = ["SETTINGS", "Kind", "Setting", "read_settings", "settings_files"]

_FILE = "collage.yaml"


class Kind(enum.Enum):
    """What a setting's value is."""

    TEXT = "a text"
    FILE = "a file, beside the one that names it if it is no whole path"
    NUMBER = "a number"
    WHOLE = "a whole number"
    NAMES = "one name, or a list of names"
    EACH = "a list, as if the option were given for each"


SETTINGS: Mapping[str, Kind] = {
    "backends": Kind.NAMES,
    "budget": Kind.TEXT,
    "costs": Kind.FILE,
    "devices": Kind.NAMES,
    "effort": Kind.TEXT,
    "exclude": Kind.EACH,
    "keep-together": Kind.EACH,
    "level": Kind.TEXT,
    "max-error": Kind.NUMBER,
    "pin": Kind.EACH,
    "precision": Kind.NAMES,
    "rounds": Kind.WHOLE,
    "seed": Kind.WHOLE,
    "skip-pass": Kind.EACH,
    "threads": Kind.WHOLE,
    "verify": Kind.TEXT,
}
"""What may be set, by the option's name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, as its option would have it, and where it stands (file and line)."""

    value: str | int | float | list[str]
    where: str


def settings_files() -> list[Path]:
    """Where settings are looked for, what goes before others last: `collage.yaml` of the user
    (`$XDG_CONFIG_HOME/collage`, else `~/.config/collage`), and of the folder that the command runs in.

    $COLLAGE_SETTINGS names another file instead of both, or is `off`.
    """
    named = os.environ.get("COLLAGE_SETTINGS")
    if named is not None:
        return [] if named in ("", "off") else [Path(named)]
    config = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    with suppress(RuntimeError):  # nobody whose home is known
        return [config.expanduser() / "collage" / _FILE, Path(_FILE)]
    return [Path(_FILE)]


def read_settings(files: Sequence[Path] | None = None) -> dict[str, Setting]:
    """By name, from these files, or those of `settings_files`; none need be there. CollageError, with file
    and line, for a mistake in them.
    """
    found: dict[str, Setting] = {}
    for path in settings_files() if files is None else files:
        if os.path.exists(path) or (files is None and os.environ.get("COLLAGE_SETTINGS")):
            for name, field in read_yaml(path, empty=True).fields(SETTINGS).items():
                found[name] = Setting(_value(name, field, path), field.where)
    return found


def _value(name: str, field: Located, path: Path) -> str | int | float | list[str]:
    kind = SETTINGS[name]
    if kind is Kind.NAMES:
        return ",".join(field.texts())
    if kind is Kind.EACH:
        return list(field.texts(empty=True))
    if kind is Kind.WHOLE:
        return field.number(0, 999_999_999)
    text = field.text()
    if kind is Kind.TEXT:
        return text
    try:
        return str(path.parent / Path(text).expanduser()) if kind is Kind.FILE else float(text)
    except RuntimeError:
        raise field.wrong(f"{name!r} is {text!r}, and there is no such home") from None
    except ValueError:
        raise field.wrong(f"{name!r} is {text!r}, and not {kind.value}") from None
