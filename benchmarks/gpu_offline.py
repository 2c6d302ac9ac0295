"""`python benchmarks/gpu_offline.py --out FOLDER`: what NVIDIA's libraries say of networks without a GPU.

cuDNN validates, ranks and builds a plan for every group that its plugin offers, for a GPU that a file
describes. NVRTC compiles every kernel that TVM's plugin writes, for two compute capabilities. TensorRT for
RTX builds each engine that its plugin offers. cuBLASLt does not answer without a driver: its products are
planned, and no more. Writes NETWORK.json and a README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from collage_benchmarks.gpu.asking import ASKED, PRECISIONS
from collage_benchmarks.gpu.offline_table import table

_ROOT = Path(__file__).parents[1]
_DRIVER = _ROOT / "plugins" / "collage_cudnn" / "tests" / "support" / "no_driver.c"
_DESCRIPTION = _ROOT / "docs" / "results" / "h200" / "cudnn-description.json"
_NETWORKS = "resnext50,bert_base,nasnet_a,dcgan,mobilenet_v2"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the answers")
    parser.add_argument("--networks", default=_NETWORKS)
    parser.add_argument("--libraries", default=",".join(ASKED))
    parser.add_argument("--precisions", default="fp32,bf16", help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument(
        "--description", type=Path, default=_DESCRIPTION, help="of the GPU, as cuDNN writes it"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": folder,
            "COLLAGE_CUDNN_DESCRIPTION": str(args.description.resolve()),
            "COLLAGE_HOME": str(Path(folder, "home")),
        }
        _compile_driver(Path(folder))
        for network in args.networks.split(","):
            libraries = args.libraries.split(",")
            answers = [_answer(network, library, args.precisions, environment) for library in libraries]
            (args.out / f"{network}.json").write_text(json.dumps(answers, indent=1) + "\n")
    found = [a for path in sorted(args.out.glob("*.json")) for a in json.loads(path.read_text())]
    command = " ".join(["python", "benchmarks/gpu_offline.py", *sys.argv[1:]])
    (args.out / "README.md").write_text(table(found, command))
    print(table(found, command))
    return 0


def _answer(network: str, library: str, precisions: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "collage_benchmarks.gpu.asking", network, library, precisions]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    print(f"{network}, {library}: {answer['seconds']:.0f} s", file=sys.stderr, flush=True)
    return answer


def _compile_driver(folder: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("gpu_offline: no C compiler is here, for the driver's stand-in")
    for name in ("libcuda.so.1", "libcudart.so.13"):
        flags = ("-shared", "-fPIC", "-w", f"-Wl,-soname,{name}")
        subprocess.run([compiler, *flags, "-o", str(folder / name), str(_DRIVER)], check=True)


if __name__ == "__main__":
    sys.exit(main())
