"""Checks of a backend in a process of its own: what it does to the process, and what its kernels leave there.

python -m collage_conformance.kernels CHECK BACKEND THREADS FILE

writes what is wrong, a list of lines, as JSON; null where there was nothing to look at.
"""

from __future__ import annotations

import bz2
import ctypes
import gc
import hashlib
import itertools
import json
import locale
import logging
import lzma
import os
import random
import resource
import signal
import sqlite3
import ssl
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from collage_conformance.groups import Group, specimens
from collage_conformance.samples import Sample
from collage_conformance.subject import Subject, target_of
from collage_core import Bundle, load, save
from collage_core.backend import BackendKind, Bound, Variant
from collage_core.candidates import Taken, generate_candidates
from collage_core.costs import environment_of
from collage_core.errors import DeclinedError, Refusal
from collage_core.formats import Array
from collage_core.ir import NodeSet, from_model
from collage_core.onnx_backend import OnnxBackend
from collage_core.plugins import default_registry
from collage_core.reference import ReferenceBackend, evaluate
from collage_core.target import Target
from collage_core.testing import NothingBuiltError, bind, make_model, node

__all__ = ["CHECKS"]

_PYTHONS_OWN = (bz2, ctypes, hashlib, lzma, sqlite3, ssl)
"""What these load is nobody's library."""
_BUILDS, _FIRST_BUILDS, _BUILDS_BETWEEN = 500, 100, 50
_BUILDING_LIMIT_S = 60.0
_MOST_GROWTH = (("KiB of memory", 16 << 20, 1024), ("open file(s)", 20, 1), ("thread(s)", 20, 1))
"""Of what `_held` tells, how much more there may be in the end, and the unit that it is told in."""
_TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
_LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
_BUSY_S, _GRACE_S, _QUIET_S = 1.0, 0.5, 0.5
_MOST_QUIET_S = 0.05
_ERROR = 1e-4
_FURTHER_THREADS = 0.2
"""So many more may have run, by processor seconds over seconds: what starts and ends them counts, too."""


def discovery(name: str, threads: int) -> list[str]:
    """Asked what it is and what it offers, it loads no library and changes nothing in the process."""
    x = np.ones((3, 5), np.float32)
    model = make_model([node("MatMul", ["x", "w"], "y")], {"x": x}, {"w": x.T.copy()})
    sample = Sample("product", model, {"x": x})
    _offers(Subject(ReferenceBackend(), Target("cpu", threads), None), sample)  # what core loads for this
    loaded, state = _mapped(), _state()
    backend = default_registry().backend(name)
    target = target_of(backend, threads)
    for ask in (backend.info, backend.patterns, backend.rules, lambda: backend.environment(target)):
        ask()
    backend.environment_beside(target)
    _offers(Subject(backend, target, None), sample)
    faults = [f"it loads {path}" for path in sorted(_mapped() - loaded)]
    return faults + _changes(state, {})


def growth(name: str, threads: int) -> list[str]:
    """Kernels that are built, run and dropped again and again leave nothing behind: no memory, no open file,
    no thread.
    """
    faults, looked = [], False
    for build, where in _builders(name, threads)[:2]:
        begun_s, held = time.monotonic(), []
        for number in range(_BUILDS):
            build()()
            if number >= _FIRST_BUILDS and number % _BUILDS_BETWEEN == 0:
                gc.collect()
                held.append(_held())
            if time.monotonic() - begun_s > _BUILDING_LIMIT_S:
                break
        looked = looked or len(held) > 1
        for what, most, unit in _MOST_GROWTH if len(held) > 1 else ():
            grown = held[-1][what] - held[0][what]
            if grown > most:
                each = grown / (_BUILDS_BETWEEN * (len(held) - 1))
                faults.append(f"{where}: each build leaves {round(each / unit, 1):g} {what} behind")
    if not looked:
        raise NothingBuiltError
    return faults


def threads_used(name: str, threads: int) -> list[str]:
    """No more threads run than it was told."""
    faults = []
    for build, where in _builders(name, threads):
        call = build()
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        while (took_s := time.monotonic() - begun_s) < _BUSY_S:
            call()
        used = (time.process_time() - begun_cpu_s) / took_s
        if used > threads + _FURTHER_THREADS:
            faults.append(f"{where}: {used:.1f} threads ran, of {threads}")
    return faults


def quiet(name: str, threads: int) -> list[str]:
    """Nothing runs on when a call has returned; half a second later at the latest."""
    faults = []
    for build, where in _builders(name, threads):
        call = build()
        for _ in range(20):
            call()
        time.sleep(_GRACE_S)
        begun_s = time.process_time()
        time.sleep(_QUIET_S)
        if (used_s := time.process_time() - begun_s) > _MOST_QUIET_S:
            faults.append(
                f"{where}: its threads ran for {used_s:.2f} s of {_QUIET_S:g} s after its last call"
            )
    return faults


def manners(name: str, threads: int) -> list[str]:
    """A kernel that is built and run leaves the process as it was, but for what its device has changed when
    it was opened: that is the driver's.
    """
    subject = Subject.named(name, threads)
    for device in subject.target.accelerators:
        default_registry().device(device).queue().synchronize()
    state, declared = _state(), subject.backend.environment(subject.target)
    for build, _ in _builders(name, threads):
        call = build()
        for _ in range(3):
            call()
    return _changes(state, declared)


def keys(name: str, threads: int) -> list[str]:
    """Told, not wrong: what costs are kept under, for the same in another process."""
    subject = Subject.named(name, threads)
    environment = environment_of(subject.backend, subject.target)
    told = [f"its environment's {name} is {environment[name]!r}" for name in sorted(environment)]
    for group in specimens(subject):
        offered = subject.backend.variants(group.subgraph, subject.target)
        variants = [] if isinstance(offered, Refusal) else [str(v) for v in offered]
        told.append(f"{group.subgraph.key} {group.origin} {variants}")
    return told


def end_to_end(name: str, threads: int) -> list[str]:
    """Models are placed on it, answered in a worker, saved, loaded and answered again, here."""
    subject = Subject.named(name, threads)
    accelerators = subject.target.accelerators
    faults, used, groups = [], False, specimens(subject)
    with closing(OnnxBackend.for_backends(name)) as kind, tempfile.TemporaryDirectory() as folder:
        for group in groups:
            graph, inputs = group.subgraph.graph, group.inputs
            expected = evaluate(graph, inputs, keep=graph.outputs)
            placed = kind.prepare(group.sample.model, threads=threads, accelerators=accelerators)
            given = [np.asarray(inputs[v]) for v in graph.inputs]
            answers = [("placed", dict(zip(graph.outputs, placed.run(given), strict=True)))]
            faults += placed.notes
            for number, (its_graph, placement) in enumerate(placed.placements):
                used = used or any(g.backend == subject.backend.name for g in placement.groups)
                path = Path(folder, f"{number}.collage")
                save(Bundle(its_graph, placement), path)
                answers.append(("loaded", load(path)(dict(inputs))))
            for where, found in answers:
                wrong = [v for v in expected if not _near(found[v], expected[v])]
                faults += [f"{group}, {where}: {v} is wrong" for v in wrong]
    if not groups:
        raise NothingBuiltError
    return faults if used else [*faults, "nothing was placed on it"]


def _near(found: Array, expected: Array) -> bool:
    """Whole numbers and truth values are the same."""
    if expected.dtype.kind != "f" or found.dtype != expected.dtype:
        return bool(np.array_equal(found, expected))
    finite = np.abs(expected[np.isfinite(expected)])
    return bool(np.allclose(found, expected, rtol=0.0, atol=_ERROR * finite.max(initial=0.0), equal_nan=True))


CHECKS: Mapping[str, Callable[[str, int], list[str]]] = {
    f.__name__: f for f in (discovery, growth, threads_used, quiet, manners, keys, end_to_end)
}


def _offers(subject: Subject, sample: Sample) -> None:
    """All that may be asked where its library must not be loaded."""
    graph, backend = from_model(sample.model), subject.backend
    is_graph = backend.info().kind is BackendKind.GRAPH
    taken = {backend.name: Taken(NodeSet(n.id for n in graph.nodes))} if is_graph else {}
    generate_candidates(graph, [backend], subject.target, taken=taken)


def _builders(name: str, threads: int) -> list[tuple[Callable[[], Bound], str]]:
    """For each specimen what builds its first variant on each device that is not declined, bound to buffers
    and inputs.

    NothingBuiltError where there is none.
    """
    subject = Subject.named(name, threads)
    found = []
    for group in specimens(subject):
        offered = subject.backend.variants(group.subgraph, subject.target)
        seen: set[str] = set()
        for variant in [] if isinstance(offered, Refusal) else offered:
            if variant.device in seen:
                continue
            build = _builder(subject, group, variant)
            try:
                build()()
            except DeclinedError:
                continue
            found.append((build, f"{group}, {variant}"))
            seen.add(variant.device)
    if not found:
        raise NothingBuiltError
    return found


def _builder(subject: Subject, group: Group, variant: Variant) -> Callable[[], Bound]:
    values = evaluate(group.subgraph.graph, group.inputs, keep=group.subgraph.inputs)

    def build() -> Bound:
        kernel = subject.backend.build(group.subgraph, variant, subject.target)
        bound = bind(kernel, group.subgraph, variant, values)
        queue = bound.stations[variant.device].queue

        def call() -> object:
            code = bound.call()
            queue.synchronize()
            return code

        return call

    return build


def _mapped() -> set[str]:
    """Shared libraries that are mapped, but Python's own modules."""
    own = sysconfig.get_path("platstdlib")
    paths = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    return {p for p in paths if ".so" in Path(p).name and not p.startswith(f"{own}/lib-dynload")}


def _held() -> Mapping[str, int]:
    """What this process has of the system; of memory the bytes that are resident."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files, threads = (len(os.listdir(f"/proc/self/{folder}")) for folder in ("fd", "task"))
    found = pages * os.sysconf("SC_PAGE_SIZE"), files, threads
    return dict(zip((what for what, _, _ in _MOST_GROWTH), found, strict=True))


def _state() -> dict[str, object]:
    umask = os.umask(0)
    os.umask(umask)
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    tiny = np.float32(1e-40)
    return {
        "which signals have handlers": _signals(status["SigCgt"]),
        "which signals are ignored": _signals(status["SigIgn"]),
        "which signals are blocked": _signals(status["SigBlk"]),
        "Python's signal handlers": tuple(signal.getsignal(s) for s in sorted(signal.valid_signals())),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the processors that may be used": os.sched_getaffinity(0),
        "the working folder": os.getcwd(),
        "the umask": umask,
        "whether subnormal numbers are zero": bool(tiny * np.float32(0.5) == 0),
        "how numbers are rounded": (
            float(np.float32(1) / np.float32(3)),
            float(np.float32(-1) / np.float32(3)),
        ),
        "NumPy's handling of errors": str(np.geterr()),
        "Python's random numbers": hash(random.getstate()),
        "a timer that will send a signal": [signal.getitimer(t) != (0.0, 0.0) for t in _TIMERS],
        "how warnings are shown": list(warnings.filters),
        "where Python looks for modules": list(sys.path),
        "Python's logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "what is done with exceptions that nobody catches": sys.excepthook,
        "how deep Python may recurse": sys.getrecursionlimit(),
        "limits of the process": [resource.getrlimit(getattr(resource, name)) for name in _LIMITS],
        "the process's priority": os.getpriority(os.PRIO_PROCESS, 0),
        "temporary files": sorted(os.listdir(tempfile.gettempdir())),
        "NumPy's random numbers": np.random.get_state()[1].tobytes(),  # type: ignore[index]
        "whether Python collects garbage": gc.isenabled(),
        "the environment": {**os.environ, **_variables_of_c()},
    }


def _variables_of_c() -> dict[str, str]:
    """Those that a library has set, too, of which Python does not know."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    set_ = itertools.takewhile(lambda entry: entry is not None, (entries[i] for i in itertools.count()))
    pairs = (os.fsdecode(entry).partition("=") for entry in set_ if entry is not None)
    return {name: value for name, _, value in pairs}


def _signals(mask: str) -> int:
    """Without 32 and 33, which glibc takes for itself when the first thread of a process is started."""
    return int(mask, 16) & ~(0b11 << 31)


def _which(before: object, after: object) -> str:
    """The numbers of signals that have changed."""
    if type(before) is not int or type(after) is not int:
        return ""
    changed = before ^ after
    return f" ({', '.join(str(n + 1) for n in range(changed.bit_length()) if changed >> n & 1)})"


def _changes(before: Mapping[str, object], declared: Mapping[str, str]) -> list[str]:
    after = _state()
    was, now = before["the environment"], after["the environment"]
    assert isinstance(was, dict)
    assert isinstance(now, dict)
    variables = [k for k in {*was, *now} if was.get(k) != now.get(k) and k not in declared]
    faults = [
        f"it changes {what}{_which(before[what], after[what]) if 'signals' in what else ''}"
        for what in before
        if what != "the environment" and before[what] != after[what]
    ]
    return faults + [f"it sets the variable {v}" for v in sorted(variables)]


if __name__ == "__main__":
    _check, _name, _threads, _file = sys.argv[1:]
    try:
        _told: list[str] | None = CHECKS[_check](_name, int(_threads))
    except NothingBuiltError:
        _told = None
    Path(_file).write_text(json.dumps(_told))
