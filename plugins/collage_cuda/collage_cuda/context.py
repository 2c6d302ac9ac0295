"""The GPU's primary context in this process, and what belongs to it as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from collage_core.errors import BackendError, CollageError
from collage_cuda.clocks import Clocks

if TYPE_CHECKING:
    from collage_cuda.hold import Hold

__all__ = ["Context", "context"]

_NO_ROOM = "OUT_OF_MEMORY"
_ORDINAL = 0
"""Among those that CUDA_VISIBLE_DEVICES leaves."""


class Context:
    """Opened once in a process. After an error of the device itself every further call in it fails."""

    def __init__(self) -> None:
        from collage_cuda import library

        self.library = library
        self.device = library.open_device(_ORDINAL)
        self._context = library.retain_context(self.device)
        self._capturing = threading.local()
        self._pending: list[tuple[Callable[[Any], object], Any]] = []
        library.make_current(self._context)
        self.stream = library.create_stream()
        """For what is waited for at once."""

    def current(self) -> None:
        """Make it this thread's. Others may have made theirs so in between; it takes less than 1 us."""
        self.library.make_current(self._context)

    @cached_property
    def hold(self) -> Hold:
        from collage_cuda.hold import Hold

        self.current()
        return Hold()

    @cached_property
    def clocks(self) -> Clocks:
        return Clocks(self.library.pci_bus_id(self.device))

    @cached_property
    def l2_bytes(self) -> int:
        return self.library.attribute(self.device, "L2_CACHE_SIZE")

    def allocate(self, size_bytes: int) -> int:
        """An address; CollageError where there is no room."""
        self.current()
        self._release_pending()
        try:
            return self.library.allocate(max(size_bytes, 1))
        except BackendError as error:
            if _NO_ROOM not in str(error):
                raise
            raise CollageError(f"the GPU has no {size_bytes / 2**20:.1f} MiB left: {error}") from None

    def release(self, function: Callable[[Any], object], handle: Any) -> None:
        """Nobody holds it any more. It goes now, or, if this thread captures, with what goes next: it would
        end the capture.
        """
        self._pending.append((function, handle))
        with contextlib.suppress(BackendError):  # the process may be ending, the context be dead
            self.current()
            self._release_pending()

    def _release_pending(self) -> None:
        while not getattr(self._capturing, "now", False):
            try:
                function, handle = self._pending.pop()
            except IndexError:  # another thread may have taken the last
                return
            function(handle)

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """While this thread captures."""
        self._capturing.now = True
        try:
            yield
        finally:
            self._capturing.now = False

    def set_bytes(self, address: int, byte: int, size_bytes: int) -> None:
        """And wait for it."""
        if size_bytes:
            self.current()
            self.library.set_bytes(address, byte, size_bytes, self.stream)
            self.library.synchronize_stream(self.stream)

    def write(self, address: int, source_address: int, size_bytes: int) -> None:
        """From the host, and wait for it."""
        if size_bytes:
            self.current()
            self.library.copy_to_device(address, source_address, size_bytes, self.stream)
            self.library.synchronize_stream(self.stream)

    def read(self, address: int, size_bytes: int) -> bytes:
        """To the host, and wait for it."""
        found = (ctypes.c_uint8 * size_bytes)()
        self.current()
        self.library.copy_to_host(ctypes.addressof(found), address, size_bytes, self.stream)
        self.library.synchronize_stream(self.stream)
        return bytes(found)


_opening = threading.Lock()
_opened: list[Any] = []


def context() -> Context:
    """The one of this process, opened when it is first asked for. BackendError where there is no GPU."""
    with _opening:
        if not _opened:
            try:
                _opened.append(Context())
            except (ImportError, OSError, RuntimeError) as error:  # no bindings, or no driver
                raise BackendError(f"no GPU can be opened: {error}") from None
        found: Context = _opened[0]
        return found
