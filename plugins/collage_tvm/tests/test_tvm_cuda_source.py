"""CUDA C++, compiled to machine code of two generations of GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from collage_tvm.cuda.backend import TvmCudaBackend
from collage_tvm.cuda.build import program
from cuda_groups import CASES, Case, group_of

from collage_core.backend import Variant
from collage_core.target import Target

pytestmark = pytest.mark.ci
_TARGET = Target("cpu", 1, accelerators=("cuda",), precisions=("bfloat16", "float16"))
_INEXACT = re.compile(r"\b(fmaxf?|fminf?|max|min|__expf|__logf|__sinf|__cosf|__tanf|__powf|__fdividef)\(")


def _variants(case: Case) -> list[Variant]:
    found = TvmCudaBackend().variants(group_of(case), _TARGET)
    assert isinstance(found, list), found
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nothing_in_it_drops_nans_or_digits(case: Case) -> None:
    for variant in _variants(case):
        source = program(group_of(case), variant, "sm_90").source
        assert _INEXACT.findall(source) == []


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nvrtc_compiles_it(case: Case, architecture: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from collage_tvm.cuda import compiler

    try:
        compiler.version()
    except RuntimeError as error:
        pytest.skip(f"NVRTC is not installed: {error}")
    variants = _variants(case)
    for variant in (variants[0], variants[-1]):
        made = program(group_of(case), variant, architecture)
        cubin = compiler.compile_source(made.source, architecture)
        assert cubin.startswith(b"\x7fELF")
        assert all(entry.encode() in cubin for entry in made.entries)


def test_what_nvrtc_says_is_told() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from collage_tvm.cuda import compiler

    from collage_core.errors import BackendError

    try:
        compiler.version()
    except RuntimeError as error:
        pytest.skip(f"NVRTC is not installed: {error}")
    with pytest.raises(BackendError, match="is undefined"):
        compiler.compile_source('extern "C" __global__ void f() { g(); }', "sm_90")


def test_what_is_compiled_ahead_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from collage_tvm.cuda import compiler

    monkeypatch.setenv("COLLAGE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "version", lambda: "13.0")
    sources: list[str] = []

    def compile_source(source: str, architecture: str) -> bytes:
        sources.append(source)
        return b"cubin of " + architecture.encode()

    monkeypatch.setattr(compiler, "compile_source", compile_source)
    case = CASES["chain"]
    made = {a: program(group_of(case), _variants(case)[0], a) for a in ("sm_80", "sm_90")}
    made["sm_90"].compile_ahead()
    made["sm_90"].compile_ahead()
    assert made["sm_90"].compiled() == b"cubin of sm_90"
    assert len(sources) == 1
    assert made["sm_80"].compiled() == b"cubin of sm_80"
