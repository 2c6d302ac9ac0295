"""Devices: memory, queues of work on it, and the ways there and back. The CPU is one."""

from collage_run.devices.contract import Buffers, Device, DeviceArray, DeviceInfo, Memory, Queue
from collage_run.devices.cpu import ALIGNMENT_BYTES, IMMEDIATE, Arena, CpuDevice, CpuQueue

__all__ = [
    "ALIGNMENT_BYTES",
    "IMMEDIATE",
    "Arena",
    "Buffers",
    "CpuDevice",
    "CpuQueue",
    "Device",
    "DeviceArray",
    "DeviceInfo",
    "Memory",
    "Queue",
]
