"""`torch.compile(backend="collage")` beside inductor and eager PyTorch, in processes that take turns.

    python benchmarks/torch_compile.py resnet18 vit decoder --effort normal --json torch.json

Each contender compiles and warms up in a process of its own. Then they run one after the other, in rounds;
who begins changes from round to round. Threads are the same for all. A round's ratio is the contender's
median over Collage's, above 1 where Collage is faster. Told are the median of all rounds, and what the middle
half of them lies within. Needs the extra `architectures` of collage-benchmarks, and collage-torch.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from collage_core.costs.check import Within, compare
from collage_core.report.tables import Table
from collage_core.target import processor

_MODELS = ("resnet18", "vit", "decoder")
_WAYS = ("collage", "inductor", "eager")
_ROUND_S = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(_MODELS)}")
    parser.add_argument("--effort", default="normal", help="of Collage (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run to a file")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "WAY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        model, way = args.child
        return _contend(model, way, args)
    if args.rounds < 2:
        parser.error("--rounds must be at least 2")
    if unknown := sorted(set(args.models) - set(_MODELS)):
        parser.error(f"unknown model {unknown[0]!r}; known: {', '.join(_MODELS)}")
    print(f"{processor().model}, {args.threads} threads, effort {args.effort}")
    told = []
    for model in args.models or _MODELS:
        told.append(_compared(model, args))
        print(f"\n{model}\n{_text(told[-1])}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"processor": processor().model, "models": told}, indent=1))
    return 0


def _compared(model: str, args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--effort", args.effort, "--threads", str(args.threads)]
    children = {}
    ready: dict[str, Any] = {}
    for way in _WAYS:  # one after the other: who compiles measures
        child = subprocess.Popen(
            [*command, "--child", model, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        children[way] = child
        ready[way] = _answer(child)
    rounds: list[dict[str, list[float]]] = []
    for number in range(args.rounds):
        at = number % len(_WAYS)
        rounds.append({})
        for way in (*_WAYS[at:], *_WAYS[:at]):
            rounds[-1][way] = _asked(children[way])
    for child in children.values():
        child.communicate("\n")
    return {"model": model, "ready": ready, "rounds_ms": rounds}


def _asked(child: subprocess.Popen[str]) -> list[float]:
    assert child.stdin is not None
    child.stdin.write("run\n")
    child.stdin.flush()
    return list(_answer(child))


def _answer(child: subprocess.Popen[str]) -> Any:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"{child.args!r}: ended with {child.wait()}")
    return json.loads(line)


def _text(told: dict[str, Any]) -> str:
    rows = []
    for way in _WAYS:
        medians = [median(r[way]) for r in told["rounds_ms"]]
        ratios = [median(r[way]) / median(r["collage"]) for r in told["rounds_ms"]]
        low, _, high = quantiles(ratios, n=4)
        ready = told["ready"][way]
        cells = f"{median(ratios):.3f} ({low:.3f} to {high:.3f})" if way != "collage" else "-"
        rows.append(
            (
                way,
                f"{median(medians):.2f}",
                cells,
                f"{ready['off']:.0e}",
                f"{ready['seconds']:.0f}",
                ready["who"],
            )
        )
    return str(
        Table(
            ("who", "ms", "over Collage's", "off by", "ready after, s", "runs it"), rows, right=[1, 2, 3, 4]
        )
    )


def _contend(model: str, way: str, args: argparse.Namespace) -> int:
    """Compile, say so, and run for a while whenever a line comes."""
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    module, inputs = _made(model)
    with torch.no_grad():
        expected = module(*inputs)
        start_s = time.monotonic()
        options = {"options": {"effort": args.effort}} if way == "collage" else {}
        run = module if way == "eager" else torch.compile(module, backend=way, **options)
        answers = run(*inputs)
        seconds = time.monotonic() - start_s
        off = max(_off(a, e) for a, e in zip(_tensors(answers), _tensors(expected), strict=True))
        ready = {"seconds": seconds, "off": off, "who": _who() if way == "collage" else way}
        print(json.dumps(ready), flush=True)
        for line in sys.stdin:
            if not line.strip():
                break
            run(*inputs)  # the caches are another's
            times_ms: list[float] = []
            end_s = time.monotonic() + _ROUND_S
            while time.monotonic() < end_s:
                begun_ns = time.perf_counter_ns()
                run(*inputs)
                times_ms.append((time.perf_counter_ns() - begun_ns) / 1e6)
            print(json.dumps(times_ms), flush=True)
    return 0


def _made(model: str) -> tuple[Any, tuple[Any, ...]]:
    import torch
    from collage_benchmarks.architectures.images import IMAGES
    from torch import nn

    if model == "decoder":
        layer = nn.TransformerDecoderLayer(512, 8, 2048, batch_first=True).eval()
        return layer, (torch.randn(1, 64, 512), torch.randn(1, 128, 512))
    architecture = IMAGES[model]
    return architecture.make().eval(), architecture.inputs(1)


def _who() -> str:
    from collage_torch import parts

    found = []
    for part in parts():
        if part.placement is None:
            found.append(f"PyTorch ({part.reason})")
        else:
            found.append("+".join(sorted({g.backend for g in part.placement.groups} - {"view"})))
    return ", ".join(found)


def _tensors(answers: Any) -> Sequence[Any]:
    return answers if isinstance(answers, tuple) else (answers,)


def _off(found: Any, expected: Any) -> float:
    error, _ = compare("answer", found.numpy(), expected.numpy(), Within(math.inf))
    return math.inf if error is None else error


if __name__ == "__main__":
    sys.exit(main())
