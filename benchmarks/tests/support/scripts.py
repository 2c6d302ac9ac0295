"""Scripts of this folder's parent, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

__all__ = ["script"]


def script(name: str) -> Any:
    """The module that `benchmarks/<name>.py` is, run anew."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
