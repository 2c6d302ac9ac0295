"""The page: what `collage_core.report.text` tells, as HTML, and the graphs that `page.js` draws beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from collage_run.printable import printable_line

from collage_core.report.conclusion import ms_text
from collage_core.report.dataflow import took_ms
from collage_core.report.dot import colours_of
from collage_core.report.tables import Table, headline
from collage_core.report.text import explain_parts
from collage_page.drawing import elements

__all__ = ["page"]


def page(report: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> str:
    """One HTML document that needs nothing else.

    report: a placement's JSON with its `dataflow`. other: the one that it stands beside, likewise; what
    moved is in the `beside` of report.
    """
    beside = report.get("beside") or {"moved": ()}
    moved = frozenset(m["node"] for m in beside["moved"])
    reports = [report] if other is None else [report, other]
    title = headline(report) if "model" in report else "a placement"
    drawn = [{"elements": elements(r, moved)} for r in reports]
    names = ["here", "there"][: len(reports)]
    panes = "".join(
        f'<section class="pane"><h2>{_text(name if other is not None else "")}</h2>'
        f'<div class="graph" id="graph-{i}"></div></section>'
        for i, name in enumerate(names)
    )
    details = "".join(
        _section(f"detail-{i}-{key}", content)
        for i, r in enumerate(reports)
        for key, content in (*_groups(r), *_conversions(r))
    )
    told = "".join(_part(part) for part in explain_parts(report))
    return _file("page.html").format(
        title=_text(title),
        style=_file("page.css"),
        legend=_legend(reports),
        panes=panes,
        details=details,
        told=told,
        by_moved='<option value="moved">what moved</option>' if other is not None else "",
        data=_script_data({"graphs": drawn}),
        library=_file("cytoscape.min.js"),
        script=_file("page.js"),
    )


def _groups(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for i, (group, work) in enumerate(zip(report["groups"], report["dataflow"]["groups"], strict=True)):
        yield f"g{i}", f"<h3>Group {i}: {_text(group['backend'])}</h3>" + "".join(_group(group, work, report))


def _group(group: Mapping[str, Any], work: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[str]:
    ms = took_ms(group)
    operators = zip(group["nodes"], group["ops"], strict=True)
    facts = [
        ("operators", ", ".join(f"{name} ({op})" for name, op in operators)),
        ("device", group["device"]),
        ("reads", ", ".join(group["formats"]["inputs"])),
        ("writes", ", ".join(group["formats"]["outputs"])),
        ("by itself", f"{ms_text(group['cost_ms'])} ms, IQR {ms_text(group['spread_ms'])}"),
        ("in place", f"{ms_text(group.get('in_place_ms'))} ms"),
        ("arithmetic", f"{work['flops'] / 1e6:.2f} MFLOP"),
        ("memory", f"{work['bytes'] / 1e6:.2f} MB, weights once"),
    ]
    if ms:
        gflops, rate = (work[what] / ms / 1e6 for what in ("flops", "bytes"))
        facts.append(("reaches", f"{gflops:.1f} GFLOP/s, {rate:.1f} GB/s"))
    if peaks := report.get("peaks"):
        gflops, rate = peaks["gflops"], peaks["memory_gb_per_s"]
        facts.append(("this machine", f"{gflops:.0f} GFLOP/s in float32, {rate:.0f} GB/s from memory"))
    if ms and work["least_ms"] is not None:
        facts.append(("least", f"{ms_text(work['least_ms'])} ms by both, {work['least_ms'] / ms:.0%} of it"))
    if group.get("error") is not None:
        facts.append(("error if alone rounded", f"{group['error']:.1e}"))
    yield _facts(facts)
    yield from _rivals(group)
    names = {name + ":" for name in group["nodes"]}
    for backend, reasons in (report.get("declined") or {}).items():
        about = [r for r in reasons if r.split(" ")[0] in names]
        if about:
            told = "".join(f"<li>{_text(reason)}</li>" for reason in about)
            yield f"<h4>declined by {_text(backend)}</h4><ul>{told}</ul>"


def _rivals(group: Mapping[str, Any]) -> Iterator[str]:
    """Whoever offers a kernel for just these nodes."""
    rivals = group.get("rivals")
    if rivals is None:
        return
    if not rivals:
        yield "<p>No other backend offers a kernel for just these nodes.</p>"
        return
    rows = [(r["backend"], ms_text(r["cost_ms"]), r["reason"] or "") for r in rivals]
    yield _table(Table(("backend", "ms", ""), rows, right=[1], title="the same nodes on others"))
    known = [r["cost_ms"] for r in rivals if r["cost_ms"] is not None]
    if known and group["cost_ms"] is not None:
        yield f"<p>The second best takes {min(known) - group['cost_ms']:+.4f} ms.</p>"


def _conversions(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for i, c in enumerate(report["conversions"]):
        facts = [
            ("value", c["value"]),
            ("from", c["from"]),
            ("to", c["to"]),
            ("by", c["backend"]),
            ("by itself", f"{ms_text(c['cost_ms'])} ms"),
            ("in place", f"{ms_text(c.get('in_place_ms'))} ms"),
        ]
        yield f"c{i}", f"<h3>Conversion {i}</h3>{_facts(facts)}"


def _legend(reports: Sequence[Mapping[str, Any]]) -> str:
    colours = {name: colour for r in reports for name, colour in colours_of(r).items()}
    return "".join(
        f'<li><span class="swatch" style="background:{colour}"></span>{_text(name)}</li>'
        for name, colour in colours.items()
    )


def _section(id: str, content: str) -> str:
    return f'<section class="detail" id="{id}" hidden>{content}</section>'


def _part(part: str | Table) -> str:
    return _table(part) if isinstance(part, Table) else f"<pre>{_lines(part)}</pre>"


def _table(table: Table) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        marks = (' class="right"' if i in table.right else "" for i in range(len(cells)))
        told = (f"<{tag}{mark}>{_text(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True))
        return f"<tr>{''.join(told)}</tr>"

    caption = f"<caption>{_text(table.title)}</caption>" if table.title else ""
    body = "".join(row("td", cells) for cells in table.rows)
    return f"<table>{caption}<thead>{row('th', table.header)}</thead><tbody>{body}</tbody></table>"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    told = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts)
    return f"<dl>{told}</dl>"


def _text(text: str) -> str:
    return escape(printable_line(text))


def _lines(text: str) -> str:
    return "\n".join(_text(line) for line in text.split("\n"))


def _script_data(value: Any) -> str:
    """As JSON that no text in it can end: it stands in a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _file(name: str) -> str:
    return resources.files("collage_page").joinpath(name).read_text(encoding="utf-8")
