"""Blocks of pages written from records, between `<!-- evidence: NAME -->` and `<!-- /evidence -->`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from collage_run.files import replacing

from collage_benchmarks.evidence.efforts_table import bounds_table, efforts_table
from collage_benchmarks.evidence.tables import all_runs, figures
from collage_core.errors import CollageError

__all__ = ["PAGES", "filled", "replaced", "stale_pages", "wrapped", "write_pages"]

PAGES = (Path("README.md"), Path("docs/results/evidence.md"), Path("docs/results/efforts.md"))
"""In the repository."""

Records = Sequence[Mapping[str, Any]]
_OF_RUNS: Mapping[str, Callable[[Records], str]] = {"figures": figures, "runs": all_runs}
_OF_EFFORTS: Mapping[str, Callable[[Records], str]] = {"efforts": efforts_table, "bounds": bounds_table}
_WIDTH = 120
_ITEM = re.compile(r"\d+\. ")
_BLOCK = re.compile(r"(<!-- evidence: (\S+) -->\n)(.*?)(<!-- /evidence -->)", re.DOTALL)


def filled(text: str, records: Records, efforts: Records = ()) -> str:
    """A page's text with its blocks written anew. CollageError for one that nobody knows, or none at all."""
    tables = {n: partial(t, records) for n, t in _OF_RUNS.items()}
    return replaced(text, tables | {n: partial(t, efforts) for n, t in _OF_EFFORTS.items()})


def replaced(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """A page's text with its blocks from `tables`, by name. CollageError as for `filled`."""

    def block(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        if name not in tables:
            raise CollageError(f"there is no evidence {name!r}, only {', '.join(tables)}")
        return f"{begin}{wrapped(tables[name]())}\n{end}"

    result, count = _BLOCK.subn(block, text)
    if not count:
        raise CollageError("a page has no block of evidence: <!-- evidence: NAME --> ... <!-- /evidence -->")
    return result


def wrapped(text: str) -> str:
    """Lines of prose as long as those of other pages; of a list's items what follows is indented."""
    lines: list[str] = []
    for line in text.split("\n"):
        if line.startswith("|") or len(line) <= _WIDTH:
            lines.append(line)
            continue
        indent = "   " if _ITEM.match(line) else ""
        lines += textwrap.wrap(
            line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)


def stale_pages(root: Path, records: Records, efforts: Records = ()) -> dict[Path, str]:
    """Pages that differ from what the records give, with their new text."""
    texts = {root / page: (root / page).read_text(encoding="utf-8") for page in PAGES}
    return {path: new for path, text in texts.items() if (new := filled(text, records, efforts)) != text}


def write_pages(root: Path, records: Records, efforts: Records = ()) -> list[Path]:
    """Those that were written. OSError as from writing."""
    stale = stale_pages(root, records, efforts)
    for path, text in stale.items():
        with replacing(path) as written:
            written.write_text(text, encoding="utf-8")
    return list(stale)
