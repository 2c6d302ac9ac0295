"""Tables for reading: aligned columns, a row a line, as wide as they have to be."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rich.table
from collage_run.printable import printable_line
from rich.console import Console, JustifyMethod
from rich.text import Text

from collage_core.counted import counted
from collage_core.serving import Serving

__all__ = ["Table", "at_a_time", "headline"]

_WIDEST = 1 << 20


def headline(report: Mapping[str, Any]) -> str:
    """Of what a report is: model, devices, threads, precisions that values may be rounded to."""
    devices = " + ".join(report.get("devices", [report["device"]]))  # of older ones nothing else is known
    rounded = "".join(f", {dtype} allowed" for dtype in report.get("precisions", ()))
    threads = counted(report["threads"], "thread")
    if told := report.get("serving"):
        serving = Serving(**told)
        threads = f"{serving.text(report['threads'])}, {at_a_time(serving.concurrency)}"
    return f"{printable_line(report['model'])} on {devices}, {threads}{rounded}"


def at_a_time(concurrency: int) -> str:
    """So many requests."""
    return f"{counted(concurrency, 'request')} at a time"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a header: plain text, in one line each. right: columns that stand to the right.

    As text: aligned columns, a header line without a rule, the title above. Nothing is wrapped or cut,
    however narrow the terminal, so that a line can be searched for. What is not printable is escaped.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[int] = ()
    title: str = ""

    def __str__(self) -> str:
        grid = rich.table.Table(box=None, pad_edge=False)
        for i, name in enumerate(self.header):
            justify: JustifyMethod = "right" if i in self.right else "left"
            grid.add_column(_plain(name), justify=justify, no_wrap=True)
        for row in self.rows:
            grid.add_row(*map(_plain, row))
        # Of no terminal, so that neither its width nor its colours matter.
        console = Console(file=io.StringIO(), width=_WIDEST, color_system=None, force_jupyter=False)
        options = console.options.update(width=console.measure(grid).maximum)
        lines = [
            "".join(s.text for s in line).rstrip() for line in console.render_lines(grid, options, pad=False)
        ]
        return "\n".join([*filter(None, [self.title]), *lines])


def _plain(text: str) -> Text:
    return Text(printable_line(text))
