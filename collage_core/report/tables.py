"""Tables for reading: aligned columns, a row a line, as wide as they have to be."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collage_run.printable import printable_line
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

__all__ = ["headline", "table"]

_WIDEST = 1 << 20


def headline(report: Mapping[str, Any]) -> str:
    """Of what a report is: model, devices, threads, precisions that values may be rounded to."""
    devices = " + ".join(report.get("devices", [report["device"]]))  # of older ones nothing else is known
    rounded = "".join(f", {dtype} allowed" for dtype in report.get("precisions", ()))
    return f"{printable_line(report['model'])} on {devices}, {report['threads']} threads{rounded}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Aligned columns, those in `right` to the right; a header line without a rule.

    Nothing is wrapped or cut, however narrow the terminal, so that a line can be searched for. Cells are
    plain text; what is not printable in them is escaped.
    """
    to_right = set(right)
    grid = Table(box=None, pad_edge=False)
    for i, name in enumerate(header):
        justify: JustifyMethod = "right" if i in to_right else "left"
        grid.add_column(_plain(name), justify=justify, no_wrap=True)
    for row in rows:
        grid.add_row(*map(_plain, row))
    # Of no terminal, so that neither its width nor its colours matter.
    console = Console(file=io.StringIO(), width=_WIDEST, color_system=None, force_jupyter=False)
    options = console.options.update(width=console.measure(grid).maximum)
    lines = console.render_lines(grid, options, pad=False)
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


def _plain(text: str) -> Text:
    return Text(printable_line(text))
