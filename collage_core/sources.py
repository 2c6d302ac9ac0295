"""Which code it is: digests of Python sources."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

__all__ = ["source_hash"]


@cache
def source_hash(module: str) -> str:
    """Digest of all Python sources of the package that brings `module`, looked up among the loaded modules.

    For a plugin, its top-level package; for a backend inside core, the subpackage: the rest of core may
    change without costs becoming stale. "" where there is no source file (a notebook).
    """
    parts = module.split(".")
    owner = sys.modules.get(".".join(parts[:2] if parts[0] == __package__.split(".")[0] else parts[:1]))
    folders = [Path(p) for p in getattr(owner, "__path__", ())]
    files = [(f.relative_to(d).as_posix(), f) for d in folders for f in d.rglob("*.py")]
    if not folders and (single := getattr(owner, "__file__", None)):
        files = [(Path(single).name, Path(single))]
    if not files:
        return ""
    digest = hashlib.sha256()
    for name, file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
