"""The device's contract, on whatever driver is here."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from collage_cuda import NAME
from collage_cuda.constants import upload
from collage_cuda.context import context
from collage_cuda.device import CudaDevice, CudaMemory, CudaQueue

from collage_core.devices import DeviceArray
from collage_core.errors import BackendError, CollageError
from collage_core.formats import Format, channels_last, empty, plain

_Array = npt.NDArray[np.float32]
SHAPE = (2, 3, 5, 7)


def _there(memory: CudaMemory, shape: tuple[int, ...] = SHAPE) -> DeviceArray:
    array: DeviceArray = memory.array(0, shape, plain("float32", shape, NAME))
    return array


def _numbers(shape: tuple[int, ...] = SHAPE) -> _Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("make", [plain, channels_last])
def test_what_goes_there_comes_back(
    device: CudaDevice, make: Callable[[str, tuple[int, ...], str], Format]
) -> None:
    queue, buffers = device.queue(), device.fenced(True)
    format = make("float32", SHAPE, NAME)
    there = buffers.array(SHAPE, format, "x")
    for times in (1, 2, 3):  # the first goes another way than those that follow
        source, found = empty(SHAPE, format.on("cpu")), empty(SHAPE, format.on("cpu"))
        source[...] = _numbers() * times
        device.upload(source, there, queue)
        source[...] = -1
        device.download(there, found, queue)
        queue.synchronize()
        assert np.array_equal(found, _numbers() * times)
    assert buffers.trespass() is None


def test_nothing_is_brought_either_way(device: CudaDevice) -> None:
    queue, shape = device.queue(), (0, 3)
    there = device.fenced(False).array(shape, plain("float32", shape, NAME), "x")
    device.upload(np.empty(shape, np.float32), there, queue)
    device.download(there, np.empty(shape, np.float32), queue)
    queue.synchronize()


@pytest.mark.parametrize(("offset", "where"), [(-1, "before y"), (24, "behind y"), (24 + 255, "behind y")])
def test_who_writes_beside_a_buffer_is_found_out(device: CudaDevice, offset: int, where: str) -> None:
    buffers = device.fenced(True)
    buffers.array((4,), plain("float32", (4,), NAME), "x")
    there = buffers.array((6,), plain("float32", (6,), NAME), "y")
    assert buffers.trespass() is None
    context().set_bytes(there.address + offset, 7, 1)
    assert buffers.trespass() == where


def test_memory_is_zeros_aligned_and_freed(device: CudaDevice) -> None:
    memory = device.allocate(1000)
    assert memory.address % 256 == 0
    assert not any(context().read(memory.address, 1000))
    held = memory.array(0, (10,), plain("float32", (10,), NAME))
    assert held.owner is memory
    assert held.__dlpack_device__() == (2, 0)


def test_there_is_no_room_for_everything(device: CudaDevice) -> None:
    with pytest.raises(CollageError, match="MiB left"):
        device.allocate(1 << 50)
    assert device.allocate(16).size_bytes == 16


def test_constants_are_copied_in_their_logical_order(device: CudaDevice) -> None:
    held = upload(_numbers((3, 4)).T)
    assert (
        np.frombuffer(context().read(held.address, 48), np.float32).tolist()
        == _numbers((3, 4)).T.ravel().tolist()
    )


def test_marks_tell_of_the_device_alone(device: CudaDevice) -> None:
    queue = device.queue()
    queue.hold()
    before = queue.mark()
    queue.hold()
    after = queue.mark()
    queue.synchronize()
    assert 0.005 < queue.elapsed_ms(before, after) < 5.0
    again = queue.mark(), queue.mark()
    queue.synchronize()
    assert 0.0 <= queue.elapsed_ms(*again) < 1.0


def _setter(queue: CudaQueue, memory: CudaMemory, byte: int) -> Callable[[], object]:
    address, size_bytes = memory.address, memory.size_bytes
    return lambda: context().library.set_bytes(address, byte, size_bytes, queue.stream)


def test_many_calls_are_one_launch(device: CudaDevice) -> None:
    queue = device.queue()
    first, second = device.allocate(64), device.allocate(64)
    replay = queue.capture([_setter(queue, first, 1), _setter(queue, second, 2)])
    assert replay is not None
    for memory in (first, second):
        context().set_bytes(memory.address, 9, 64)
    replay()
    queue.synchronize()
    assert context().read(first.address, 64) == b"\1" * 64
    assert context().read(second.address, 64) == b"\2" * 64


def test_a_captured_stretch_outlives_what_it_was_made_of(device: CudaDevice) -> None:
    memory = device.allocate(64)
    queue = device.queue()
    replay = queue.capture([_setter(queue, memory, 4)])
    assert replay is not None
    stream = queue.stream
    del queue
    gc.collect()
    replay()
    context().library.synchronize_stream(stream)
    assert context().read(memory.address, 64) == b"\4" * 64


def test_one_value_is_brought_to_two_places(device: CudaDevice) -> None:
    queue, there = device.queue(), _there(device.allocate(840))
    found = [np.empty(SHAPE, np.float32) for _ in range(4)]
    for times, into in enumerate(found):
        device.upload(_numbers() * times, there, queue)
        device.download(there, into, queue)
    queue.synchronize()
    for times, into in enumerate(found):
        assert np.array_equal(into, _numbers() * times)


def test_another_thread_times_what_this_one_opened(device: CudaDevice) -> None:
    queue, failed = device.queue(), []

    def work() -> None:
        try:
            queue.hold()
            marks = queue.mark(), queue.mark()
            device.evict(1 << 20, queue)
            queue.synchronize()
            queue.elapsed_ms(*marks)
        except CollageError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed


def test_what_waits_cannot_be_captured_and_the_queue_goes_on(device: CudaDevice) -> None:
    queue = device.queue()
    memory = device.allocate(64)
    with pytest.raises(BackendError):
        queue.capture([_setter(queue, memory, 1), queue.synchronize])
    with pytest.raises(BackendError, match="returns 7"):
        queue.capture([lambda: 7])
    context().set_bytes(memory.address, 3, 64)
    queue.synchronize()
    assert context().read(memory.address, 64) == b"\3" * 64


def test_memory_that_is_dropped_while_capturing_ends_nothing(device: CudaDevice) -> None:
    queue, memory = device.queue(), device.allocate(64)

    def dropping() -> None:
        if held:
            held.pop()
        gc.collect()

    held = [device.allocate(64), device.allocate(64)]
    replay = queue.capture([dropping, _setter(queue, memory, 5)])
    assert replay is not None
    replay()
    queue.synchronize()
    assert context().read(memory.address, 64) == b"\5" * 64


def test_two_threads_use_two_queues(device: CudaDevice) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        queue, there = device.queue(), _there(device.allocate(840))
        for times in range(20):
            found = np.empty(SHAPE, np.float32)
            device.upload(_numbers() * number + times, there, queue)
            device.download(there, found, queue)
            queue.synchronize()
            if not np.array_equal(found, _numbers() * number + times):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_caches_are_left_as_by_others(device: CudaDevice) -> None:
    queue = device.queue()
    there = _there(device.allocate(840))
    device.upload(_numbers(), there, queue)
    device.evict(1 << 20, queue)
    found = np.empty(SHAPE, np.float32)
    device.download(there, found, queue)
    queue.synchronize()
    assert np.array_equal(found, _numbers())


def test_its_clock_is_asked_for(device: CudaDevice) -> None:
    first = device.disturbances()
    assert 0 <= first <= device.disturbances()


def test_the_fingerprint_says_which_gpu(device: CudaDevice) -> None:
    facts = device.fingerprint()
    told = {"model", "compute_capability", "memory_mib", "multiprocessors", "driver", "driver_cuda"}
    assert set(facts) == told
    assert device.info().description == facts["model"]
    assert facts["compute_capability"] == ".".join(map(str, device.compute_capability))
