"""What goes wrong on the device costs the kernel that did it, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collage_core import Target, optimize
from collage_core.pipeline.effort import THOROUGH
from collage_core.plugins import PLUGINS_VARIABLE, default_registry

if TYPE_CHECKING:
    from conftest import Parse


@pytest.mark.ci
def test_each_fault_costs_its_own_kernel(
    parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, "simulator_faults")
    monkeypatch.setenv("COLLAGE_CANDIDATE_LIMIT_S", "8")
    default_registry.cache_clear()
    ops = ["Neg", "Abs", "Sqrt", "Exp", "Tanh", "Sigmoid", "Floor", "Relu", "Ceil"]
    chain = " ".join(f"[n{i}] v{i + 1} = {op}(v{i})" for i, op in enumerate(ops))
    model = parse(f"(float[8,8] v0) => (float[8,8] v{len(ops)}) {{ {chain} }}")
    target = Target("cpu", 1, (), ("sim",))
    found = optimize(
        model,
        backends=["faulty", "reference"],
        target=target,
        costs=tmp_path / "c.sqlite",
        effort=THOROUGH,
        rounds=0,
    )
    records = {
        c.subgraph.nodes[0].op_type: found.costs.kernels[c.kernel_key]
        for c in found.candidates.candidates
        if c.backend == "faulty"
    }
    reasons = {op: f"{r.status}: {r.reason}" for op, r in records.items() if not r.ok}
    assert set(reasons) == set(ops[:7])
    assert "changed after" in reasons["Neg"]
    assert "outside its buffers, behind output 'v2'" in reasons["Abs"]
    assert "changed its input" in reasons["Sqrt"]
    assert reasons["Exp"].startswith("wrong")
    assert reasons["Tanh"].startswith("timeout")
    assert "process died (exit code 3)" in reasons["Sigmoid"]
    assert "no such floor" in reasons["Floor"]
