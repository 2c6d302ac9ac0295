"""An executable that answers, and better ones that take its place as they are found."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from collage_core.background.agreeing import Answering
from collage_core.background.answers import Answers
from collage_core.background.gate import Closing, Gate
from collage_core.background.keeping import Kept
from collage_core.background.log import EventLog, warn_apart
from collage_core.background.opening import is_bundle, require_one
from collage_core.background.optimiser import Optimiser
from collage_core.background.options import READY, REFUSED, Background, BackgroundState
from collage_core.errors import CollageError, WorkerError
from collage_core.formats import Array
from collage_core.ir import TensorType
from collage_core.runtime import Executable, Loaded, backends_of
from collage_core.runtime.threads import OwnThreads, in_a_thread_that_ends, is_main_thread, own_threads
from collage_core.target import Target

__all__ = ["Improving"]

_LOOK_EVERY_S = 0.2
_FIRST_EVERY_S = 0.02


class Improving:
    """Answers requests as `Answering` does, with the best placement that has been found.

    A process of its own optimises while there are no requests, and stands still while there are (`Gate`).
    What it finds is opened here, slice by slice in the same pauses. It is held to the answer of what it is to
    replace, and takes over between two requests. A fork of this process steers nothing, and answers with what
    it has.

    path: of a model, or of a bundle, which `load` opens. make: what serves with an executable, run in these
    threads. threads: None for the bundle's, or all. A model's first answer is waited for. CollageError where
    there is none.
    """

    def __init__(
        self,
        path: str | Path,
        options: Background,
        load: Callable[[], Sequence[Loaded]],
        make: Callable[[Executable, OwnThreads], Answering],
        threads: int | None,
    ) -> None:
        self._options = options
        self._owner = os.getpid()
        self._is_over = self._is_warned = self._is_closed = self._has_let_go = False
        self._closing = threading.RLock()
        self._door: OwnThreads | None = OwnThreads(1)
        """In which requests of the main thread pass the gate: see `Gate`. None once it is closed."""
        self._first: SimpleQueue[Exception | None] = SimpleQueue()
        """Why there is no first answer, or None once there is one."""
        self._failure: str | None = None
        """Why nothing more is looked for, where it was to be."""
        self._is_through = False
        """Whether what was found last has taken over, too."""
        self._state = BackgroundState("running")
        self._note = ""
        """What was last said of the phase: what is waited for, say."""
        self._next: Mapping[str, Any] | None = None
        """The last of what was found that has not been tried."""
        source = Path(path).absolute()
        is_made = is_bundle(source)
        options.require_places(source, is_bundle=is_made)
        if is_made:
            bundle = require_one(source, options)
            (loaded,) = load()
            self._answers = Answers(make, loaded.threads, loaded.executable, bundle.placement.digest)
        else:
            self._answers = Answers(make, own_threads(threads or Target.default().threads))
        self._log = EventLog(options.log)
        try:
            self._optimiser = Optimiser(self._log)
        except BaseException:
            self._answers.close()
            self._log.close()
            raise
        self._gate = Gate(self._optimiser.tree, options.idle_s, self._log)
        wanted = options.for_another_process()
        self._kept = Kept(wanted.output)
        self._threads = [
            threading.Thread(
                target=self._optimise, args=(source, wanted, threads), name="collage-optimise", daemon=True
            ),
            threading.Thread(target=self._attend, name="collage-background", daemon=True),
        ]
        atexit.register(self.close)
        try:
            for thread in [*self._threads]:
                thread.start()
            if not is_made and (error := self._first.get()) is not None:
                raise error
        except BaseException:
            self.close()
            raise

    @property
    def executable(self) -> Executable:
        """What answers now."""
        return self._answers.now.executable

    @property
    def state(self) -> BackgroundState:
        """As it is now."""
        state = self._state
        if state.state == "running" and self._is_over and self._failure is not None:
            state = replace(state, state="failed", reason=self._failure)
        return self._optimiser.seen_in(state)

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Of what answers now, and so of all that may take over."""
        return self.executable.inputs

    @property
    def outputs(self) -> Mapping[str, TensorType]:
        """As `inputs`."""
        return self.executable.outputs

    @property
    def buffers(self) -> Mapping[str, TensorType]:
        """As `inputs`: of the arrays that outputs are written into."""
        return self.executable.buffers

    def of(self, inputs: object) -> Improving:
        """As of `Profiles`: there is one shape."""
        return self

    def chosen(self, shapes: object) -> Improving:
        """As of `Profiles`: there is one shape."""
        return self

    def backends(self) -> list[str]:
        """As of `Profiles`."""
        return backends_of([self.executable])

    def run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """A request. Nothing is measured or built meanwhile. Returns what is valid of the outputs."""
        door = self._door
        if door is None or (self._is_through and not self._log.is_kept) or os.getpid() != self._owner:
            return self._answers.now.run(inputs, outputs)
        arrived_s = time.monotonic()
        if not is_main_thread():
            return self._let_in(inputs, outputs, arrived_s)
        return door.run(lambda: self._let_in(inputs, outputs, arrived_s))

    def _let_in(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], arrived_s: float
    ) -> dict[str, Array]:
        with self._gate.request(arrived_s):
            return self._answers.run(inputs, outputs)

    def close(self) -> None:
        """End what optimises, and let go of kernels and buffers. May be called twice, by a signal's handler
        whatever that has interrupted, and by a fork, which ends nothing.
        """
        if os.getpid() != self._owner:
            return
        if threading.current_thread() in self._threads or self._answers.is_own_thread:
            self.close_apart()  # this thread is waited for
        elif is_main_thread():
            try:
                in_a_thread_that_ends(self._close)
            except CollageError:  # there is room for none, as at the end of the interpreter
                self._close()
        else:
            self._close()

    def _close(self) -> None:
        with self._closing:  # who closes it as well waits until it is closed
            if self._has_let_go:
                return
            self._is_closed = True
            self._gate.close()
            self._optimiser.interrupt()
            for thread in [*self._threads]:
                if thread.is_alive() and thread is not threading.current_thread():
                    thread.join()
            self._optimiser.kill()
            self._gate.end_tree()
            self._keep(nullcontext)  # what has taken over just now
            self._kept.close()
            self._state = replace(self._state, state="closed")
            self._log.add("closed")
            self._answers.close()
            self._door = None
            self._has_let_go = True
            self._log.close()
            atexit.unregister(self.close)  # not before: who is interrupted here leaves the rest to the end

    def close_apart(self) -> None:
        """As `close`, in a thread of its own: a session that nobody holds may be collected anywhere, in the
        midst of what `close` waits for.
        """
        if os.getpid() == self._owner and not self._has_let_go:
            with suppress(RuntimeError):  # at the end of the interpreter, which closes it by itself
                # A daemon: to start another one takes a lock that may be held where this is collected.
                threading.Thread(target=self.close, name="collage-close", daemon=True).start()

    def _begin(self) -> None:
        """With the first placement that is found and can be opened."""
        end_s = time.monotonic() + self._options.first_limit_s
        while not self._answers.has_begun:
            self._gate.wait()
            is_over = self._is_over
            self._listen()
            if self._next is not None:
                self._swap_apart({**self._next, "longest_s": 0.0})  # nobody can ask yet
            elif is_over:
                reason = self._failure or self._state.reason
                raise CollageError(reason or "nothing was found that answers")
            elif time.monotonic() > end_s:
                doing = self._note or self._state.phase or "starting"
                raise CollageError(
                    f"no first answer within {self._options.first_limit_s:g} s, while: {doing}"
                )
            else:
                self._gate.go_on(_FIRST_EVERY_S)  # it was stopped for what has been refused

    def _optimise(self, source: Path, wanted: Background, threads: int | None) -> None:
        """In a thread: wait for the process that does."""
        try:
            self._optimiser.call(_improve, source, wanted, threads)
        except WorkerError as error:
            self._failure = self._failure or str(error)
        except Exception as error:  # options that no process can be given, among others
            self._failure = self._failure or f"{type(error).__name__}: {error}"
        if not self._is_closed:
            self._gate.end_tree()
        self._is_over = True
        self._warn()

    def _warn(self) -> None:
        """Once, that nothing more is looked for, where it was to be."""
        if self._failure is None or self._is_warned or self._is_closed or not self._answers.has_begun:
            return
        self._is_warned = True
        warnings.warn(f"optimising in the background has ended: {self._failure}", stacklevel=1)

    def _attend(self) -> None:
        """In a thread: while there are no requests, let the process go on, and open what it has found."""
        try:
            self._begin()
        except Exception as error:
            self._first.put(error)
            return
        self._first.put(None)
        try:
            self._go_on()
        except Closing:
            pass
        except Exception as error:  # no thread can be started, say: the process would stand still for ever
            self._failure = self._failure or f"{type(error).__name__}: {error}"
            self._optimiser.interrupt()
            self._threads[0].join()
            self._end()
            self._warn()

    def _go_on(self) -> None:
        """Once there is a first answer, until there is nothing more to do."""
        while True:
            self._gate.wait()
            is_over = self._is_over
            self._listen()
            self._keep(self._gate.work)
            found = self._next
            if found is None and is_over:
                self._end()
                return
            # Nobody knows how long it stays quiet; as long again as it has been is a fair guess.
            left_s = math.inf if found is None else found["longest_s"] - self._gate.quiet_s
            if found is not None and left_s <= 0.0:
                self._swap_apart(found)
            else:  # looking later than that would miss the silence between requests that come regularly
                self._gate.go_on(min(_LOOK_EVERY_S, left_s))

    def _end(self) -> None:
        """What was found last has taken over, or has been refused."""
        if self._failure is None:
            self._kept.allow()
            self._keep(self._gate.work)
        self._optimiser.close()
        if self._failure is not None:
            self._state = replace(self._state, state="failed", reason=self._failure)
        else:
            self._state = replace(self._state, state="finished")
        self._log.add(self._state.state, reason=self._failure)
        self._is_through = True

    def _listen(self) -> None:
        for event in self._optimiser.news():
            if event["event"] == READY:
                if self._next is not None:
                    self._kept.forget(self._next["path"])
                self._next = None if event["digest"] == self._answers.digest else event
                if self._next is None:
                    self._kept.answers(event["path"])
                    self._state = replace(self._state, latency_ms=event["latency_ms"])
            elif event["event"] == "phase":
                self._state, self._note = replace(self._state, phase=event["name"]), ""
            elif event["event"] == "note":
                self._note = event["text"]
            elif event["event"] == REFUSED:
                self._note = event["reason"]
                self._state = replace(self._state, reason=event["reason"])
            self._log.copy(event)

    def _keep(self, working: Callable[[], AbstractContextManager[None]]) -> None:
        """What answers, in slices of work. Where that cannot be written, requests go on."""
        try:
            self._kept.keep(working)
        except CollageError as error:
            reason = f"what was found in the background is not kept: {error}"
            self._log.add("note", text=reason)
            warn_apart(reason)

    def _swap_apart(self, found: Mapping[str, Any]) -> None:
        """In a thread that ends with it: see `OwnThreads`."""
        self._threads.append(threading.Thread(target=self._swap_until_closed, args=(found,), daemon=True))
        try:
            self._threads[-1].start()
            self._threads[-1].join()
        finally:
            self._threads.pop()

    def _swap_until_closed(self, found: Mapping[str, Any]) -> None:
        with suppress(Closing):
            self._swap(found)

    def _swap(self, found: Mapping[str, Any]) -> None:
        """Open what was found, and let it take over, unless it fails or answers otherwise."""
        self._next = None
        is_first = not self._answers.has_begun
        try:
            # A request may wait for a slice: each is begun after as long a silence as it may last.
            with self._gate.work(found["longest_s"]):
                reason = self._answers.take_over(found, self._gate.between)
        except Closing:
            raise
        except Exception as error:  # a vendor's library may raise anything; what answers goes on
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self._kept.forget(found["path"])
        else:
            self._kept.answers(found["path"])
            if not is_first:
                self._kept.allow()
        facts = {name: found[name] for name in ("digest", "label", "latency_ms", "stage")}
        self._log.add("swap" if reason is None else REFUSED, reason=reason, **facts)
        self._state = replace(self._state, reason=reason)
        if reason is None:
            swaps = self._state.swaps + 1
            self._state = replace(
                self._state, label=found["label"], latency_ms=found["latency_ms"], swaps=swaps
            )


def _improve(source: Path, wanted: Background, threads: int | None, events: str) -> None:
    """In the worker, which alone imports what optimises."""
    from collage_core.background.child import improve

    improve(source, wanted, threads, events)
