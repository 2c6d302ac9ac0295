"""Which algorithm a kernel gets, and what it needs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from collage_cublas import library
from collage_cublas.backend import CublasBackend
from cublas_emulated_library import EmulatedAlgorithm
from cublas_emulation import TARGET, Emulation

from collage_core.errors import BackendUnavailableError, DeclinedError, Refusal
from collage_core.ir import Subgraph
from collage_core.testing import make_group, node

_SLACK = 16 + 256
"""What nvmath-python adds to a workspace, and room for where it has to begin."""


def _values(*shape: int, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def _group(activation: str = "", constant: str = "") -> Subgraph:
    nodes = [node("MatMul", ["a", "b"], ["p"])]
    if activation:
        nodes.append(
            node(activation, ["p"], ["y"], **({"approximate": "tanh"} if activation == "Gelu" else {}))
        )
    values = {"a": _values(5, 7), "b": _values(7, 6, seed=1)}
    constants = {constant: values.pop(constant)} if constant else {}
    return make_group(nodes, values, constants)


def _build(group: Subgraph) -> Any:
    backend = CublasBackend()
    variants = backend.variants(group, TARGET)
    assert not isinstance(variants, Refusal)
    (variant,) = variants
    return backend.build(group, variant, TARGET)


def test_the_fastest_is_kept(emulation: Emulation) -> None:
    """And its workspace, with room for where that has to begin."""
    emulation.bindings.algorithms = tuple(
        EmulatedAlgorithm(cost_ms, workspace_bytes=size)
        for cost_ms, size in ((1.0, 100), (0.5, 300), (0.25, 500), (2.0, 0))
    )
    assert _build(_group()).workspace_bytes == 500 + _SLACK
    assert emulation.device.made[-1].holds > 4


def test_one_algorithm_is_not_timed(emulation: Emulation) -> None:
    emulation.bindings.algorithms = (EmulatedAlgorithm(),)
    assert _build(_group()).workspace_bytes == 0
    assert emulation.bindings.calls == 0
    assert not emulation.device.made


def test_slow_ones_are_not_tried_for_long(emulation: Emulation) -> None:
    """What is ranked last is left out once the device's time is up."""
    emulation.bindings.algorithms = tuple(
        EmulatedAlgorithm(cost_ms, workspace_bytes=size)
        for cost_ms, size in ((20.0, 100), (19.0, 200), (1.0, 300))
    )
    assert _build(_group()).workspace_bytes == 200 + _SLACK
    assert emulation.device.made[-1].holds == 2


def test_what_is_alike_is_tried_once(emulation: Emulation) -> None:
    """Layers of one network, whose weights differ."""
    for constant, tried in (("b", True), ("b", False), ("", True), ("", False)):
        before = emulation.bindings.calls
        kernel = _build(_group(constant=constant))
        assert (emulation.bindings.calls > before) == tried
        assert sum(m is not None for m in kernel._memory) == len(constant)


def test_the_next_process_need_not_try(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds the choice on disk, for as long as the library takes it."""
    emulation.bindings.algorithms = (EmulatedAlgorithm(2.0), EmulatedAlgorithm(1.0, 100))
    assert _build(_group(constant="b")).workspace_bytes == 100 + _SLACK
    (key,) = emulation.kept
    for broken in (False, True):
        before = emulation.bindings.calls
        monkeypatch.setattr(library, "_loaded", [])
        if broken:
            emulation.kept[key] = emulation.kept[key][:-1]
        assert _build(_group(constant="b")).workspace_bytes == 100 + _SLACK
        assert (emulation.bindings.calls > before) == broken
    monkeypatch.setattr(library, "_loaded", [])
    emulation.bindings.algorithms = (EmulatedAlgorithm(),)
    assert _build(_group(constant="b")).workspace_bytes == 0


def test_no_more_workspace_than_the_limit(emulation: Emulation) -> None:
    emulation.bindings.algorithms = (
        EmulatedAlgorithm(1.0, workspace_bytes=33 << 20),
        EmulatedAlgorithm(2.0, workspace_bytes=32 << 20),
    )
    assert _build(_group()).workspace_bytes == (32 << 20) + _SLACK


@pytest.mark.parametrize("constant", ["", "a", "b"])
@pytest.mark.parametrize("activation", ["Relu", "Gelu"])
def test_an_activation_that_loses_nan_is_not_used(
    emulation: Emulation, monkeypatch: pytest.MonkeyPatch, activation: str, constant: str
) -> None:
    """Tried on the device, even where there is but one algorithm."""
    fast, slow = EmulatedAlgorithm(0.5, keeps_nan=False), EmulatedAlgorithm(1.0, 100)
    emulation.bindings.algorithms = (fast, slow)
    group = _group(activation, constant)
    if activation == "Relu":
        assert _build(group).workspace_bytes == 100 + _SLACK
        emulation.bindings.algorithms = (fast,)
        monkeypatch.setattr(library, "_loaded", [])
        emulation.kept.clear()
        with pytest.raises(DeclinedError, match="Relu makes a number of NaN"):
            _build(group)
    else:
        assert _build(group).workspace_bytes == 0  # the emulated GELU keeps it


def test_a_constant_is_stored_in_the_better_order(emulation: Emulation) -> None:
    """Both are tried, every algorithm of each; the kernel keeps one copy."""
    emulation.bindings.algorithms = (EmulatedAlgorithm(),)
    kernel = _build(_group(constant="b"))
    assert emulation.device.uploads == 2
    assert {p["transa"] for p in emulation.bindings.products} == {False, True}
    assert sum(m is not None for m in kernel._memory) == 1


def test_algorithms_that_do_not_run_are_left_out(
    emulation: Emulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulation.bindings.algorithms = (EmulatedAlgorithm(0.1, runs=False), EmulatedAlgorithm(1.0, 100))
    assert _build(_group()).workspace_bytes == 100 + _SLACK
    emulation.bindings.algorithms = (EmulatedAlgorithm(runs=False),) * 2
    monkeypatch.setattr(library, "_loaded", [])
    emulation.kept.clear()
    with pytest.raises(DeclinedError, match="runs"):
        _build(_group())


def test_none_is_found(emulation: Emulation) -> None:
    emulation.bindings.algorithms = ()
    with pytest.raises(DeclinedError, match="has no algorithm"):
        _build(_group())
    emulation.bindings.refuses_heuristics = True
    with pytest.raises(DeclinedError, match="NOT_SUPPORTED"):
        _build(_group())


def test_descriptors_end_with_their_kernels(emulation: Emulation) -> None:
    emulation.check([node("MatMul", ["a", "b"], ["y"])], {"a": _values(3, 4), "b": _values(4, 5)})
    for queue in emulation.device.made:
        queue.synchronize()
    assert emulation.bindings.descriptors == 0


def test_without_the_bindings(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    with pytest.raises(BackendUnavailableError, match="nvmath-python does not load"):
        _build(_group())
