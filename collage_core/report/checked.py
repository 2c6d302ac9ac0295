"""What a bundle's report says of how it was made, read back; and what `collage check` says of it now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from collage_core.costs.ratio import Ratio
from collage_core.pipeline.proof import COLLAGE, single_label
from collage_core.pipeline.verdicts import Facts, Made, Shown, Verdict, status_of
from collage_core.report.constraints import constraints_from

__all__ = ["check_json", "check_text", "made_from"]


def made_from(report: Mapping[str, Any], origin: Mapping[str, Any]) -> Made:
    """What the report and the origin of a bundle say, empty ones and those of older releases too.

    Anyone may have written them: AttributeError, LookupError, TypeError or ValueError for what
    `optimization_json` did not write.
    """
    chosen = _text(report.get("chosen"))
    contenders = report.get("contenders", {})
    # Those that are served as it is.
    singles = [s for s in report.get("singles", ()) if not s.get("way")]
    labels = [single_label(str(_text(s["backend"])), s["alone"]) for s in singles]
    alone_ms = report.get("search", {}).get("alone_ms", {})
    alone = _positive(alone_ms.get("chosen")), _positive(alone_ms.get("least"))
    limit = report.get("error_limit") or {}
    return Made(
        _text(report.get("model")),
        chosen,
        _positive(contenders.get(COLLAGE, {}).get("median_ms")),
        {str(n): _shown(contenders[n]) for n in labels if n in contenders and n != chosen},
        tuple(str(_text(s["backend"])) for s in singles) if "singles" in report else None,
        None if alone[0] is None or alone[1] is None else (alone[0], alone[1]),
        constraints_from(report.get("constraints", {})),
        _positive(origin.get("made_at")),
        _positive(limit.get("most")) if limit.get("made_up_inputs") and not limit.get("metric") else None,
        bool(limit),
    )


def check_json(facts: Facts, found: Sequence[Verdict]) -> dict[str, Any]:
    """The verdicts, and the figures that they were made from. ratio: a library's time over the bundle's."""
    prediction = facts.prediction
    return {
        "bundle": facts.file,
        "status": int(status_of(found)),
        "verdicts": [{"about": v.about, "status": int(v.status), "text": v.text} for v in found],
        "median_ms": facts.median_ms,
        "max_rel_error": facts.error,
        "singles": _singles(facts.singles),
        "not_compared": dict(facts.not_compared),
        "then": {
            "made_at": facts.made.made_at,
            "chosen": facts.made.chosen,
            "median_ms": facts.made.median_ms,
            "singles": _singles(facts.made.singles),
        },
        "versions": [asdict(change) for change in facts.versions],
        "processor": dict(zip(("then", "now"), facts.processor, strict=True)) if facts.processor else None,
        "prediction": asdict(prediction) if prediction else None,
    }


def check_text(report: Mapping[str, Any]) -> str:
    """One sentence a line."""
    return "\n".join(v["text"] for v in report["verdicts"])


def _singles(singles: Mapping[str, Shown]) -> dict[str, dict[str, Any]]:
    return {label: {"median_ms": s.median_ms, **_ratio(s.ratio)} for label, s in singles.items()}


def _ratio(ratio: Ratio | None) -> dict[str, Any]:
    if ratio is None:
        return {"ratio": None, "half_interval": None, "sittings": 0, "ratio_of_rounds": None}
    half = ratio.half_interval if math.isfinite(ratio.half_interval) else None
    return {
        "ratio": ratio.value,
        "half_interval": half,
        "sittings": ratio.sittings,
        "ratio_of_rounds": None if ratio.rounds is None else list(ratio.rounds),
    }


def _shown(contender: Mapping[str, Any]) -> Shown:
    value, half = _positive(contender["ratio"]), contender["half_interval"]
    if half is not None and half != 0:  # of what is compared with itself
        half = _time(half)
    sittings = contender["sittings"]
    if type(sittings) is not int:
        raise TypeError(f"{sittings!r} sittings")
    rounds = None
    if (told := contender.get("ratio_of_rounds")) is not None:  # older reports do not say
        least, most = told
        rounds = _time(least), _time(most)
    ratio = None if value is None else Ratio(value, math.inf if half is None else half, sittings, rounds)
    return Shown(ratio, _positive(contender["median_ms"]))


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _positive(value: object) -> float | None:
    """A time or a ratio, or that there is none."""
    return None if value is None else _time(value)


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)
