"""One architecture, as a person would bring it: exported, placed by the command for each size, and asked."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage_benchmarks.architectures.architecture import GIVEN
from collage_benchmarks.evidence.collecting import started_now
from collage_benchmarks.evidence.repository import Commit
from collage_benchmarks.evidence.running import Runner, Tools
from collage_core.pipeline.effort import QUICK

__all__ = ["tried"]

_MODULE = "collage_benchmarks.architectures"


def tried(name: str, commit: Commit, tools: Tools | None = None) -> dict[str, Any]:
    """A record. A step that fails is recorded; where one size cannot be placed, the next is tried all the
    same. CollageError where a step was interrupted.
    """
    tools = tools or Tools()
    started = started_now()
    with tempfile.TemporaryDirectory(prefix="collage-architecture-") as folder:
        runner = Runner(Path(folder).resolve(), tools)
        runner.run("export", [*tools.python, "-m", f"{_MODULE}.exporting", name])
        sizes: dict[str, Any] = {}
        nodes = 0
        if not runner.failed:
            model = onnx.load(runner.folder / f"{name}.onnx", load_external_data=False)
            nodes = len(model.graph.node)
            opened = _open_inputs(model)
            samples = runner.folder.glob(f"{name}-*.npz")
            for sample in sorted(samples, key=lambda path: int(path.stem.rpartition("-")[2])):
                sizes[sample.stem.removeprefix(f"{name}-")] = _placed(runner, tools, name, sample, opened)
        facts = runner.facts(
            name, commit, started, runner.json("backends", [*tools.collage, "backends", "--json"])
        )
    del facts["notes"]  # mostly of the exporter's own
    return {**facts, "nodes": nodes, "sizes": sizes}


def _open_inputs(model: onnx.ModelProto) -> list[str]:
    return [
        v.name
        for v in model.graph.input
        if any(not d.HasField("dim_value") for d in v.type.tensor_type.shape.dim)
    ]


def _placed(runner: Runner, tools: Tools, name: str, sample: Path, opened: list[str]) -> dict[str, Any]:
    """At the sizes of one sample; `failed` is what the step said that went wrong."""
    bundle = f"{sample.stem}.collage"
    with np.load(sample) as arrays:
        shapes = [f"{v}={','.join(map(str, arrays[GIVEN + v].shape))}" for v in opened]
    options = [argument for shape in shapes for argument in ("--shape", shape)]
    command = [*tools.collage, "optimize", f"{name}.onnx", *options, "--effort", QUICK.name]
    step = runner.run(f"optimize {sample.stem}", [*command, "-o", bundle, "--json"])
    if step.exit_code:
        return {"failed": step.last_line}
    report = json.loads(step.out)
    told = {
        "shares": report["shares"],
        "nodes": sum(len(g["nodes"]) for g in report["groups"]),
        "reference": [op for g in report["groups"] if g["backend"] == "reference" for op in g["ops"]],
    }
    command = [*tools.python, "-m", f"{_MODULE}.answering", bundle, sample.name]
    step = runner.run(f"answer {sample.stem}", command)
    if step.exit_code:
        return {**told, "failed": step.last_line}
    return {**told, "off": json.loads(step.out), "failed": None}
