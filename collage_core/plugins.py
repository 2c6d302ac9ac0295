"""Discovery: which backends, devices and peers are installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from collage_core import hookspecs
from collage_core.backend import CONTRACT, Backend, BackendInfo
from collage_core.devices import CpuDevice, Device, DeviceInfo
from collage_core.discovery import left_out
from collage_core.errors import BackendError, CollageError, Terminated, UnknownBackendError
from collage_core.ir import Definition
from collage_core.peer import Peer, PeerInfo
from collage_core.placement import is_transfer, transfers_name
from collage_core.priors import Priors
from collage_core.quantizer import Quantizer
from collage_core.standard_output import not_for_others
from collage_core.target import Target
from collage_core.transfers import Transfers

__all__ = [
    "ENTRY_POINT_GROUP",
    "PLUGINS_VARIABLE",
    "Registry",
    "backend_of",
    "default_registry",
    "hookimpl",
    "registry_of",
]

ENTRY_POINT_GROUP = "collage"
"""Where installed packages name their plugin module."""

PLUGINS_VARIABLE = "COLLAGE_PLUGINS"
"""Environment variable with further modules that hold plugins."""

hookimpl = pluggy.HookimplMarker("collage")
"""Marks a plugin's implementation of a hook of `collage_core.hookspecs`."""


_CORE = "collage-core"
_INFO = {Backend: BackendInfo, Device: DeviceInfo, Peer: PeerInfo, Quantizer: PeerInfo}

_Named = TypeVar("_Named", Backend, Definition, Device, Peer, Quantizer)


class Registry:
    """The backends, definitions of operators, devices, peers, priors and quantizers of one process.

    Plugins are loaded from the entry points of installed packages, and from `extra` modules or objects
    (tests, notebooks). A plugin whose import fails, or crashes, leaves the others alone. So do plugins that
    bring one name: which of them is meant nobody can know, and neither's counts. `failures` keeps what was
    wrong by the plugin's name, with its package and what to do.
    """

    def __init__(self, extra: Iterable[object] = (), *, entry_points: bool = True) -> None:
        self._manager = pluggy.PluginManager("collage")
        self._manager.add_hookspecs(hookspecs)
        self.failures: dict[str, str] = {}
        self._packages: dict[str, str] = {}
        if entry_points:
            found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
            points = sorted(found, key=lambda p: p.name)
            reasons = left_out(points)
            for point in points:
                if point.dist is not None:
                    self._packages[point.name] = f"{point.dist.name} {point.dist.version}"
                if point.name in reasons:
                    self._fail(point.name, reasons[point.name])
                    continue
                try:
                    with not_for_others():
                        plugin = point.load()
                    self._manager.register(plugin, name=point.name)
                except Terminated:
                    raise
                except (Exception, SystemExit) as error:  # a foreign package may raise anything
                    self._fail(point.name, f"{type(error).__name__}: {error}")
        self._extra = tuple(extra)
        for plugin in self._extra:
            self._manager.register(plugin)

    def modules(self) -> tuple[str, ...]:
        """Names of the extra modules, which workers load as well.

        CollageError if an extra plugin is no importable module: a worker could not have it.
        """
        for plugin in self._extra:
            if not isinstance(plugin, ModuleType):
                raise CollageError(f"plugin {plugin!r} is no module: worker processes cannot import it")
        return tuple(p.__name__ for p in self._extra if isinstance(p, ModuleType))

    @cached_property
    def backends(self) -> dict[str, Backend]:
        """All backends by name (in lower case), core's own reference first."""
        from collage_core.reference import ReferenceBackend

        return self._named("collage_backends", Backend, [ReferenceBackend()])

    @cached_property
    def devices(self) -> dict[str, Device]:
        """All devices by name (in lower case), the CPU first."""
        return self._named("collage_devices", Device, [CpuDevice()])

    def device(self, name: str) -> Device:
        """The device of that name; CollageError, which lists the known ones, where there is none, and says
        why where it is not available.
        """
        device = self.devices.get(name.lower())
        if device is None:
            known = ", ".join(self.devices)
            raise CollageError(f"unknown device {name!r}; installed: {known}{self._failed}")
        if reason := device.info().reason:
            raise CollageError(f"device {device.name!r} is not available: {reason}")
        return device

    @cached_property
    def definitions(self) -> tuple[Definition, ...]:
        """What operators outside of ONNX compute, as far as plugins say it."""
        own: list[Definition] = []
        return tuple(self._named("collage_definitions", Definition, own).values())

    @cached_property
    def priors(self) -> tuple[Priors, ...]:
        """What kernels of backends reached elsewhere, as plugins bring it, in their order."""
        return tuple(self.brought("collage_priors", Priors))

    @cached_property
    def peers(self) -> dict[str, Peer]:
        """All peers by name (in lower case)."""
        return self._named("collage_peers", Peer, [])

    @cached_property
    def quantizers(self) -> dict[str, Quantizer]:
        """All libraries that quantise models, by name (in lower case)."""
        return self._named("collage_quantizers", Quantizer, [])

    def quantizer(self, name: str | None = None) -> Quantizer:
        """The one of that name, or the first that is available; CollageError where there is none, which says
        why.
        """
        known = ", ".join(sorted(self.quantizers)) or "none"
        if name is not None and name.lower() not in self.quantizers:
            raise CollageError(f"unknown quantizer {name!r}; installed: {known}{self._failed}")
        chosen = self.quantizers.values() if name is None else [self.quantizers[name.lower()]]
        reasons = [f"{q.name}: {q.info().reason}" for q in chosen if not q.info().available]
        for quantizer in chosen:
            if quantizer.info().available:
                return quantizer
        said = "; ".join(reasons) or "none that is installed brings one"
        raise CollageError(f"no quantizer is available ({said}){self._failed}")

    def brought(self, hook: str, kind: Any) -> list[Any]:
        """What the plugins' implementations of a hook return, all of `kind`."""
        return [thing for _, brought in self._brought(hook, kind) for thing in brought]

    def _brought(self, hook: str, kind: Any) -> Iterator[tuple[str, list[Any]]]:
        """The same, with each plugin's name; asked one by one: each may fail on its own."""
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            try:
                with not_for_others():
                    brought = list(implementation.function() or ())
                    for thing in brought:
                        if not isinstance(thing, kind):
                            raise TypeError(f"{hook} returned {thing!r}, which is no {kind.__name__}")
                        if isinstance(thing, Backend):
                            _require_contract(thing)
                        if isinstance(thing, Backend | Device | Peer | Quantizer):
                            _require_info(thing)  # which everybody asks for, and which must not fail then
            except Terminated:
                raise
            except (Exception, SystemExit) as error:  # as at import: it must cost only itself
                self._fail(implementation.plugin_name, f"{type(error).__name__}: {error}")
            else:
                yield implementation.plugin_name, brought

    def _named(self, hook: str, kind: Any, own: Sequence[_Named]) -> dict[str, _Named]:
        """Core's own and what plugins bring, by name (in lower case); nothing that several bring."""
        found = {thing.name.lower(): thing for thing in own}
        owners = {name: [(_CORE, _CORE)] for name in found}
        for plugin, things in self._brought(hook, kind):
            for thing in things:
                found.setdefault(thing.name.lower(), thing)
                package = self._packages.get(plugin, type(thing).__module__)
                owners.setdefault(thing.name.lower(), []).append((plugin, package))
        for name, several in owners.items():
            if len(several) > 1:
                if several[0][0] != _CORE:
                    del found[name]
                whose = " and ".join(package for _, package in several)
                for plugin, _ in several:
                    if plugin != _CORE:
                        self._fail(plugin, f"{whose} bring a {kind.__name__.lower()} named {name!r}")
        return found

    def _fail(self, plugin: str, what: str) -> None:
        if package := self._packages.get(plugin):
            what += f" ({package}; to do without it: pip uninstall {package.split()[0]})"
        self.failures.setdefault(plugin, what)

    def ask_all(self) -> None:
        """For everything that plugins bring, so that `failures` has whatever is wrong with any of it."""
        for brought in ("backends", "devices", "definitions", "peers", "priors", "quantizers"):
            getattr(self, brought)

    @property
    def _failed(self) -> str:
        """What to tell with a name that nobody knows: whoever is meant may be among those that failed."""
        return "".join(f"; plugin {plugin!r} failed: {why}" for plugin, why in self.failures.items())

    def backend(self, name: str) -> Backend:
        """The backend of that name, whatever its case; UnknownBackendError lists the known ones. By their
        names the transfers of devices are found, too.
        """
        if is_transfer(name):
            return self.transfers(name.removeprefix(transfers_name("")))
        try:
            return self.backends[name.lower()]
        except KeyError:
            raise UnknownBackendError(name, list(self.backends), self._failed) from None

    def transfers(self, device: str) -> Transfers:
        """Those of a device, by its name; CollageError as `device` says."""
        return Transfers(self.device(device))

    def converters(self, backends: Mapping[str, Backend], target: Target) -> dict[str, Backend]:
        """All that may convert values, by name: the backends given, and the transfers of each of the target's
        accelerators, whoever takes part.
        """
        transfers = map(self.transfers, target.accelerators)
        return {**backends, **{t.name: t for t in transfers}}

    def available(self, names: Iterable[str] | None = None) -> list[Backend]:
        """The named backends, or all that can run here; BackendError if a named one cannot."""
        if names is None:
            return [b for b in self.backends.values() if b.info().available]
        chosen = [self.backend(n) for n in names]
        for b in chosen:
            if reason := b.info().reason:
                raise BackendError(f"backend {b.name!r} is not available: {reason}")
        return chosen

    def peer(self, name: str) -> Peer:
        try:
            return self.peers[name.lower()]
        except KeyError:
            known = ", ".join(sorted(self.peers)) or "none"
            raise CollageError(f"unknown peer {name!r}; installed: {known}{self._failed}") from None

    def available_peers(self, names: Iterable[str] | None = None) -> list[Peer]:
        """The named peers, or all that can run here; CollageError if a named one cannot."""
        if names is None:
            return [p for p in self.peers.values() if p.info().available]
        chosen = [self.peer(n) for n in names]
        for p in chosen:
            if reason := p.info().reason:
                raise CollageError(f"peer {p.name!r} is not available: {reason}")
        return chosen


def _require_info(thing: Backend | Device | Peer | Quantizer) -> None:
    """TypeError where it is not what everybody takes it for."""
    info, kind = thing.info(), _INFO[next(k for k in _INFO if isinstance(thing, k))]
    if not isinstance(info, kind):
        raise TypeError(f"info() of {thing.name!r} returned {info!r}, which is no {kind.__name__}")
    if info.name.lower() != thing.name.lower():
        raise TypeError(f"{thing.name!r} is {info.name!r} by its info()")


def _require_contract(backend: Backend) -> None:
    """Raises BackendError where this core is too old for the backend, TypeError for no version."""
    if type(backend.contract) is not int:
        raise TypeError(f"backend {backend.name!r} needs contract {backend.contract!r}, which is no version")
    if backend.contract > CONTRACT:
        ours = f"{_CORE} {importlib.metadata.version(_CORE)}"
        raise BackendError(
            f"backend {backend.name!r} needs contract {backend.contract}, and {ours} has {CONTRACT}: "
            f"pip install --upgrade {_CORE}"
        )


@cache
def default_registry() -> Registry:
    """The registry of the installed packages and of the modules that COLLAGE_PLUGINS names (comma-separated),
    made once per process.
    """
    registry = Registry()
    for name in filter(None, map(str.strip, os.environ.get(PLUGINS_VARIABLE, "").split(","))):
        try:
            module = importlib.import_module(name)
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # as for entry points: it must cost only itself
            registry.failures[name] = f"{type(error).__name__}: {error}"
        else:
            if not registry._manager.is_registered(module):
                registry._manager.register(module)
    return registry


def backend_of(name: str, modules: Sequence[str]) -> Backend:
    """The installed backend of that name, or the one that one of these plugin modules brings.

    UnknownBackendError lists the known ones.
    """
    return registry_of(name, modules).backend(name)


def registry_of(name: str, modules: Sequence[str]) -> Registry:
    """That of the installed packages, or, where it does not know the backend of that name, with these plugin
    modules.
    """
    try:
        default_registry().backend(name)
    except CollageError:
        if modules:
            return Registry([importlib.import_module(m) for m in modules])
    return default_registry()
