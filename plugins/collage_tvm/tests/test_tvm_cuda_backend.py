"""What the backend says of itself, and offers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from collage_tvm.cuda.backend import TvmCudaBackend
from collage_tvm.plugin import collage_backends
from cuda_groups import CASES, group_of, normal

from collage_core.errors import Refusal
from collage_core.formats import plain
from collage_core.ir import TensorType
from collage_core.target import Target
from collage_core.testing import make_group, node

_HERE = Target("cpu", 1, accelerators=("cuda",))


def test_it_is_the_plugins_second() -> None:
    assert [b.name for b in collage_backends()] == ["tvm", "tvm-cuda"]


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    info = TvmCudaBackend().info()
    assert info.devices == ("cuda",)
    assert info.reason == "collage-cuda is not installed: pip install 'collage-tvm[cuda]'"


def test_what_it_says_and_offers_loads_nothing() -> None:
    script = """
import sys
from collage_core import Target
from collage_core.testing import make_group, node
from collage_tvm.cuda.backend import TvmCudaBackend
import numpy as np
backend = TvmCudaBackend()
backend.info(), backend.rules(), backend.patterns()
x = np.zeros((2, 4), np.float32)
group = make_group([node("Relu", ["x"], "o")], {"x": x})
offered = backend.variants(group, Target("cpu", 1, accelerators=("cuda",)))
assert len(offered) == 1, offered
assert not {"tvm", "cuda.bindings.driver", "cuda.bindings.nvrtc", "llvmlite"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_device_must_take_part() -> None:
    refusal = TvmCudaBackend().variants(group_of(CASES["chain"]), Target("cpu", 1))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "device 'cuda' does not take part"


def test_products_are_offered_as_they_lie_and_convolutions_in_both_orders() -> None:
    product = TvmCudaBackend().variants(group_of(CASES["product"]), _HERE)
    assert isinstance(product, list)
    assert [str(v) for v in product] == ["(float32:plain@cuda) -> (float32:plain@cuda)"]
    convolution = TvmCudaBackend().variants(group_of(CASES["convolution"]), _HERE)
    assert isinstance(convolution, list)
    assert [str(v) for v in convolution] == [
        "(float32:plain@cuda) -> (float32:plain@cuda)",
        "(float32:0231@cuda) -> (float32:0231@cuda)",
    ]


def test_halves_of_the_model_are_declined() -> None:
    x = normal(2, 3).astype(np.float16)
    refusal = TvmCudaBackend().variants(make_group([node("Identity", ["x"], "o")], {"x": x}), _HERE)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "'x' is float16, which is stored, but not computed with"


@pytest.mark.parametrize(("source", "there"), [("cpu", "cuda"), ("cuda", "cpu"), ("cpu", "cpu")])
def test_it_converts_on_the_device_only(source: str, there: str) -> None:
    type = TensorType("float32", (2, 3))
    first, second = (plain("float32", (2, 3), device) for device in (source, there))
    on_device = plain("float32", (2, 3), "cuda")
    assert not TvmCudaBackend().converts(type, first, second, _HERE)
    assert TvmCudaBackend().converts(type, on_device, on_device, _HERE)
