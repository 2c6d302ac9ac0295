"""How long a model takes to load, and what it takes in memory: as a bundle, exported, and in whole runtimes.

    python -m collage_benchmarks.networks mobilenet_v2 -o m.onnx
    collage optimize m.onnx -o m.collage
    python benchmarks/loading.py m.onnx m.collage --runs 5

Each load is a process of its own, with as many threads as the bundle says; the ways take turns. Before the
first round each has run once: files lie in the system's cache, and built kernels in Collage's. Told are the
median and the range: seconds of the imports, of loading (until it can run), of the first run, and megabytes
that are resident then, and at most. Where the placement cannot be exported, it says why.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage_openvino.settings import properties

from collage_core import export, read
from collage_core.errors import CollageError
from collage_core.report.tables import Table

_MEASURE = """
import json, sys, time
told = json.loads(sys.argv[1])
begun = time.perf_counter()
{imports}
imported = time.perf_counter()
{load}
loaded = time.perf_counter()
{run}
ran = time.perf_counter()
facts = dict(line.split(":", 1) for line in open("/proc/self/status"))
resident, peak = (int(facts[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
print(json.dumps([imported - begun, loaded - imported, ran - loaded, resident, peak]))
"""

_WAYS = {
    "exported, by collage-run": (
        "import collage_run",
        "context = collage_run.load(told['exported'], allow_code=True).context()",
        "context.execute()",
    ),
    "bundle, by collage-core": (
        "from collage_core import load",
        "context = load(told['bundle']).context()",
        "context.execute()",
    ),
    "ONNX Runtime": (
        "import numpy as np, onnxruntime",
        """
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = told['threads']
session = onnxruntime.InferenceSession(told['model'], options, providers=["CPUExecutionProvider"])
""",
        "session.run(None, {name: np.zeros(*what) for name, what in told['inputs'].items()})",
    ),
    "OpenVINO": (
        "import numpy as np\nfrom pathlib import Path\nfrom collage_openvino.library import load",
        """
model = load().compiled(Path(told['model']), told['properties'])
arrays = [[np.zeros(p.shape, p.dtype) for p in ports] for ports in (model.inputs(), model.outputs())]
run = model.bind(*arrays)
""",
        "run()",
    ),
}
_COLUMNS = ("import, s", "load, s", "first run, s", "resident, MB", "at most, MB")


def _measured(way: str, told: Mapping[str, Any]) -> list[float]:
    imports, load, run = _WAYS[way]
    code = _MEASURE.format(imports=imports, load=load, run=run)
    command = [sys.executable, "-c", code, json.dumps(told)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: list[float] = json.loads(done.stdout)
    return figures


def _told(values: list[float]) -> str:
    digits = 0 if statistics.median(values) >= 10 else 2
    middle, low, high = (f"{v:.{digits}f}" for v in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    bundle = read(options.bundle)
    graph, target = bundle.graph, bundle.placement.target
    told: dict[str, Any] = {
        "model": str(options.model),
        "bundle": str(options.bundle),
        "threads": target.threads,
        "properties": properties(target.threads),
        "inputs": {v: [graph.shape_of(v), graph.type_of(v).dtype] for v in graph.inputs},
    }
    ways, rows = list(_WAYS), []
    with tempfile.TemporaryDirectory() as folder:
        told["exported"] = str(Path(folder, "model.deploy"))
        try:
            export(read(options.bundle, check_weights=True), told["exported"])
        except CollageError as error:
            print(error)
            ways.remove("exported, by collage-run")
        for way in ways:
            _measured(way, told)
        found: dict[str, list[list[float]]] = {way: [] for way in ways}
        for _ in range(options.runs):
            for way in ways:
                found[way].append(_measured(way, told))
        sizes_mb = {name: Path(told[name]).stat().st_size / 1e6 for name in ("bundle", "model")}
        if "exported, by collage-run" in ways:
            sizes_mb["exported"] = Path(told["exported"]).stat().st_size / 1e6
    for way, runs in found.items():
        rows.append((way, *(_told([run[i] for run in runs]) for i in range(len(_COLUMNS)))))
    print(Table(("", *_COLUMNS), rows, right=range(1, len(_COLUMNS) + 1)))
    print("files, MB:", ", ".join(f"{name} {size:.0f}" for name, size in sizes_mb.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
