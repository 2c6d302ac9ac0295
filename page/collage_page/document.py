"""The page: what `collage_core.report.text` tells, as HTML, and the graphs that `page.js` draws beside it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from collage_run.command import json_text
from collage_run.printable import printable_line

from collage_core.errors import CollageError
from collage_core.report.conclusion import ms_text
from collage_core.report.dataflow import hops
from collage_core.report.dot import colours_of
from collage_core.report.movement import peaks_text, quantity, reached
from collage_core.report.step_costs import ms_header, predicted_ms, took_ms
from collage_core.report.tables import Table, headline
from collage_core.report.text import explain_parts
from collage_page.drawing import graph

__all__ = ["page"]


def page(report: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> str:
    """One HTML document that needs nothing else.

    report: a placement's JSON with its `dataflow`. other: the one that it stands beside, likewise; what
    moved is in the `beside` of report.
    """
    beside = report.get("beside") or {"moved": (), "other": "there"}
    moved = frozenset(name for m in beside["moved"] for name in m["nodes"])
    reports = [report] if other is None else [report, other]
    titles = [""] if other is None else ["here", f"there: {beside['other']}"]
    colours = colours_of(*reports)
    longest_ms = max((took_ms(g) or 0.0 for r in reports for g in r["groups"]), default=0.0)
    graphs = [graph(r, colours, longest_ms, moved) for r in reports]
    library, script = _file("cytoscape.min.js"), _file("page.js")
    return _file("page.html").format(
        title=_text(headline(report) if "model" in report else "a placement"),
        style=_file("page.css"),
        legend="".join(
            f'<li><span class="swatch" style="background:{colour}"></span>{_text(name)}</li>'
            for name, colour in colours.items()
        ),
        panes="".join(
            f'<section class="pane"><h2>{_text(t)}</h2><div class="graph" id="graph-{i}"></div></section>'
            for i, t in enumerate(titles)
        ),
        details="".join(
            f'<section class="detail" id="detail-{i}-{key}" hidden>{content}</section>'
            for i, r in enumerate(reports)
            for key, content in (*_groups(r), *_conversions(r))
        ),
        told="".join(_part(part) for part in explain_parts(report)),
        by_moved='<option value="moved">what moved</option>' if other is not None else "",
        data=_script_data({"graphs": graphs}),
        library=library,
        script=script,
        trusted=" ".join(map(_trusted, (library, script))),
    )


def _groups(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for i, (group, work) in enumerate(zip(report["groups"], report["dataflow"]["groups"], strict=True)):
        yield f"g{i}", f"<h3>Group {i}: {_text(group['backend'])}</h3>" + "".join(_group(group, work, report))


def _group(group: Mapping[str, Any], work: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[str]:
    operators = zip(group["nodes"], group["ops"], strict=True)
    flops, rate, intensity = reached(group, work)
    facts = [
        ("operators", ", ".join(f"{name} ({op})" for name, op in operators)),
        ("device", group["device"]),
        ("reads", ", ".join(group["formats"]["inputs"])),
        ("writes", ", ".join(group["formats"]["outputs"])),
        (ms_header([group]), f"{ms_text(predicted_ms(group))} ms"),
        ("IQR of the kernel alone", f"{ms_text(group['spread_ms'])} ms"),
        ("in place", f"{ms_text(group.get('in_place_ms'))} ms"),
        ("arithmetic", quantity(work["flops"], "FLOP")),
        ("moves", f"{quantity(work['bytes'], 'B')}, weights once; {intensity} FLOP per byte"),
        ("reaches", f"{flops}, {rate}"),
    ]
    if work["at_peaks_ms"] is not None:
        limit = f", limited by {work['limit']}" if work["limit"] else ""
        facts.append(("at the peaks", f"{ms_text(work['at_peaks_ms'])} ms{limit}"))
        facts.append(("peaks", peaks_text(report["dataflow"]["peaks"])))
    if group.get("error") is not None:
        facts.append(("error if alone rounded", f"{group['error']:.1e}"))
    yield _facts(facts)
    yield from _rivals(group)
    if ways := group.get("ways"):
        rows = [(w["variant"], ms_text(predicted_ms(w)), w["reason"] or "") for w in ways]
        header = ("formats", f"{ms_header(ways)} ms", "")
        yield _table(Table(header, rows, right=[1], title=f"other kernels of {group['backend']}"))


def _rivals(group: Mapping[str, Any]) -> Iterator[str]:
    """Whoever offers a kernel for just these nodes."""
    rivals = group.get("rivals")
    if rivals is None:
        return
    if not rivals:
        yield "<p>No other backend knows these nodes.</p>"
        return
    rows = [(r["backend"], ms_text(predicted_ms(r)), r["reason"] or "") for r in rivals]
    header = ("backend", f"{ms_header(rivals)} ms", "")
    yield _table(Table(header, rows, right=[1], title="the same nodes on others"))
    known = [ms for r in rivals if (ms := predicted_ms(r)) is not None]
    ours_ms = predicted_ms(group)
    if known and ours_ms is not None:
        off_ms = min(known) - ours_ms
        told = f"{abs(off_ms):.4f} ms {'more' if off_ms >= 0 else 'less'}"
        yield f"<p>The fastest of these is predicted to take {told}, conversions that it may need apart.</p>"


def _conversions(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    moves = {hop.target: hop for hop in hops(report)}
    for i, c in enumerate(report["conversions"]):
        hop = moves.get(f"c{i}")
        facts = [
            ("value", c["value"]),
            ("from", c["from"]),
            ("to", c["to"]),
            ("by", c["backend"]),
            ("reads", quantity(hop.bytes if hop else None, "B")),
            (ms_header([c]), f"{ms_text(predicted_ms(c))} ms"),
            ("in place", f"{ms_text(c.get('in_place_ms'))} ms"),
        ]
        what = "Transfer" if hop and hop.kind == "transfer" else "Conversion"
        yield f"c{i}", f"<h3>{what} {i}</h3>{_facts(facts)}"


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
    return json.dumps(json.loads(json_text(value)), separators=(",", ":")).replace("<", "\\u003c")


def _trusted(script: str) -> str:
    """What a policy names a script by (https://www.w3.org/TR/CSP3/#match-element-to-source-list)."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _file(name: str) -> str:
    try:
        return resources.files("collage_page").joinpath(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CollageError(f"collage-page lacks {name}: it was not built, pip install does that") from None
