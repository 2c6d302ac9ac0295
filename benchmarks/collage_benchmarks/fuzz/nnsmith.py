"""`python -m collage_benchmarks.fuzz.nnsmith FOLDER`: models of NNSmith, each with its inputs in an `.npz`.

Needs the extra `fuzz`. What NNSmith 0.1.0 needs besides is done here: torch's older exporter, and a cache of
the types that each operator takes that no failed run has spoilt.
"""

from __future__ import annotations

import argparse
import functools
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

__all__ = ["main"]

_FEWEST_OPERATORS = 40
"""NNSmith tries each operator and leaves out what cannot be exported: if nothing can, it says nothing."""

_OPSETS = range(13, 21)
"""Those that the exporter knows, from the oldest that is generated on."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m collage_benchmarks.fuzz.nnsmith", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the models go")
    parser.add_argument("--models", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="which: model k is made with seed + k")
    parser.add_argument("--nodes", type=int, default=8, help="operators in a model, at most (default 8)")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    make = _maker(options.folder)
    made = 0
    for number in range(options.seed, options.seed + options.models):
        try:
            model, inputs = make(number, options.nodes)
        except Exception:  # its solver gives up at times, and the exporter does not know every mix of types
            reason = traceback.format_exc().strip().splitlines()[-1]
            print(f"no model {number}: {reason[:160]}", file=sys.stderr)
            continue
        name = options.folder / f"nnsmith-{number}"
        np.savez(name.with_suffix(".npz"), **inputs)
        onnx.save(model, str(name.with_suffix(".onnx")))
        made += 1
    print(f"{made} of {options.models} models in {options.folder}")
    return 0 if made else 1


def _maker(folder: Path) -> Callable[[int, int], tuple[onnx.ModelProto, dict[str, Any]]]:
    """A function of a seed and a number of nodes."""
    import nnsmith.materialize.onnx as materialize
    import nnsmith.narrow_spec as narrow
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model

    export = materialize.torch.onnx.export
    narrow.NNSMITH_CACHE_DIR = str(folder / ".operators")
    kind = Model.init("onnx", backend_target="cpu")
    kind.add_seed_setter()
    materialize.torch.onnx.export = functools.partial(export, dynamo=False)
    opset = narrow.auto_opset(kind, None)
    if len(opset) < _FEWEST_OPERATORS:
        raise RuntimeError(f"NNSmith can export only {len(opset)} operators: {[o.__name__ for o in opset]}")
    activate_ext(opset=opset, factory=None)

    def make(seed: int, nodes: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
        version = _OPSETS[seed % len(_OPSETS)]

        def exported(*arguments: Any, **options: Any) -> Any:
            return export(*arguments, **{**options, "dynamo": False, "opset_version": version})

        materialize.torch.onnx.export = exported
        np.random.seed(seed)
        built = model_gen(opset=opset, method="symbolic-cinit", seed=seed, max_nodes=1 + seed % nodes)
        model = kind.from_gir(built.make_concrete())
        model.refine_weights()
        proto = model.native_model
        inputs = {n: np.asarray(a) for n, a in model.make_oracle().input.items()}
        return proto, inputs

    return make


if __name__ == "__main__":
    sys.exit(main())
