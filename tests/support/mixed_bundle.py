"""A bundle of many backends, with a tuned schedule, a view and conversions."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tvm.s_tir.meta_schedule as ms
from collage_tvm.host import tvm_target
from collage_tvm.tuning.kernel import module_of, workload_hash
from collage_tvm.tuning.records import TUNED, Schedule
from collage_tvm.tuning.workload import workload_of
from onnx import helper
from tvm.s_tir.meta_schedule.database import TuningRecord

from collage_core import Bundle, Group, Placement, Subgraph, Target, Variant, save
from collage_core.backend import Backend
from collage_core.errors import Refusal
from collage_core.formats import channels_last, plain
from collage_core.ir import from_model
from collage_core.placement import VIEW, Conversion
from collage_core.plugins import default_registry
from collage_core.testing import make_model

__all__ = ["save_mixed"]

_TARGET = Target("cpu", 1)
_IMAGE = (1, 8, 12, 12)
_NODES = {
    "first": ("dnnl", helper.make_node("Conv", ["x", "w0", "b0"], ["v0"], name="first", pads=[1] * 4)),
    "second": ("ncnn", helper.make_node("Conv", ["v0", "w1"], ["v1"], name="second", pads=[1] * 4)),
    "relu": ("tvm", helper.make_node("Relu", ["v1"], ["v2"], name="relu")),
    "flat": (VIEW, helper.make_node("Reshape", ["v2", "shape"], ["v3"], name="flat")),
    "tuned": ("tvm", helper.make_node("MatMul", ["v3", "w2"], ["v4"], name="tuned")),
    "product": ("mkl", helper.make_node("MatMul", ["v4", "w3"], ["v5"], name="product")),
    "softmax": ("onnxruntime", helper.make_node("Softmax", ["v5"], ["v6"], name="softmax")),
    "sigmoid": ("openvino", helper.make_node("Sigmoid", ["v6"], ["v7"], name="sigmoid")),
    "sum": ("reference", helper.make_node("Add", ["v7", "b1"], ["o"], name="sum")),
}


def save_mixed(path: Path) -> None:
    """Every node is a group of its own; the Relu is channels-last between two conversions."""
    rng = np.random.default_rng(0)
    sizes = {"w0": (8, 8, 3, 3), "b0": (8,), "w1": (8, 8, 3, 3), "w2": (144, 32), "w3": (32, 24), "b1": (24,)}
    constants = {name: rng.standard_normal(size, np.float32) for name, size in sizes.items()}
    nodes = [node for _, node in _NODES.values()]
    inputs = {"x": rng.standard_normal(_IMAGE, np.float32)}
    model = make_model(nodes, inputs, {**constants, "shape": np.array([8, 144])}, ["o"])
    graph = from_model(model)
    row, last = plain("float32", _IMAGE), channels_last("float32", _IMAGE)
    groups = []
    for node in graph.nodes:
        backend, _ = _NODES[node.name]
        subgraph = Subgraph(graph, [node.id])
        if node.name == "relu":
            variant = Variant((last,), (last,))
        elif backend == VIEW:
            variant = Variant((row,), (plain("float32", (8, 144)),))
        else:
            variant = _plain_offer(default_registry().backend(backend), subgraph)
        if node.name == "tuned":
            variant = Variant(variant.inputs, variant.outputs, ((TUNED, _schedule(subgraph, variant)),))
        groups.append(Group(backend, (node.id,), variant, 0.5, 0.01))
    conversions = Conversion("v1", row, last, "dnnl"), Conversion("v2", last, row, "tvm")
    placement = Placement(tuple(groups), conversions, _TARGET)
    save(Bundle(graph, placement, {"groups": []}, singles={"mixed": placement}), path)


def _plain_offer(backend: Backend, subgraph: Subgraph) -> Variant:
    offered = backend.variants(subgraph, _TARGET)
    assert not isinstance(offered, Refusal), str(offered)
    return next(v for v in offered if all(f.is_plain for f in (*v.inputs, *v.outputs)))


def _schedule(subgraph: Subgraph, variant: Variant) -> str:
    """One that the tuner would try, untimed."""
    module = module_of(workload_of(subgraph, variant).function)
    context = ms.TuneContext(
        mod=module,
        target=tvm_target(1),
        space_generator=ms.space_generator.PostOrderApply(
            sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
        ),
        rand_state=1,
        num_threads=1,
    )
    schedule = next(s for s in context.generate_design_space() if _finished(s, context))
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "records.json")
        database = ms.database.JSONDatabase(str(Path(folder, "workloads.json")), str(records))
        workload = database.commit_workload(module)
        database.commit_tuning_record(TuningRecord(schedule.trace, workload, [1.0], tvm_target(1), []))
        trace = json.loads(records.read_text())[1][0]
    return Schedule(workload_hash(module), trace).to_text()


def _finished(schedule: Any, context: Any) -> bool:
    return all(step.apply(schedule) for step in context.space_generator.postprocs)
