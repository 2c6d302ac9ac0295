"""The one file that calls the CUDA driver, through NVIDIA's bindings
(https://nvidia.github.io/cuda-python/cuda-bindings/latest/module/driver.html).

Handles are the bindings' own objects; addresses are ints. Each call raises `BackendError` with the driver's
name of what went wrong. Nothing here decides anything.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from collage_core.errors import BackendError

__all__ = [
    "allocate",
    "allocate_pinned",
    "attribute",
    "begin_capture",
    "compute_capability",
    "copy_to_device",
    "copy_to_host",
    "create_event",
    "create_stream",
    "destroy_event",
    "destroy_launchable",
    "destroy_stream",
    "driver_version",
    "drop_capture",
    "elapsed_ms",
    "end_capture",
    "free",
    "free_pinned",
    "function",
    "instantiate",
    "launch_graph",
    "launch_kernel",
    "load_module",
    "make_current",
    "memory_bytes",
    "model",
    "open_device",
    "pci_bus_id",
    "record_event",
    "retain_context",
    "set_bytes",
    "synchronize_stream",
]

_NAME_BYTES = 256


def _checked(result: tuple[Any, ...]) -> Any:
    """What a call has returned beside its status."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise BackendError(f"the CUDA driver: {status.name}")
    return values[0] if values else None


def open_device(ordinal: int) -> Any:
    """The driver, started in this process, and a device by its number."""
    _checked(driver.cuInit(0))
    return _checked(driver.cuDeviceGet(ordinal))


def driver_version() -> int:
    """The newest CUDA that it serves: 13000 is 13.0."""
    return int(_checked(driver.cuDriverGetVersion()))


def model(device: Any) -> str:
    name: bytes = _checked(driver.cuDeviceGetName(_NAME_BYTES, device))
    return name.split(b"\0")[0].decode()


def memory_bytes(device: Any) -> int:
    return int(_checked(driver.cuDeviceTotalMem(device)))


def attribute(device: Any, name: str) -> int:
    """By the name that the driver gives it, without CU_DEVICE_ATTRIBUTE_."""
    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(_checked(driver.cuDeviceGetAttribute(which, device)))


def pci_bus_id(device: Any) -> str:
    told: bytes = _checked(driver.cuDeviceGetPCIBusId(_NAME_BYTES, device))
    return told.split(b"\0")[0].decode()


def compute_capability(device: Any) -> tuple[int, int]:
    return attribute(device, "COMPUTE_CAPABILITY_MAJOR"), attribute(device, "COMPUTE_CAPABILITY_MINOR")


def retain_context(device: Any) -> Any:
    """The primary context, which libraries of the runtime API use as well."""
    return _checked(driver.cuDevicePrimaryCtxRetain(device))


def make_current(context: Any) -> None:
    """In this thread."""
    _checked(driver.cuCtxSetCurrent(context))


def allocate(size_bytes: int) -> int:
    """An address in the device's memory, aligned to at least 256 bytes."""
    return int(_checked(driver.cuMemAlloc(size_bytes)))


def free(address: int) -> None:
    _checked(driver.cuMemFree(address))


def allocate_pinned(size_bytes: int) -> int:
    """An address in the host's memory, which the device reads and writes by itself."""
    return int(_checked(driver.cuMemHostAlloc(size_bytes, 0)))


def free_pinned(address: int) -> None:
    _checked(driver.cuMemFreeHost(address))


def copy_to_device(destination: int, source: int, size_bytes: int, stream: Any) -> None:
    _checked(driver.cuMemcpyHtoDAsync(destination, source, size_bytes, stream))


def copy_to_host(destination: int, source: int, size_bytes: int, stream: Any) -> None:
    _checked(driver.cuMemcpyDtoHAsync(destination, source, size_bytes, stream))


def set_bytes(address: int, byte: int, size_bytes: int, stream: Any) -> None:
    _checked(driver.cuMemsetD8Async(address, byte, size_bytes, stream))


def create_stream() -> Any:
    """One that does not wait for the default stream."""
    return _checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))


def destroy_stream(stream: Any) -> None:
    _checked(driver.cuStreamDestroy(stream))


def synchronize_stream(stream: Any) -> None:
    _checked(driver.cuStreamSynchronize(stream))


def create_event() -> Any:
    return _checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DEFAULT))


def destroy_event(event: Any) -> None:
    _checked(driver.cuEventDestroy(event))


def record_event(event: Any, stream: Any) -> None:
    _checked(driver.cuEventRecord(event, stream))


def elapsed_ms(first: Any, last: Any) -> float:
    """With a resolution of about half a microsecond."""
    return float(_checked(driver.cuEventElapsedTime(first, last)))


def begin_capture(stream: Any) -> None:
    """What other threads do meanwhile is their own."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    _checked(driver.cuStreamBeginCapture(stream, mode))


def end_capture(stream: Any) -> Any:
    """What has been queued since, as a graph that has not run."""
    return _checked(driver.cuStreamEndCapture(stream))


def drop_capture(stream: Any) -> None:
    """Whatever has been queued since, or however it was broken off."""
    status, graph = driver.cuStreamEndCapture(stream)
    if status == driver.CUresult.CUDA_SUCCESS:
        driver.cuGraphDestroy(graph)


def instantiate(graph: Any) -> Any:
    """What can be launched; the graph itself is gone then."""
    try:
        return _checked(driver.cuGraphInstantiate(graph, 0))
    finally:
        driver.cuGraphDestroy(graph)


def launch_graph(launchable: Any, stream: Any) -> None:
    _checked(driver.cuGraphLaunch(launchable, stream))


def destroy_launchable(launchable: Any) -> None:
    _checked(driver.cuGraphExecDestroy(launchable))


def load_module(image: bytes) -> Any:
    """PTX, compiled for the device by the driver, or a cubin."""
    return _checked(driver.cuModuleLoadData(image))


def function(module: Any, name: str) -> Any:
    return _checked(driver.cuModuleGetFunction(module, name.encode()))


def launch_kernel(kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], *rest: Any) -> None:
    """rest: bytes of dynamic shared memory, the stream, and the parameters: values and their ctypes."""
    shared_bytes, stream, parameters = rest
    _checked(driver.cuLaunchKernel(kernel, *grid, *block, shared_bytes, stream, parameters, 0))
