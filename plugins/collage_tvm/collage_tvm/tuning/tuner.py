"""The search: MetaSchedule proposes schedules, `trial` times them, its cost model learns from it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import tvm
import tvm.s_tir.meta_schedule as ms
from tvm.s_tir.meta_schedule.database import TuningRecord
from tvm.s_tir.meta_schedule.runner import RunnerResult

from collage_core.backend import Tuned, Variant
from collage_core.errors import BackendError
from collage_core.ir import Subgraph
from collage_core.target import Target
from collage_tvm.host import tvm_target
from collage_tvm.tuning.kernel import module_of, workload_hash
from collage_tvm.tuning.records import BEST, Best, Schedule, read_best, write_best
from collage_tvm.tuning.trial import Trials
from collage_tvm.tuning.workload import workload_of

__all__ = ["Search", "trials_in"]

_WORKLOADS, _RECORDS = "workloads.json", "records.json"
_BATCH = 16
_POPULATION, _GENERATIONS = 128, 3
"""A quarter of what MetaSchedule takes by itself: its proposals then cost less time than trying them."""
_FAILED_S = 1e10
"""What MetaSchedule takes for the time of a schedule that does not run."""
_UNLIMITED = 1 << 30


def trials_in(folder: Path) -> int:
    """How many schedules were tried for the kernel of this folder."""
    with suppress(OSError):
        return (folder / _RECORDS).read_bytes().count(b"\n")
    return 0


class Search:
    """The search for one kernel, from where its folder says that it was left."""

    def __init__(self, folder: Path, subgraph: Subgraph, variant: Variant, target: Target) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in (_WORKLOADS, _RECORDS):
            _drop_torn_line(folder / name)
        self._module = module_of(workload_of(subgraph, variant).function)
        self._target = tvm_target(target.threads)
        self._database, self._workload = self._opened()
        self._keep_best()
        self._trials = Trials(target)
        self._model = ms.cost_model.XGBModel(num_tuning_cores=target.threads)
        self._context = ms.TuneContext(
            mod=self._module,
            target=self._target,
            space_generator=ms.space_generator.PostOrderApply(
                sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
            ),
            search_strategy=ms.search_strategy.EvolutionarySearch(
                population_size=_POPULATION, genetic_num_iters=_GENERATIONS, init_min_unmeasured=_BATCH
            ),
            # Another seed when it goes on, or it would propose what it has proposed before.
            rand_state=1 + trials_in(folder),
            num_threads=target.threads,
        )
        spaces = self._context.generate_design_space()
        self._context.pre_tuning(_UNLIMITED, _BATCH, spaces, self._database, self._model)
        self._learn_again()
        self._exhausted = False

    def _opened(self) -> tuple[Any, Any]:
        """The folder's database, and this workload in it. What was tried with the function of another version
        is given up.
        """
        files = [self.folder / name for name in (_WORKLOADS, _RECORDS)]
        while True:
            database = ms.database.JSONDatabase(*map(str, files))
            workload = database.commit_workload(self._module)
            if files[0].read_bytes().count(b"\n") == 1:
                return database, workload
            for file in (*files, self.folder / BEST):
                file.unlink(missing_ok=True)

    def step(self, trials: int) -> Tuned:
        """A batch more, as long as there are fewer than `trials`."""
        wanted = min(_BATCH, trials - trials_in(self.folder))
        candidates = self._context.generate_measure_candidates() if wanted > 0 else []
        if candidates:
            self._try(list(candidates)[:wanted])
        elif wanted > 0:
            self._exhausted = True
        best = read_best(self.folder)
        return Tuned(trials_in(self.folder), best.run_ms if best else None, self._exhausted)

    def _try(self, candidates: list[Any]) -> None:
        # A schedule may store weights in another order, and so in another shape.
        shapes = [[tuple(int(d) for d in info.shape) for info in c.args_info] for c in candidates]
        modules = [tvm.ir.save_json(c.sch.mod) for c in candidates]
        times = self._trials.run(list(zip(modules, shapes, strict=True)))
        results = []
        for candidate, time in zip(candidates, times, strict=True):
            if isinstance(time, str):
                self._record(candidate, _FAILED_S)
                results.append(RunnerResult(None, time))
            else:
                self._record(candidate, time)
                self._keep_best()
                results.append(RunnerResult([time], None))
        if read_best(self.folder) is None:
            raise BackendError(f"none of the schedules tried can be run: {results[-1].error_msg}")
        self._context.notify_runner_results(candidates, results)
        self._model.update(self._context, candidates, results)

    def _record(self, candidate: Any, run_s: float) -> None:
        arguments = [run_s], self._target, candidate.args_info
        self._database.commit_tuning_record(TuningRecord(candidate.sch.trace, self._workload, *arguments))

    def _keep_best(self) -> None:
        """Write down the fastest of all records, if it is not yet: the process may have died in between."""
        lines = (self.folder / _RECORDS).read_text().splitlines()
        # A line is [workload, [trace, seconds, target, arguments]].
        tried = [json.loads(line)[1][:2] for line in lines]
        trace, (run_s,) = min(tried, key=lambda t: t[1][0], default=(None, (_FAILED_S,)))
        best = read_best(self.folder)
        if run_s < _FAILED_S and (best is None or run_s * 1e3 < best.run_ms):
            schedule = Schedule(workload_hash(self._module), trace)
            write_best(self.folder, Best(schedule.to_text(), run_s * 1e3))

    def _learn_again(self) -> None:
        """Tell the cost model what earlier runs have found out."""
        records = [r for r in self._database.get_all_tuning_records() if float(r.run_secs[0]) < _FAILED_S]
        if records:
            candidates = [r.as_measure_candidate() for r in records]
            results = [RunnerResult(list(r.run_secs), None) for r in records]
            self._model.update(self._context, candidates, results)

    def close(self) -> None:
        self._trials.close()


def _drop_torn_line(path: Path) -> None:
    """A process that is killed while it writes leaves half a line, on which MetaSchedule would fail."""
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)
