"""How fast TVM's kernels are, beside the memory, torch, NumPy and oneDNN.

    python benchmarks/kernels/bench_kernels.py [--libraries A,B] [--rounds N] [--json FILE] [case ...]

One row per case, each the same computation as an ONNX graph of one group, in torch (eager, and torch.compile
with static shapes) and in NumPy: what has to be moved in MB (each input read once, each output written once);
TVM's microseconds per call with their interquartile range, and the bandwidth reached in GB/s; where tensors
are larger than the last cache and the case only streams, the share of a copy's bandwidth (the faster of
torch's and TVM's, over 105 MB, in the same rounds); then the others' microseconds. Every answer is checked
against NumPy's before it is timed. Medians of three runs or more in each of the alternating rounds, every
library in a process of its own that is stopped while it is not its turn; a run is as many calls on the same
buffers as take 200 us, and comes after 20 ms of warming up. Collage's and the copies' results lie in buffers
made once, torch's and NumPy's are fresh arrays, as their users have them, in memory that the allocator has
kept from the call before. The exit status is 1 if a case misses a limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from collage_benchmarks.kernels import LIBRARIES, Limits, Row, chosen, measure_case, missing, version

from collage_core.costs.fingerprint import cache_sizes_bytes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="case", help="names or families; all by default")
    parser.add_argument(
        "--libraries", default=",".join(LIBRARIES), help="of %(default)s; limits are judged where they can be"
    )
    parser.add_argument("--rounds", type=int, default=15, help="alternating rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="for every library (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything known to a file")
    arguments = parser.parse_args()
    libraries = arguments.libraries.split(",")
    if unknown := set(libraries) - set(LIBRARIES):
        parser.error(f"no library {sorted(unknown)[0]!r}; there are {', '.join(LIBRARIES)}")
    try:
        cases = chosen(arguments.cases)
    except ValueError as error:
        parser.error(str(error))
    absent = {name: reason for name in libraries if (reason := missing(name)) is not None}
    for name, reason in absent.items():
        print(f"{name}: {reason}")
    print(", ".join(f"{name} {version(name)}" for name in libraries if name not in absent))
    print(
        f"{arguments.threads} threads, caches of {', '.join(map(_size, cache_sizes_bytes()))}; times in us\n"
        f"{'case':32}{'MB':>8}{'tvm':>10}{'IQR':>8}{'GB/s':>7}{'copy':>6}"
        + "".join(f"{name:>10}" for name in libraries if name != "tvm")
    )
    rows: list[Row] = []
    for case in cases:
        row = measure_case(
            case,
            libraries,
            absent,
            threads=arguments.threads,
            rounds=arguments.rounds,
            limits=Limits(),
            on_wait=lambda line: print(line, file=sys.stderr),
        )
        rows.append(row)
        print(_line(row, libraries), flush=True)
        for name, column in row.columns.items():
            if column.reason is not None and name not in absent and "declined:" not in column.reason:
                print(f"    {name}: {column.reason}")
        if arguments.json:
            arguments.json.write_text(json.dumps([r.as_json() for r in rows], indent=1))
    missed = [row for row in rows if row.misses]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} cases within the limits")
    for row in missed:
        print(f"{row.case:32}{'; '.join(row.misses)}")
    return 1 if missed else 0


def _line(row: Row, libraries: list[str]) -> str:
    tvm = row.columns.get("tvm")
    spread_us = tvm.spread_us if tvm else None
    gb_s = row.gb_s("tvm")
    share = f"{gb_s / row.copy_gb_s:.0%}" if gb_s and row.copy_gb_s else ""
    others = "".join(f"{_time(row.median_us(name)):>10}" for name in libraries if name != "tvm")
    return (
        f"{row.case:32}{row.moved_bytes / 1e6:8.2f}{_time(row.median_us('tvm')):>10}"
        f"{_time(spread_us):>8}{'-' if gb_s is None else f'{gb_s:.1f}':>7}{share:>6}{others}"
        f"{'  missed' if row.misses else ''}"
    )


def _time(us: float | None) -> str:
    """Three digits, and all before the point."""
    if us is None:
        return "-"
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


if __name__ == "__main__":
    sys.exit(main())
