"""`python -m collage_benchmarks.fuzz`: random models through Collage; exit status 1 if any is wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from collage_benchmarks.fuzz.driver import Driver
from collage_benchmarks.fuzz.report import RIGHT, Outcome, Report
from collage_benchmarks.fuzz.sources import Sample, generate, stored

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m collage_benchmarks.fuzz", description=__doc__)
    parser.add_argument("--models", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="which: equal seeds give equal models")
    parser.add_argument("--source", default="generator", help="generator, or a folder of ONNX files")
    parser.add_argument("--backends", help="names, separated by commas (default: all that are installed)")
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument("--finds", type=Path, help="folder for failing models as Python files")
    parser.add_argument("--costs", type=Path, help="cost database, kept (default: one that is thrown away)")
    options = parser.parse_args(arguments)
    backends = options.backends.split(",") if options.backends else None
    with tempfile.TemporaryDirectory() as folder:
        # No time is looked at: others may measure meanwhile, and nothing waits for idle processors.
        os.environ["COLLAGE_LOCK"] = str(Path(folder, "lock"))
        os.environ.update(COLLAGE_SETTLING_LIMIT_S="0", COLLAGE_CALIBRATION="off")
        costs = options.costs or Path(folder, "costs.sqlite")
        driver = Driver(
            costs,
            backends,
            told=lambda o: _tell(o, options.finds),
            after_batch=lambda r: _write(r, options.json, options.finds),
        )
        report = driver.run(islice(_samples(options.source, options.seed), options.models))
    print(*report.lines(), sep="\n")
    return 1 if report.failures or report.illegal else 0


def _samples(source: str, seed: int) -> Iterator[Sample]:
    if source != "generator":
        yield from stored(Path(source))
        return
    number = seed * 1_000_000
    while True:
        yield generate(number)
        number += 1


def _tell(outcome: Outcome, finds: Path | None) -> None:
    if outcome.status != RIGHT:
        last = outcome.reason.strip().splitlines()[-1] if outcome.reason else ""
        print(f"{outcome.status}: {outcome.sample}: {outcome.place}: {last[:200]}", file=sys.stderr)
    if finds is not None and outcome.code is not None:
        finds.mkdir(parents=True, exist_ok=True)
        head = "\n".join(f"# {line}" for line in [outcome.place, *outcome.reason.splitlines()[-30:]])
        Path(finds, outcome.sample.replace("/", "-") + ".py").write_text(f"{head}\n{outcome.code}")


def _write(report: Report, file: Path | None, finds: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(report.to_json(), indent=1))
    if finds is None:
        return
    finds.mkdir(parents=True, exist_ok=True)
    seen: set[tuple[str, ...]] = set()
    for k in report.kernels:
        if k.key not in seen:
            seen.add(k.key)
            name = f"kernel-{len(seen)}-{k.backend}-{'-'.join(k.operators[:4])}.py"
            Path(finds, name).write_text(f"# {k.sample}, {k.backend}, {k.status}: {k.reason}\n{k.code}")


if __name__ == "__main__":
    sys.exit(main())
