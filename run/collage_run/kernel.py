"""Kernels: what a backend builds, and what is left of one on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage_run.devices import Queue
from collage_run.formats import Array

__all__ = ["Bound", "Kernel", "StoredKernel"]

Bound = Callable[[], object]
"""A kernel tied to its buffers. Returns something falsy when it went well; anything truthy is the library's
error code.
"""


@dataclass(frozen=True, slots=True)
class StoredKernel:
    """What `restoring.restore` makes a kernel of, in another process, without the group it was built of."""

    kind: str
    """What knows how: the name of an entry point of the group `collage.run`."""
    facts: Mapping[str, Any]
    """JSON values; only what makes the kernel reads them."""
    code: bytes = b""
    """Machine code of this processor, or a library's own file."""
    arrays: tuple[Array, ...] = ()
    """Constants as the kind wants them, packed or not, dense and row-major. Restored ones are 64-byte aligned
    and cannot be written: they lie in memory that processes share.
    """


class Kernel(ABC):
    """A built group: immutable, shareable between executables and threads. Constants are already inside,
    packed.

    workspace_bytes: scratch memory that `bind` is handed, 64-byte aligned, uninitialised, not kept between
    calls. may_alias: output index -> input index whose buffer the output may share, when nobody needs that
    input any more and both have the same shape and format. The memory planner decides; `bind` sees it from
    the addresses.
    """

    workspace_bytes: int = 0
    may_alias: Mapping[int, int] = {}

    @abstractmethod
    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any, queue: Queue) -> Bound:
        """Tie the kernel to buffers: the returned call reads `inputs` and writes `outputs`, whatever they
        hold then.

        On the CPU they are NumPy arrays; of formats on another device, each is a `DeviceArray`. They have the
        *logical* shapes of the subgraph's values, in the order of `subgraph.inputs` and `subgraph.outputs`;
        their strides are those of the variant's formats (dense, possibly permuted). Data is 64-byte aligned,
        or 256-byte on other devices.
        `workspace` is uint8[workspace_bytes]. `inputs` must not be written, except where an output aliases
        one. The call should allocate nothing and cost at most 3 microseconds beyond the library's own work.
        On the CPU it is finished when it returns. On another device it may return before: then all of its
        work is on `queue`, so that whatever is queued behind it finds it done.
        """

    def stored(self) -> StoredKernel | None:
        """What it can be restored from; None where building it anew takes no longer."""
        return None
