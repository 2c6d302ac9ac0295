"""What a worker remembers between calls."""

from __future__ import annotations

from typing import Any

__all__ = ["child_state"]

child_state: dict[str, Any] = {}
"""Objects that calls into one worker keep for later calls, by a key of their own. Empty in the process of the
user.
"""
