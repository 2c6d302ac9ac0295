"""`python -m collage_benchmarks.networks`: list the networks, or write one to a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from collage_benchmarks.networks.catalogue import NETWORKS

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m collage_benchmarks.networks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(NETWORKS), help="the network to write")
    parser.add_argument("-o", "--output", type=Path, help="the ONNX file (default: NAME.onnx)")
    parser.add_argument("--inputs", type=Path, metavar="NPZ", help="also write random inputs that fit it")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--list", action="store_true", help="say which networks there are")
    options = parser.parse_args(arguments)
    if options.list:
        for network in NETWORKS.values():
            print(f"{network.name:<14} {network.summary}")
        return 0
    if options.name is None:
        parser.error("name a network, or ask for --list")
    network = NETWORKS[options.name]
    output = options.output or Path(f"{network.name}.onnx")
    onnx.save(network.build(), output)
    if options.inputs:
        arrays: dict[str, Any] = dict(network.inputs(options.seed))
        np.savez(options.inputs, **arrays)
    print(output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
