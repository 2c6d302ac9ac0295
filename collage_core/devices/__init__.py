"""Devices: memory, queues of work on it, and the ways there and back."""

from collage_run.devices import IMMEDIATE, Buffers, CpuDevice, Device, DeviceArray, DeviceInfo, Memory, Queue

from collage_core.devices.station import Station

__all__ = [
    "IMMEDIATE",
    "Buffers",
    "CpuDevice",
    "Device",
    "DeviceArray",
    "DeviceInfo",
    "Memory",
    "Queue",
    "Station",
]
