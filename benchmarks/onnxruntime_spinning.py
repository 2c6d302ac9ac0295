"""How ONNX Runtime's threads should wait: all ways in turns, each in a process stopped meanwhile.

python benchmarks/onnxruntime_spinning.py [network] [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx
from collage_benchmarks.networks import NETWORKS
from collage_onnxruntime.peer import OnnxRuntimeSession
from collage_onnxruntime.session import Waiting

from collage_core.device import Target


def serve(model: Path, network: str, threads: int, waiting: Waiting) -> None:
    """Run once, and print the seconds it took, for every line on standard input."""
    session = OnnxRuntimeSession(model, Target(threads=threads), waiting)
    session.set_inputs(NETWORKS[network].inputs())
    for _ in range(5):
        session.run()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        session.run()
        print(time.perf_counter() - start, flush=True)


def timed_ms(process: subprocess.Popen[str]) -> float:
    """One turn: a run to wake up and a run that counts."""
    assert process.stdin
    assert process.stdout
    os.kill(process.pid, signal.SIGCONT)
    for _ in range(2):
        process.stdin.write("\n")
        process.stdin.flush()
        seconds = float(process.stdout.readline())
    os.kill(process.pid, signal.SIGSTOP)
    return seconds * 1e3


def compare(model: Path, network: str, threads: int, rounds: int) -> None:
    children: dict[str, subprocess.Popen[str]] = {}
    for waiting in Waiting:
        command = [
            sys.executable,
            __file__,
            network,
            "--threads",
            str(threads),
            "--serve",
            str(model),
            waiting.name,
        ]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children[waiting.value] = child
        assert child.stdout
        child.stdout.readline()
        os.kill(child.pid, signal.SIGSTOP)
    times: dict[str, list[float]] = {name: [] for name in children}
    for _ in range(rounds):
        for name, child in children.items():
            times[name].append(timed_ms(child))
    for name, child in children.items():
        os.kill(child.pid, signal.SIGCONT)
        child.communicate()
        runs = times[name]
        print(f"{name}: median {statistics.median(runs):.2f} ms, best {min(runs):.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", nargs="?", choices=sorted(NETWORKS), default="resnext50")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        model, waiting = options.serve
        serve(Path(model), options.network, options.threads, Waiting[waiting])
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        onnx.save(NETWORKS[options.network].build(), model)
        compare(model, options.network, options.threads, options.rounds)


if __name__ == "__main__":
    main()
