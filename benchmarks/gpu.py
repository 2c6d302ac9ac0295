"""`python benchmarks/gpu.py --out FOLDER`: everything to be asked of a machine with a GPU, in one run.

First what the machine is, then what the kit says of the backends that `--kits` names, then networks: placed,
and compared with PyTorch in one process. Answers are kept step by step; the same command goes on from there.
`--devices cpu,sim --backends sim` rehearses all of it but PyTorch on the simulated accelerator.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
from collage_benchmarks.gpu.steps import Step, run_steps
from collage_benchmarks.networks import NETWORKS

_PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_PYTHON = (sys.executable,)
_COLLAGE = "import sys, collage_cli; sys.exit(collage_cli.main())"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the answers")
    parser.add_argument("--networks", default="resnext50,bert_base")
    parser.add_argument("--precisions", default="fp32", help=f"of {','.join(_PRECISIONS)}")
    parser.add_argument("--devices", default="cpu,cuda")
    parser.add_argument("--backends", default="cublas,cudnn,tvm-cuda")
    parser.add_argument("--kits", default="", help="backends whose kit is run first")
    parser.add_argument("--kit-s", type=float, default=120, help="seconds for each kit")
    parser.add_argument("--ways", default="eager,graph,compile", help="of PyTorch; none: no comparison")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--place-s", type=float, default=90, help="seconds for each placement")
    parser.add_argument("--contest-s", type=float, default=150, help="seconds for each comparison")
    parser.add_argument("--budget-s", type=float, default=540, help="seconds for all of it")
    args = parser.parse_args()
    return min(run_steps([*_steps(args)], args.out, args.budget_s), 1)


def _steps(args: argparse.Namespace) -> Iterator[Step]:
    yield Step("machine", (*_PYTHON, "-m", "collage_benchmarks.gpu.machine"), 60)
    # -v: of what is cut off it is known what had failed. No plugin of that name may run in several processes.
    pytest = (*_PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:benchmark", "-n", "auto")
    for name in filter(None, args.kits.split(",")):
        kit = ("--pyargs", "collage_conformance", f"--collage-backend={name}", "--collage-cases=1")
        yield Step(f"kit-{name}", (*pytest, *kit), args.kit_s)
    for name in filter(None, args.networks.split(",")):
        for precision in args.precisions.split(","):
            yield from _network(name, precision, args)


def _network(name: str, precision: str, args: argparse.Namespace) -> Iterator[Step]:
    models = args.out / "models"
    models.mkdir(parents=True, exist_ok=True)
    model, bundle = models / f"{name}.onnx", models / f"{name}-{precision}.collage"
    if not model.exists():
        onnx.save(NETWORKS[name].build(), model)
    told = ("--devices", args.devices, "--backends", args.backends, "--effort", args.effort)
    rounded = () if precision == "fp32" else ("--precision", precision)
    kept = ("--costs", str(args.out / "costs.db"), "-o", str(bundle), "--json")
    place = (*_PYTHON, "-c", _COLLAGE, "optimize", str(model), *told, *rounded, *kept)
    budget = ("--budget", f"{args.place_s:.0f}s")
    yield Step(f"place-{name}-{precision}", (*place, *budget), args.place_s + 30)
    if args.ways:
        ways = ("--ways", args.ways, "--dtype", _PRECISIONS[precision])
        contest = (*_PYTHON, "-m", "collage_benchmarks.gpu.contest", name, str(bundle), *ways)
        yield Step(f"contest-{name}-{precision}", contest, args.contest_s)


if __name__ == "__main__":
    sys.exit(main())
