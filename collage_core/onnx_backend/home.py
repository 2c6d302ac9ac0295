"""What prepared models of the same backends share: one worker, which has all their libraries loaded."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping

from collage_core.backend import Backend, BackendKind
from collage_core.costs.host import named_variables
from collage_core.onnx_backend.servant import Servant
from collage_core.plugins import Registry
from collage_core.target import Target

__all__ = ["Home", "Key", "close_homes", "home_of"]


class Home:
    """backends: by name, the first preferred; core's reference among them. kinds: what they are. converters:
    all that may convert values, by name: these, and each accelerator's transfers. definitions: of operators
    that are not ONNX's. servant: their worker.
    """

    def __init__(self, backends: Mapping[str, Backend], target: Target, registry: Registry) -> None:
        self.backends = backends
        self.kinds = {name: b.info().kind for name, b in backends.items()}
        self.converters = registry.converters(backends, target)
        self.target = target
        environment = named_variables(list(backends.values()), target)
        self.definitions = registry.definitions
        self.servant = Servant(environment, registry.modules())
        self._numbers = itertools.count()
        self._dropped: deque[int] = deque()

    def number(self) -> int:
        """A number that no executable of the worker has had."""
        return next(self._numbers)

    def drop(self, number: int) -> None:
        """The worker may let go of this executable, when it is next asked for something."""
        self._dropped.append(number)

    def dropped(self) -> list[int]:
        """What may go, told once."""
        return [self._dropped.popleft() for _ in range(len(self._dropped))]


Key = tuple[tuple[str, ...] | None, Registry]
"""Names of backends, None for all that are available, and where they are found."""

_homes: dict[tuple[Key, Target], Home] = {}


def home_of(key: Key, target: Target) -> Home:
    """The home of these backends and of core's reference, the same one for the same target.

    UnknownBackendError or BackendError for one that is not there.
    """
    if (key, target) not in _homes:
        names, registry = key
        chosen = {b.name: b for b in registry.available(names)}
        fallback = next(b for b in registry.backends.values() if b.info().kind is BackendKind.REFERENCE)
        chosen.setdefault(fallback.name, fallback)
        _homes[key, target] = Home(chosen, target, registry)
    return _homes[key, target]


def close_homes(key: Key) -> None:
    """End the workers of all homes of these backends."""
    for (other, _), home in _homes.items():
        if other == key:
            home.servant.close()
