"""The checks of a backend, as a class of tests to run or to derive from."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from collage_conformance.groups import Group, groups_of, other_inputs, readable
from collage_conformance.samples import Sample, chains, samples_of
from collage_conformance.subject import Subject
from collage_core.backend import BackendKind, plain_variant
from collage_core.errors import CollageError, Refusal
from collage_core.ir import NodeSet, Subgraph
from collage_core.patterns import BackendPattern
from collage_core.rules import PatternRule
from collage_core.testing import NothingBuiltError, check_group

__all__ = ["CHAINS", "Conformance", "required_operators"]

CHAINS = 20
"""Random models of several operators."""
_TOLD = 5
"""So many faults of one test are told."""
_PROCESS_LIMIT_S = 600.0
_GRACE_S = 2.0
_NOTHING = "it builds nothing of what is at hand, or too slowly to tell"

_LIMITS = ("==", "===", "~=", "<", "<=")
"""Signs that leave out versions that are not there yet."""

_VARIABLES = dict(os.environ)
_ALLOWED, _BLOCKED = os.sched_getaffinity(0), signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""As they are before any backend was asked for anything in this process, which may have changed them."""

Record = Callable[[str, object], None]


class Conformance:
    """Derive from it, and name the backend::

        class TestNegate(Conformance):
            backend = "negate"

    backend: its name; that of the option `--collage-backend` where it is empty. threads: what it is told to
    run on. cases: of each operator so many samples from each source at most, all where None; the option
    `--collage-cases` where that is given. tolerances: largest errors by dtype, where smaller than core's.
    repeatable: whether a kernel answers the same twice, to the last bit (`collage_core.testing.check_group`).
    """

    backend: ClassVar[str] = ""
    cases: ClassVar[int | None] = None
    threads: ClassVar[int] = min(2, len(os.sched_getaffinity(0)))
    tolerances: ClassVar[Mapping[str, float]] = {}
    repeatable: ClassVar[bool] = True

    def samples(self) -> Iterable[Sample]:
        """Models of your own to look for groups in; none, unless you say so."""
        return ()

    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        name = request.cls.backend or request.config.getoption("collage_backend")
        if not name:
            pytest.skip("name a backend: --collage-backend=NAME")
        return _subject(name, request.cls.threads)

    # The package

    def test_package(self, subject: Subject) -> None:
        """It says which core it works with, and the backend's version is its own."""
        package = subject.distribution
        if package is None:
            pytest.skip("no package brings it: it is found by COLLAGE_PLUGINS")
        needed = [r for r in map(Requirement, package.requires or ()) if r.marker is None]
        ours = [r for r in needed if canonicalize_name(r.name) in ("collage-core", "collage-run")]
        _require(ours, f"{package.name} requires neither collage-core nor collage-run")
        for r in ours:
            is_limited = any(s.operator in _LIMITS for s in r.specifier)
            _require(
                is_limited, f"{package.name} works with any later {r.name}: it should name those it knows"
            )
        told = subject.backend.info().version
        _require(
            told == package.version, f"info() tells version {told!r}, {package.name} is {package.version}"
        )

    def test_discovery(self, subject: Subject, tmp_path: Path) -> None:
        """Asked what it is and what it offers it loads no library, prints nothing and changes nothing."""
        _tell(self._in_a_process("discovery", subject, tmp_path))

    # What it says

    def test_declarations(self, subject: Subject) -> None:
        """Its name, kind, devices, environment, patterns and rules are what core takes them for."""
        backend = subject.backend
        info, name = backend.info(), backend.name
        _require(
            name == name.lower() and name.isidentifier(), f"its name is {name!r}: not a lower-case identifier"
        )
        _require(info.name == name, f"its name is {name!r}, and by info() {info.name!r}")
        _require(info == backend.info(), "info() tells something else the second time")
        kinds = BackendKind.OPERATOR, BackendKind.GRAPH
        _require(info.kind in kinds, f"its kind is {info.kind}, which is core's own")
        _require(bool(info.library_version), "it is available, and tells no version of its library")
        _require(bool(info.devices), "it runs on no device")
        for ask in (backend.environment, backend.environment_beside):
            variables, said = ask(subject.target), f"{ask.__name__}()"
            texts = all(isinstance(t, str) for pair in variables.items() for t in pair)
            _require(texts, f"{said} returns {dict(variables)!r}: texts by text are wanted")
            _require(variables == ask(subject.target), f"{said} says something else each time")
        for kind, offered in ((BackendPattern, backend.patterns()), (PatternRule, backend.rules())):
            for one in offered:
                _require(isinstance(one, kind), f"{one!r} is no {kind.__name__}")
                _require(one.backend == name, f"{kind.__name__} {one.name!r} is of backend {one.backend!r}")

    def test_declines(self, subject: Subject, operator: str) -> None:
        """What it does not take it declines, whatever it is, and raises nothing."""
        backend, target, faults = subject.backend, subject.target, []
        for sample in samples_of(operator, 1):
            if (graph := readable(sample)) is None:
                continue
            for n in graph.nodes:
                group = Subgraph(graph, NodeSet([n.id]))
                odd = replace(plain_variant(group), options=(("no such option", "1"),))
                try:
                    backend.variants(group, target)
                    if not isinstance(backend.refusal(group, odd, target), Refusal):
                        faults.append(f"{group}, {sample.name}: it would build {odd}, which nobody offers")
                except Exception as error:  # what must not be
                    faults.append(f"{group}, {sample.name}: {type(error).__name__}: {error}")
        _tell(faults)

    # What it computes

    def test_operator(
        self,
        subject: Subject,
        operator: str,
        request: pytest.FixtureRequest,
        record_property: Record,
    ) -> None:
        """Everything that it offers for an operator, alone, is right."""
        most = request.config.getoption("collage_cases") or self.cases
        groups = _distinct(subject, samples_of(operator, most))
        nothing = f"it takes no {operator}"
        checked = self._check(subject, groups, record_property)
        _require(checked or operator not in required_operators(request.config), nothing)
        _skip_unless(checked, nothing)

    def test_chain(self, subject: Subject, chain: int, record_property: Record) -> None:
        """So is what it offers for several operators in a row."""
        checked = self._check(subject, _distinct(subject, [chains(chain)]), record_property)
        _skip_unless(checked, "it takes nothing of this one")

    def test_own_samples(self, subject: Subject, record_property: Record) -> None:
        """And in your own models (`samples`)."""
        given = list(self.samples())
        _skip_unless(given, "there are none")
        _require(self._check(subject, _distinct(subject, given), record_property), "it takes nothing of them")

    # What it does to the process

    def test_growth(self, subject: Subject, tmp_path: Path) -> None:
        """Five hundred kernels that were built and dropped leave nothing behind."""
        _tell(self._in_a_process("growth", subject, tmp_path))

    def test_threads(self, subject: Subject, tmp_path: Path) -> None:
        """No more threads run than it was told, and on one thread one."""
        for threads in sorted({1, self.threads}):
            told = replace(subject, target=replace(subject.target, threads=threads))
            _tell(self._in_a_process("threads_used", told, tmp_path))

    def test_quiet(self, subject: Subject, tmp_path: Path) -> None:
        """Nothing runs on when its calls have returned."""
        _tell(self._in_a_process("quiet", subject, tmp_path))

    def test_manners(self, subject: Subject, tmp_path: Path) -> None:
        """Signal handlers, locale, rounding and whatever else the process has stay as they were."""
        _tell(self._in_a_process("manners", subject, tmp_path))

    # How it is measured and used

    def test_keys(self, subject: Subject, tmp_path: Path) -> None:
        """What its costs are kept under is the same in every process."""
        one, other = (self._in_a_process("keys", subject, tmp_path, seed) for seed in ("1", "2"))
        pairs = itertools.zip_longest(one, other, fillvalue="nothing")
        _tell([f"{a} in one process, {b} in another" for a, b in pairs if a != b])

    def test_end_to_end(self, subject: Subject, tmp_path: Path) -> None:
        """Models are placed on it, answered in a worker, saved, loaded and answered again."""
        _tell(self._in_a_process("end_to_end", subject, tmp_path))

    # How

    def _check(self, subject: Subject, groups: list[Group], record: Record) -> int:
        """How many were built; AssertionError where one was wrong."""
        faults, checked = [], 0
        for group in groups:
            try:
                check_group(
                    subject.backend,
                    group.subgraph,
                    group.inputs,
                    subject.target,
                    other_inputs=other_inputs(group.subgraph, group.inputs),
                    tolerances=self.tolerances,
                    repeatable=self.repeatable,
                )
            except NothingBuiltError:
                continue
            except AssertionError as error:
                faults.append(f"{error} ({group.origin}, {group.sample.name})")
            checked += 1
        record("groups", checked)
        _tell(faults)
        return checked

    def _in_a_process(self, check: str, subject: Subject, folder: Path, seed: str = "0") -> list[str]:
        file = folder / f"{check}.json"
        file.unlink(missing_ok=True)
        arguments = [check, subject.backend.name, str(subject.target.threads), str(file)]
        variables = {**_VARIABLES, **subject.backend.environment(subject.target), "PYTHONHASHSEED": seed}
        # Not by pipes, which whatever it starts and leaves would hold open.
        output, errors = folder / "output", folder / "errors"
        with output.open("w") as out, errors.open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "collage_conformance.kernels", *arguments],
                env={**variables, "TMPDIR": tempfile.mkdtemp(dir=folder)},
                stdout=out,
                stderr=err,
                preexec_fn=_as_at_first,
                start_new_session=True,
            )
            try:
                status = process.wait(_PROCESS_LIMIT_S)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"it hangs: {check} took more than {_PROCESS_LIMIT_S:g} s") from None
            finally:
                are_left = _end(process)
        if status or not file.exists():
            last = "; ".join(errors.read_text(errors="replace").strip().splitlines()[-3:])
            raise AssertionError(f"the process ends with status {status}: {last}")
        written = output.read_text(errors="replace")
        _require(not written, f"it writes to standard output: {written[:200]!r}")
        told = json.loads(file.read_text())
        _skip_unless(told is not None, _NOTHING)
        return [*told, *(["it leaves processes running"] if are_left else [])]


def _end(process: subprocess.Popen[bytes]) -> bool:
    """End all that it has started. Whether anything went on when it had ended, and some time later."""
    end_s = time.monotonic() + _GRACE_S
    try:
        while process.poll() is not None and time.monotonic() < end_s:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        process.wait()
    return True


def _as_at_first() -> None:
    os.sched_setaffinity(0, _ALLOWED)
    signal.pthread_sigmask(signal.SIG_SETMASK, _BLOCKED)


@functools.cache
def _subject(name: str, threads: int) -> Subject:
    try:
        return Subject.named(name, threads)
    except CollageError as error:
        pytest.fail(str(error), pytrace=False)


def _distinct(subject: Subject, samples: Iterable[Sample]) -> list[Group]:
    """Groups of one sample that the same kernels serve are checked once."""
    found: Iterator[Group] = itertools.chain.from_iterable(groups_of(subject, s) for s in samples)
    return list({(g.sample.name, g.subgraph.key): g for g in found}.values())


def required_operators(config: pytest.Config) -> frozenset[str]:
    """Those that a backend must take, as the person says who runs the kit."""
    return frozenset(filter(None, map(str.strip, config.getoption("require_delegated").split(","))))


def _require(holds: object, fault: str) -> None:
    if not holds:
        raise AssertionError(fault)


def _skip_unless(looked_at: object, reason: str) -> None:
    if not looked_at:
        pytest.skip(reason)


def _tell(faults: list[str]) -> None:
    if faults:
        more = [f"and {len(faults) - _TOLD} more"] if len(faults) > _TOLD else []
        raise AssertionError("\n".join([*faults[:_TOLD], *more]))
