"""The table of what libraries said without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["table"]

_LONGEST = 90
_HEAD = """# What NVIDIA's libraries say without a GPU

Each structure in each variant that a plugin offers, once. cuDNN has validated it and built a plan for the
description of an H200. NVRTC has compiled what TVM's plugin writes, for sm_80 and sm_90. TensorRT for RTX
has built an engine for 8.9 of each, in the model's own types.

cuBLASLt does not answer without a driver: there the plugin alone has planned.

Values are stored as {}. Shares: of the flops of convolutions and products, and of nodes, what is in some
accepted group.
"""
_COMMAND = """The command:

```sh
{}
```
"""


def table(answers: Sequence[Mapping[str, Any]], command: str) -> str:
    """answers: of `asking.ask`, each of one network and library."""
    rows = [
        f"| {a['network']} | {a['library']} | {a['offered']} | {a['accepted']} | {a['flops_share']:.1%} "
        f"| {a['nodes_share']:.1%} | {a['seconds']:.0f} |"
        for a in sorted(answers, key=lambda a: (a["network"], a["library"]))
    ]
    reasons: dict[tuple[str, str], int] = {}
    for a in answers:
        for reason, count in a["declined"].items():
            key = a["library"], reason.replace("|", "/").replace("\n", " ")
            reasons[key] = reasons.get(key, 0) + count
    declined = [f"| {library} | {_short(reason)} | {n} |" for (library, reason), n in sorted(reasons.items())]
    asked = " and ".join(sorted({p for a in answers for p in a["precisions"].split(",")}))
    counts = (
        "| network | library | offered | accepted | flops | nodes | seconds |\n|---|---|---|---|---|---|---|"
    )
    heads = "| declined by | reason | times |\n|---|---|---|"
    reasons_or_none = declined or ["| nobody | | 0 |"]
    command_text = _COMMAND.format(command)
    return "\n".join([_HEAD.format(asked), counts, *rows, "", heads, *reasons_or_none, "", command_text])


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."
