"""A plugin that only says what an operator of its vendor computes."""

from __future__ import annotations

from collage_core.ir import Definition
from collage_core.plugins import hookimpl


@hookimpl
def collage_definitions() -> list[Definition]:
    text = "(x) => (y) {{ by = Constant <value_float = {}> () y = Mul (x, by) }}"
    return [Definition("com.acme", "Scale", lambda call: text.format(call.attributes["by"]))]
