"""A command that says what it is told to, in place of Collage's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collage_benchmarks.evidence.repository import Commit

COMMIT = Commit("a" * 40, "2026-11-20T10:00:00+00:00", "b" * 40, False)

BACKENDS = [
    {
        "name": name,
        "kind": kind,
        "version": "0.1.0",
        "library_version": version,
        "devices": ["cpu"],
        "available": True,
        "reason": None,
        **({"settings": {"threads": "as the target"}} if kind == "peer" else {}),
    }
    for name, kind, version in [
        ("reference", "reference", "1.0"),
        ("dnnl", "operator", "2023.2.0"),
        ("tvm", "operator", "0.27.0"),
        ("onnxruntime", "graph", "1.32.0"),
        ("onnxruntime", "peer", "1.32.0"),
        ("openvino", "peer", "2026.4.1"),
    ]
]


def contender(
    ms: float, ratio: float, half: float | None = 0.01, came: float | None = None
) -> dict[str, Any]:
    return {
        "median_ms": ms,
        "ratio": ratio,
        "ratio_as_it_came": ratio if came is None else came,
        "half_interval": half,
        "is_slower": half is not None and ratio - half > 1.0,
        "sittings": 9,
        "retaken": 1,
    }


OPTIMIZED = {
    "threads": 2,
    "contenders": {
        "collage": contender(10.0, 1.0, None),
        "mix": contender(9.0, 0.9),
        "dnnl+reference": contender(12.5, 1.25),
        "tvm": contender(11.0, 1.1, came=1.2),
        "onnxruntime": {**contender(0.0, 0.0), "median_ms": None, "ratio": None, "half_interval": None},
    },
    "beaten_by": [],
    "chosen": "graph",
    "shares": {"tvm": {"share": 0.6}, "dnnl": {"share": 0.38}, "reference": {"share": 0.02}},
    "predicted_ms": 9.75,
    "search": {"candidates": 12, "measured": 3, "total_s": 1.25, "counts": {"measured": 3, "offered": 12}},
    "effort": "normal",
    "stage": "confirmed by a comparison that did not choose it",
    "is_cut_short": False,
    "groups": ["not kept"],
}
BENCHED = {
    "contenders": {
        "collage": contender(10.1, 1.0, None),
        "peer:onnxruntime": contender(12.0, 1.2),
        "peer:openvino": contender(9.5, 0.95, None),
    },
    "max_rel_error": {"peer:onnxruntime": 1e-6},
    "latency_ms": {"not": "kept"},
}

COMMAND = """
import json, os, sys, time
from pathlib import Path
from collage_core.costs.database import CostDatabase
from collage_core.costs.record import CostKey, CostRecord, Policy

told = json.loads(Path(__file__).with_name("told.json").read_text())
what = sys.argv[1]
with open(Path(__file__).with_name("calls.jsonl"), "a") as calls:
    variables = {k: v for k, v in os.environ.items() if k.startswith(("COLLAGE", "OMP"))}
    print(json.dumps([sys.argv[1:], variables]), file=calls)
if what == "backends":
    print(json.dumps(told["backends"]))
    sys.exit()
print("confirming (15)", file=sys.stderr)
if what == "optimize":
    Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(Path(__file__).with_name("bundle").read_bytes())
if what == told.get("slow"):
    Path(__file__).with_name("begun").touch()
    time.sleep(600)
known = Path(__file__).with_name("known.sqlite")
if known.exists():  # what it has measured
    home = Path(os.environ["COLLAGE_HOME"])
    home.mkdir(exist_ok=True)
    (home / "costs.sqlite").write_bytes(known.read_bytes())
title = {"optimize": "confirming", "bench": "benchmark"}[what]
with CostDatabase() as costs:
    for name in ("collage", "tvm"):
        key = CostKey("end_to_end", what, title, name, {}, Policy())
        costs.put(key, CostRecord("ok", 1.0, 0.1, 3, details={"run": what, "sittings": told["sittings"]}))
    key = CostKey("end_to_end", what, title, "broken", {}, Policy())
    costs.put(key, CostRecord("failed", reason="no reason"))
if what in told["print"]:
    print(json.dumps(told["print"][what]))
if what == told.get("failing"):
    print(f"collage: {os.getcwd()}/model went wrong", file=sys.stderr)
    sys.exit(1)
"""
_TURN = {"ms": 1.0, "before": [100.0, 1.0], "after": [99.0, 1.0], "waited_s": 0.0, "moved": False}
SITTINGS = [
    {"as_it_comes": True, "turns": [{**_TURN, "moved": True, "taken_again": False}]},
    {
        "as_it_comes": False,
        "turns": [
            {**_TURN, "moved": True, "taken_again": True, "waited_s": 1.5},
            {**_TURN, "taken_again": False},
            {**_TURN, "taken_again": False},
        ],
    },
]


def calls(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    return [tuple(json.loads(line)) for line in (folder / "calls.jsonl").read_text().splitlines()]
