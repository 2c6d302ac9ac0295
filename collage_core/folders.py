"""Where Collage keeps what outlives a run."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_folder"]


def user_folder() -> Path:
    """$COLLAGE_HOME, else `collage` in the user's cache directory (XDG). Backends keep what they like in
    a folder of their name in it. It may not exist yet."""
    if home := os.environ.get("COLLAGE_HOME"):
        return Path(home).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "collage"
