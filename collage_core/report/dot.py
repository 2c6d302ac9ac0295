"""A placement in Graphviz's language: groups as clusters, coloured by backend, edges by bytes.

https://graphviz.org/doc/info/lang.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import log2
from typing import Any

from collage_run.printable import printable_line

from collage_core.report.conclusion import ms_text
from collage_core.report.dataflow import hops
from collage_core.report.movement import quantity, reached
from collage_core.report.step_costs import took_ms

__all__ = ["BEGINS", "COLOURS", "colours_of", "placement_dot", "where", "width_of"]

BEGINS = "// collage explain\n"
"""What a drawing of ours begins with, and nobody else's."""

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#e15759", "#9c755f", "#ff9da7")
"""For backends, one after the other; those of Tableau 10 but its grey."""

_OTHERS = "#bab0ac"
_LINES = {"within": "#cccccc", "moved": "#888888", "converted": "#e08a00", "transfer": "#cc2222"}


def colours_of(*reports: Mapping[str, Any]) -> dict[str, str]:
    """Backend -> its colour, the same in every picture of these reports: by name."""
    names = {step["backend"] for r in reports for step in (*r["groups"], *r["conversions"])}
    return {name: COLOURS[i] if i < len(COLOURS) else _OTHERS for i, name in enumerate(sorted(names))}


def where(report: Mapping[str, Any], group: Mapping[str, Any]) -> str:
    """Who runs a group, and on which device where that is not the target's."""
    backend, device = str(group["backend"]), group["device"]
    return backend if device == report.get("device", device) else f"{backend} on {device}"


def width_of(size_bytes: int | None) -> float:
    """Of an edge: one up to 64 KB, and half of one more for each time that it doubles."""
    return round(1 + max(0.0, log2(max(size_bytes or 1, 1) / 2**16)) / 2, 2)


def placement_dot(report: Mapping[str, Any]) -> str:
    """report: a placement's JSON with its `dataflow`."""
    lines = ['rankdir="TB"', 'node [shape="box" style="filled" fillcolor="white" fontname="sans-serif"]']
    lines += _groups(report)
    lines += _edges(report)
    body = "".join(f"  {line}\n" for line in lines)
    return f"{BEGINS}digraph {_text(str(report.get('model') or 'placement'))} {{\n{body}}}\n"


def _groups(report: Mapping[str, Any]) -> Iterator[str]:
    colours = colours_of(report)
    members: dict[int, list[str]] = {}
    for i, operator in enumerate(report["dataflow"]["operators"]):
        label = _text(f"{operator['op']}\n{operator['name']}")
        members.setdefault(operator["group"], []).append(f"n{i} [label={label}]")
    for i, (group, work) in enumerate(zip(report["groups"], report["dataflow"]["groups"], strict=True)):
        flops, rate, _ = reached(group, work)
        label = _text(f"{i} {where(report, group)} {ms_text(took_ms(group))} ms\n{flops}, {rate}")
        formats = (" ".join(group["formats"][end]) for end in ("inputs", "outputs"))
        colour = colours[group["backend"]]
        told = f'label={label}; tooltip={_text(" -> ".join(formats))}; color="{colour}"; bgcolor="{colour}40"'
        yield f"subgraph cluster_{i} {{ {told}; {'; '.join(members.get(i, []))} }}"
    for i, c in enumerate(report["conversions"]):
        label = _text(f"{c['backend']}\n{c['from']} to {c['to']}\n{ms_text(took_ms(c))} ms")
        yield f'c{i} [shape="ellipse" fillcolor="{colours[c["backend"]]}40" label={label}]'


def _edges(report: Mapping[str, Any]) -> Iterator[str]:
    ends = set()
    for hop in hops(report):
        names = [_text(n) if " " in n else n for n in (hop.source, hop.target)]
        for node, name in zip((hop.source, hop.target), names, strict=True):
            if " " in node and node not in ends:
                ends.add(node)
                yield f'{name} [shape="ellipse" label={_text(hop.value)}]'
        label = "" if hop.bytes is None else quantity(hop.bytes, "B")
        style = f'color="{_LINES[hop.kind]}" penwidth="{width_of(hop.bytes)}"'
        yield f"{names[0]} -> {names[1]} [label={_text(label)} {style}]"


def _text(text: str) -> str:
    lines = [printable_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    return '"' + "\\n".join(lines) + '"'
