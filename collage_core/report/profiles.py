"""What there is to tell of several profiles: one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["of_profiles", "profiles_text"]


def of_profiles(reports: Sequence[Mapping[str, Any]], shapes: Sequence[str]) -> dict[str, Any]:
    """As JSON values: that of one as it is, those of several with their shapes."""
    if len(reports) == 1:
        return dict(reports[0])
    return {"profiles": [{"shapes": of, **report} for of, report in zip(shapes, reports, strict=True)]}


def profiles_text(told: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str]) -> str:
    """Of what `of_profiles` returned."""
    if "profiles" not in told:
        return text(told)
    return "\n\n".join(f"profile {one['shapes']}\n\n{text(one)}" for one in told["profiles"])
