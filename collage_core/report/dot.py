"""A placement in Graphviz's language: groups as clusters, coloured by backend, edges by bytes.

https://graphviz.org/doc/info/lang.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from collage_run.printable import printable_line

from collage_core.report.conclusion import ms_text
from collage_core.report.dataflow import took_ms

__all__ = ["COLOURS", "colours_of", "placement_dot"]

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#e15759", "#9c755f", "#ff9da7")
"""For backends, one after the other; those of Tableau 10 but its grey."""

_OTHERS = "#bab0ac"
_BYTES_PER_POINT = 1 << 20


def colours_of(report: Mapping[str, Any]) -> dict[str, str]:
    """Backend -> its colour, the same in every picture: by the names that the placement has, in order."""
    names = dict.fromkeys([g["backend"] for g in report["groups"]])
    names |= dict.fromkeys([c["backend"] for c in report["conversions"]])
    return {name: COLOURS[i] if i < len(COLOURS) else _OTHERS for i, name in enumerate(sorted(names))}


def placement_dot(report: Mapping[str, Any]) -> str:
    """report: a placement's JSON with its `dataflow`."""
    lines = ['rankdir="TB"', 'node [shape="box" style="filled" fillcolor="white" fontname="sans-serif"]']
    lines += _groups(report)
    lines += _edges(report)
    body = "".join(f"  {line}\n" for line in lines)
    return f"digraph {_text(str(report.get('model') or 'placement'))} {{\n{body}}}\n"


def _groups(report: Mapping[str, Any]) -> Iterator[str]:
    colours = colours_of(report)
    members: dict[int, list[str]] = {}
    for i, operator in enumerate(report["dataflow"]["operators"]):
        label = _text(f"{operator['op']}\n{operator['name']}")
        members.setdefault(operator["group"], []).append(f"n{i} [label={label}]")
    for i, group in enumerate(report["groups"]):
        label = _text(f"{i} {group['backend']} {ms_text(took_ms(group))} ms")
        nodes = "; ".join(members.get(i, []))
        colour = colours[group["backend"]]
        yield f'subgraph cluster_{i} {{ label={label}; color="{colour}"; bgcolor="{colour}40"; {nodes} }}'
    for i, c in enumerate(report["conversions"]):
        label = _text(f"{c['backend']}\n{c['from']} to {c['to']}\n{ms_text(c['cost_ms'])} ms")
        yield f'c{i} [shape="ellipse" fillcolor="{colours[c["backend"]]}40" label={label}]'


def _edges(report: Mapping[str, Any]) -> Iterator[str]:
    """A value goes once by each conversion, however many read it after that."""
    told = dict[str, None]()
    for edge in report["dataflow"]["edges"]:
        ways = [f"c{i}" for i in edge["conversions"]]
        for at, kind, end in ((0, "in", edge["from"]), (len(ways) + 1, "out", edge["to"])):
            name = f"n{end}" if end is not None else _text(f"{kind} {edge['value']}")
            ways.insert(at, name)
            if end is None:
                told[f'{name} [shape="ellipse" label={_text(edge["value"])}]'] = None
        width = 1 + min(edge["bytes"] / _BYTES_PER_POINT, 6)
        label = _text(f"{edge['bytes'] / 1e6:.3f} MB" if edge["format"] else "")
        for source, target in pairwise(ways):
            told[f'{source} -> {target} [label={label} penwidth="{width:.1f}"]'] = None
    yield from told


def _text(text: str) -> str:
    lines = [printable_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    return '"' + "\\n".join(lines) + '"'
