"""A session that several threads of a server ask, in turn or at once.

    python benchmarks/callers.py squeezenet mnist --out docs/results/callers

Each network is optimised, then asked in four ways: by one thread; by four threads in turn, as a server's
pool does that has little to do; by four at once; by one thread that asks two sessions in turn, as of two
models. Asked are a `Session`, whose kernels run in threads of its own; the same executable with a context
for each thread, which runs the kernels itself; and ONNX Runtime's session, with as many threads. Each sitting
is a process of its own, for libraries keep threads as long as it lives; all take turns. Told is the median
over the sittings of a request's median time, with the quartiles of those, and of the requests answered in a
second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from collage_benchmarks.networks import NETWORKS, add_networks

from collage_core import Bundle, Session, Target, load, optimize, save
from collage_core.formats import Array
from collage_core.pipeline.effort import EFFORTS
from collage_core.report.tables import Table
from collage_core.runtime.session import load_arrays, save_arrays
from collage_core.target import processor

ASKED = ("session", "contexts of the callers", "onnxruntime")
WAYS = ("one", "in turn", "at once", "two models")
_CALLERS = 4
_WARM_UP = 10

Ask = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_networks(parser, nargs="*")
    parser.add_argument("--sittings", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a sitting (default: %(default)s)")
    parser.add_argument("--effort", default="quick", choices=[*EFFORTS], help="default: %(default)s")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where NETWORK.json is written")
    parser.add_argument("--sit", nargs=3, metavar=("FOLDER", "ASKED", "WAY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sit:
        print(json.dumps(_sitting(Path(args.sit[0]), args.sit[1], args.sit[2], args.seconds)))
        return 0
    for name in args.networks:
        told = _compared(name, args)
        print(f"\n{_text(told)}", flush=True)
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / f"{name}.json").write_text(json.dumps(told, indent=1))
    return 0


def _compared(name: str, args: argparse.Namespace) -> dict[str, Any]:
    model = NETWORKS[name].build()
    with tempfile.TemporaryDirectory() as told:
        folder = Path(told)
        found = optimize(model, costs=folder / "costs.sqlite", effort=EFFORTS[args.effort])
        save(Bundle(found.graph, found.placement), folder / "m.collage")
        onnx.save(model, str(folder / "m.onnx"))
        save_arrays(folder / "inputs.npz", NETWORKS[name].inputs())
        sittings: dict[str, dict[str, list[Any]]] = {asked: {way: [] for way in WAYS} for asked in ASKED}
        for _ in range(args.sittings):
            for way in WAYS:
                for asked in ASKED:
                    command = [sys.executable, __file__, "--sit", told, asked, way]
                    done = subprocess.run(
                        [*command, "--seconds", str(args.seconds)], check=True, capture_output=True, text=True
                    )
                    sittings[asked][way].append(json.loads(done.stdout))
    head = {"network": name, "processor": processor().model, "callers": _CALLERS, "chosen": found.chosen}
    return {**head, "threads": found.placement.target.threads, "sittings": sittings}


def _sitting(folder: Path, asked: str, way: str, seconds: float) -> dict[str, float]:
    inputs = load_arrays(folder / "inputs.npz")
    makes = [_MAKE[asked](folder, inputs) for _ in range(2 if way == "two models" else 1)]
    callers = _CALLERS if way in ("in turn", "at once") else 1
    # Each asks with what is its own; they stay, as those of a server do.
    asks: list[Ask] = [made() for made in makes for _ in range(callers)]
    pools = [ThreadPoolExecutor(1) for _ in range(callers)] * len(makes)
    for pool, ask in zip(pools, asks, strict=True):
        for _ in range(_WARM_UP):
            pool.submit(ask).result()
    took_s: list[float] = []
    begun_s = time.perf_counter()
    end_s = begun_s + seconds
    if way == "at once":
        together = threading.Barrier(callers)

        def keep_asking(ask: Ask) -> list[float]:
            together.wait()
            took: list[float] = []
            while time.perf_counter() < end_s:
                took.append(_timed(ask))
            return took

        for done in [pool.submit(keep_asking, ask) for pool, ask in zip(pools, asks, strict=True)]:
            took_s += done.result()
    else:
        number = 0
        while time.perf_counter() < end_s:
            turn = number % len(asks)
            took_s.append(pools[turn].submit(_timed, asks[turn]).result())
            number += 1
    elapsed_s = time.perf_counter() - begun_s
    p50_s, p99_s = np.quantile(took_s, (0.5, 0.99)).tolist()
    return {"p50_ms": 1e3 * p50_s, "p99_ms": 1e3 * p99_s, "a_second": len(took_s) / elapsed_s}


def _timed(ask: Ask) -> float:
    begun_s = time.perf_counter()
    ask()
    return time.perf_counter() - begun_s


def _session(folder: Path, inputs: dict[str, Array]) -> Callable[[], Ask]:
    session = Session(folder / "m.collage")
    return lambda: lambda: session.run(None, inputs)


def _contexts(folder: Path, inputs: dict[str, Array]) -> Callable[[], Ask]:
    executable = load(folder / "m.collage")

    def made() -> Ask:
        context = executable.context()
        return lambda: context(inputs)

    return made


def _onnxruntime(folder: Path, inputs: dict[str, Array]) -> Callable[[], Ask]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = Target.default().threads
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"), options, ["CPUExecutionProvider"])
    return lambda: lambda: session.run(None, inputs)


_MAKE = dict(zip(ASKED, (_session, _contexts, _onnxruntime), strict=True))


def _text(told: dict[str, Any]) -> str:
    rows = []
    for way in WAYS:
        for asked in ASKED:
            sittings = told["sittings"][asked][way]
            p50s, p99s, rates = ([s[k] for s in sittings] for k in ("p50_ms", "p99_ms", "a_second"))
            low, _, high = statistics.quantiles(p50s, n=4) if len(p50s) > 1 else (p50s[0],) * 3
            median, rate = statistics.median(p50s), statistics.median(rates)
            spread = f"{median:.3f} ({low:.3f} to {high:.3f})"
            rows.append((way, asked, spread, f"{statistics.median(p99s):.3f}", f"{rate:.4g}"))
    title = f"{told['network']}: {told['chosen']}, {told['threads']} threads, {told['callers']} callers"
    header = ("asked by threads", "what", "p50 ms (quartiles)", "p99 ms", "requests a second")
    return str(Table(header, rows, right=range(2, 5), title=title))


if __name__ == "__main__":
    sys.exit(main())
