"""Where Collage keeps what outlives a run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["cache_folder", "others_may_write", "user_folder"]


def cache_folder() -> Path:
    """`collage` in the user's cache directory (XDG), whatever $COLLAGE_HOME says. It may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "collage"


def user_folder() -> Path:
    """$COLLAGE_HOME, else `cache_folder`. Backends keep what they like in a folder of their name in it. It
    may not exist yet."""
    home = os.environ.get("COLLAGE_HOME")
    return Path(home).expanduser() if home else cache_folder()


def others_may_write(facts: os.stat_result) -> bool:
    """Whether a file or folder is somebody else's, or its group or everybody may write to it: what is code in
    there must not be run.
    """
    return facts.st_uid != os.geteuid() or bool(facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
