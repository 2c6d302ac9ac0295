"""The device: what it is told is done in order and later, in memory that the host does not have."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np
import pytest
from collage_simulator.costs import VARIABLE, declared
from collage_simulator.device import SimDevice
from collage_simulator.engine import Program

from collage_core.devices import Station
from collage_core.errors import BackendError, CollageError
from collage_core.formats import Format, plain

_FORMAT = plain("float32", (2, 3), "sim")
_VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)
_RELU = Program("collage_simulator.operators:compute", (0,), (("op", "Relu"),), 6.0, 48.0)


@pytest.fixture
def station() -> Iterator[Station]:
    station = Station(SimDevice(), protect=True)
    yield station
    station.queue.host._process.kill()  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", [(0, 1), (1, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_is_brought_there_comes_back(station: Station, dtype: str, layout: tuple[int, ...]) -> None:
    format = Format(dtype, layout, "sim")
    array = station.array((2, 3), format, "a value")
    steps = (3, 1) if layout == (0, 1) else (1, 2)
    assert array.strides == tuple(np.dtype(dtype).itemsize * s for s in steps)
    station.write(array, format, _VALUE)
    found = station.read(array, format)
    assert found.dtype == dtype
    assert np.array_equal(found, _VALUE)
    assert station.buffers.trespass() is None


def test_kernels_run_in_order_and_later(station: Station) -> None:
    """A launch takes next to nothing; that it was done is known once the host has waited."""
    first, second, third = (station.array((2, 3), _FORMAT, f"value {i}") for i in range(3))
    station.write(first, _FORMAT, -_VALUE)
    negate = Program("collage_simulator.operators:compute", (0,), (("op", "Neg"),), 1e10, 0.0)
    launches = [
        station.queue.launcher(negate, [first], [second]),  # type: ignore[attr-defined]
        station.queue.launcher(_RELU, [second], [third]),  # type: ignore[attr-defined]
    ]
    slow = 1e-6 * negate.operations / declared().operations_per_us
    before = time.perf_counter()
    for _ in range(20):
        for launch in launches:
            launch()
    told_s = time.perf_counter() - before
    station.queue.synchronize()
    took_s = time.perf_counter() - before
    assert took_s >= 20 * slow == 0.2
    assert told_s < 0.5 * took_s, "the host has gone on"
    assert np.array_equal(station.read(third, _FORMAT), _VALUE)


def test_marks_tell_what_is_declared(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    array = station.array((2, 3), _FORMAT, "a value")
    queue, costs = station.queue, declared()
    launch = queue.launcher(_RELU, [array], [array])  # type: ignore[attr-defined]
    first = queue.mark()
    for _ in range(3):
        launch()
    last = queue.mark()
    queue.synchronize()
    each_us = costs.launch_us + costs.run_us(_RELU.operations, _RELU.moved_bytes)
    assert queue.elapsed_ms(first, last) == pytest.approx(3 * each_us / 1e3)


def test_what_is_captured_is_one_launch(station: Station) -> None:
    first, second = (station.array((2, 3), _FORMAT, f"value {i}") for i in range(2))
    queue = station.queue
    launches = [queue.launcher(_RELU, *ends) for ends in (([first], [second]), ([second], [first]))]  # type: ignore[attr-defined]
    replay = queue.capture(launches)
    assert replay is not None
    station.write(first, _FORMAT, -_VALUE)
    station.write(second, _FORMAT, _VALUE)
    queue.synchronize()
    before = queue.host.launches  # type: ignore[attr-defined]
    start = queue.mark()
    replay()
    end = queue.mark()
    assert not station.read(first, _FORMAT).any()
    assert queue.host.launches == before + 1  # type: ignore[attr-defined]
    costs = declared()
    both_us = costs.launch_us + 2 * costs.run_us(_RELU.operations, _RELU.moved_bytes)
    assert queue.elapsed_ms(start, end) == pytest.approx(both_us / 1e3)


def test_who_writes_beside_a_buffer_is_found_out(station: Station) -> None:
    array = station.array((2, 3), _FORMAT, "output 'y'")
    queue = station.queue
    queue.host.tell("write", queue.number, array.address + 24, b"\x01")  # type: ignore[attr-defined]
    assert station.buffers.trespass() == "behind output 'y'"
    queue.host.tell("write", queue.number, array.address - 1, b"\x01")  # type: ignore[attr-defined]
    assert station.buffers.trespass() == "before output 'y'"


def test_an_error_is_told_to_whoever_waits_and_is_over_then(station: Station) -> None:
    array = station.array((2, 3), _FORMAT, "a value")
    lost = Program("collage_simulator.operators:nothing", (0,), (), 0.0, 0.0)
    station.queue.launcher(lost, [array], [array])()  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match="no attribute 'nothing'"):
        station.queue.synchronize()
    station.write(array, _FORMAT, _VALUE)
    assert np.array_equal(station.read(array, _FORMAT), _VALUE)


def test_an_error_is_told_to_whoever_waits_for_that_queue(station: Station) -> None:
    """Two of one process: what one fails at costs the other nothing, and does not go unheard."""
    device = station.device
    array, other = (station.array((2, 3), _FORMAT, f"value {i}") for i in range(2))
    station.write(other, _FORMAT, _VALUE)
    failing, well = station.queue, device.queue()
    lost = Program("collage_simulator.operators:nothing", (0,), (), 0.0, 0.0)
    failing.launcher(lost, [array], [array])()  # type: ignore[attr-defined]
    never, found = np.full((2, 3), -7, np.float32), np.zeros((2, 3), np.float32)
    device.download(array, never, failing)
    device.download(other, found, well)
    well.synchronize()
    assert np.array_equal(found, _VALUE)
    with pytest.raises(BackendError, match="no attribute 'nothing'"):
        failing.synchronize()
    assert (never == -7).all()
    failing.synchronize()


def test_a_process_that_dies_is_started_again() -> None:
    device = SimDevice()
    first = Station(device, protect=True)
    first.queue.host._process.kill()  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match=r"process died \(exit code -9\)"):
        first.queue.synchronize()
    second = Station(device, protect=True)
    array = second.array((2, 3), _FORMAT, "a value")
    second.write(array, _FORMAT, _VALUE)
    assert np.array_equal(second.read(array, _FORMAT), _VALUE)
    second.queue.host._process.kill()  # type: ignore[attr-defined]


def test_memory_that_nobody_holds_is_free_again(station: Station) -> None:
    for _ in range(50):
        station.device.allocate(100 << 20)  # 5 GB in all
    station.queue.synchronize()
    pid = station.queue.host._process.pid  # type: ignore[attr-defined]
    with open(f"/proc/{pid}/status") as status:
        size_kb = next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
    assert size_kb < 3 << 20


_LAUNCHES = ["-1", "NaN", "1e400", "true", "null"]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"launch": 1}', '{"operations_per_us": 0}', *(f'{{"launch_us": {us}}}' for us in _LAUNCHES)],
)
def test_costs_that_cannot_be_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(CollageError, match=VARIABLE):
        declared()


def test_other_costs_are_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SimDevice().fingerprint()
    monkeypatch.setenv(VARIABLE, json.dumps({"launch_us": 50}))
    assert declared().launch_us == 50.0
    assert SimDevice().fingerprint() != before
