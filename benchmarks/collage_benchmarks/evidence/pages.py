"""Blocks of pages written from records, between `<!-- evidence: NAME -->` and `<!-- /evidence -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from collage_benchmarks.evidence.tables import all_runs, figures
from collage_core.errors import CollageError
from collage_core.runtime.files import replacing

__all__ = ["PAGES", "filled", "stale_pages", "write_pages"]

PAGES = (Path("README.md"), Path("docs/results/evidence.md"))
"""In the repository."""

_BLOCKS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {"figures": figures, "runs": all_runs}
_BLOCK = re.compile(r"(<!-- evidence: (\S+) -->\n)(.*?)(<!-- /evidence -->)", re.DOTALL)


def filled(text: str, records: Sequence[Mapping[str, Any]]) -> str:
    """A page's text with its blocks written anew. CollageError for one that nobody knows, or none at all."""

    def block(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        if name not in _BLOCKS:
            raise CollageError(f"there is no evidence {name!r}, only {', '.join(_BLOCKS)}")
        return f"{begin}{_BLOCKS[name](records)}\n{end}"

    result, count = _BLOCK.subn(block, text)
    if not count:
        raise CollageError("a page has no block of evidence: <!-- evidence: NAME --> ... <!-- /evidence -->")
    return result


def stale_pages(root: Path, records: Sequence[Mapping[str, Any]]) -> dict[Path, str]:
    """Pages that differ from what the records give, with their new text."""
    texts = {root / page: (root / page).read_text(encoding="utf-8") for page in PAGES}
    return {path: new for path, text in texts.items() if (new := filled(text, records)) != text}


def write_pages(root: Path, records: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Those that were written. OSError as from writing."""
    stale = stale_pages(root, records)
    for path, text in stale.items():
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(stale)
