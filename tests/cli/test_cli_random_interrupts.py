"""Interrupted at any moment, `collage optimize` leaves a bundle that runs, or says why there is none."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from collage_command import INTERRUPTED_MODEL, Collage
from onnx.reference import ReferenceEvaluator

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOMENTS = 20
_WHY_NONE = "^collage: (interrupted|ended)|nothing had been run to the end yet; what was measured is kept"


def _arguments(folder: Path) -> tuple[str | Path, ...]:
    options = ("--threads", "1", "--backends", "dnnl,tvm,onnxruntime", "--budget", "15s")
    return ("optimize", folder / "m.onnx", *options, "-o", folder / "m.collage")


def _interrupt_at(
    moment_s: float, number: signal.Signals, collage: Collage
) -> tuple[int, str, Sequence[str]]:
    """Its exit status, what it printed, and what it said meanwhile."""
    process = collage.start(*_arguments(collage.folder))
    try:
        process.communicate(timeout=moment_s)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, number)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err.splitlines()


@pytest.mark.slow
def test_interrupted_at_random_moments(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(INTERRUPTED_MODEL)
    image = np.random.default_rng(0).standard_normal((1, 8, 16, 16), np.float32)
    (expected,) = map(np.asarray, ReferenceEvaluator(model).run(None, {"x": image}))
    chance = random.Random(19)
    whole = Collage(tmp_path / "whole")
    whole.folder.mkdir()
    onnx.save(model, whole.folder / "m.onnx")
    start_s = time.monotonic()
    whole.run(*_arguments(whole.folder))
    takes_s = time.monotonic() - start_s

    seen = Counter[str]()
    for number in range(_MOMENTS):
        collage = Collage(tmp_path / str(number))
        collage.folder.mkdir()
        onnx.save(model, collage.folder / "m.onnx")
        np.save(collage.folder / "x.npy", image)
        which = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[number % 3]
        code, printed, said = _interrupt_at(chance.uniform(0.0, takes_s), which, collage)
        bundle = collage.folder / "m.collage"
        assert not [line for line in said if "Traceback" in line], said
        if bundle.exists():
            seen["saved"] += 1
            # An interpreter that ends hears nothing any more.
            assert code in (0, 129, 130, 143) or (code == -which and "saved as" in printed), said
            answer = collage.folder / "y.npy"
            collage.run("run", bundle, "--input", f"x={collage.folder}/x.npy", "--output", f"y={answer}")
            np.testing.assert_allclose(np.load(answer), expected, rtol=1e-4, atol=1e-5)
        else:
            seen["none yet"] += 1
            assert code in (129, 130, 143, -which), said
            # Before Python has come as far as our code there is nobody to say anything.
            assert not said or re.search(_WHY_NONE, said[-1]), said
        assert not list(collage.temporary.iterdir())
        before = collage.stored()
        collage.run(*_arguments(collage.folder))
        after = collage.stored()
        assert before.items() <= after.items(), "measured twice"
        assert bundle.exists()
    assert seen["saved"] > 0
    assert seen["none yet"] > 0
