"""The kit that says whether a backend is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from collage_conformance import Conformance, Sample

from collage_core.testing import make_model, node


@pytest.mark.ci
class TestNcnn(Conformance):
    backend = "ncnn"
    cases = 1

    def samples(self) -> Iterator[Sample]:
        """Nobody else's have as many channels as it takes."""
        rng = np.random.default_rng(0)
        for name, out, within, window, attributes in (
            ("3 x 3", 16, 8, 3, {"pads": [1, 1, 1, 1]}),
            ("1 x 1", 12, 8, 1, {}),
            ("by channel", 8, 1, 5, {"group": 8, "strides": [2, 2]}),
            ("dilated", 4, 8, 3, {"dilations": [2, 1]}),
        ):
            x = rng.standard_normal((2, 8, 11, 13), np.float32)
            constants: dict[str, Any] = {
                "w": rng.standard_normal((out, within, window, window), np.float32) / window,
                "b": rng.standard_normal(out, np.float32),
            }
            nodes = [node("Conv", ["x", "w", "b"], "c", **attributes), node("Relu", ["c"], "y")]
            yield Sample(name, make_model(nodes, {"x": x}, constants), {"x": x})
