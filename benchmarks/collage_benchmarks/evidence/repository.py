"""The commit that figures belong to."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from collage_core.errors import CollageError

__all__ = ["Commit", "commit_of", "root_of"]

_PROGRAM = (
    "collage_core",
    "collage_cli",
    "plugins",
    ":(exclude,glob)**/*.md",
    ":(exclude,glob)plugins/*/tests/**",
)
"""What is measured. Pages and tests may change without figures becoming those of another program."""
_NOT_MEASURED = (":(exclude)docs/results", ":(exclude)README.md")
"""Where records and tables are written, which are not committed yet while runs are collected."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The last one that changed the program, and the date on which it was made (ISO 8601). head: the one
    that is checked out. dirty: whether files differ from it, those that records and tables go to aside.
    """

    id: str
    date: str
    head: str
    dirty: bool


def root_of(folder: Path) -> Path:
    """The repository's root. CollageError where `folder` is in none."""
    return Path(_git(folder, "rev-parse", "--show-toplevel"))


def commit_of(root: Path) -> Commit:
    """CollageError where nothing has been committed."""
    head = _git(root, "rev-parse", "HEAD")
    id, _, date = _git(root, "log", "-1", "--format=%H %cI", "--", *_PROGRAM).partition(" ")
    if not id:
        raise CollageError(f"no commit of {root} has Collage in it")
    changed = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", *_NOT_MEASURED)
    return Commit(id, date, head, bool(changed))


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
    except OSError as error:
        raise CollageError(f"git does not run: {error.strerror}") from None
    if done.returncode:
        raise CollageError(f"git {arguments[0]}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()
