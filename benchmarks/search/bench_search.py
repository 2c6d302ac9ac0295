"""How long the op-level search takes, and how much memory, as networks grow.

    python benchmarks/search/bench_search.py [--costs FILE] [--precision bf16] [--devices cpu,sim] [name ...]
    python benchmarks/search/bench_search.py --synthetic [name ...]

Transformer blocks and NASNet-A's cells of about 100, 1,000 and 10,000 nodes, at the costs that the installed
backends have on this machine: what is not known yet is measured first, a minute or two, and kept for the next
time. One row per network: nodes; candidates and the seconds to find them; the problem's choices and the
seconds to look their costs up and formulate it; the search's states, seconds and the memory it adds at its
peak; the cost found, which search answered, and whether the answer is proven optimal.

--synthetic: instead, problems with random seeded costs that are harder than the recorded ones (three formats
for every value, random groups' costs), made without any backend. Groups are made as pattern rules make them:
from every node, up to the post-dominator and on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx
from collage_benchmarks.problems import RecordedProblem, nasnet_cells, record_problem, transformer_blocks

from collage_core.cli.arguments import target_of
from collage_core.cli.progress import ProgressBars
from collage_core.search import Choice, OpLevelSearch, Problem, ProblemValue, Solution

ANCHOR, ELEMENTWISE, REDUCTION, VIEW, JOIN = range(5)
BASE_MS = {ANCHOR: 0.4, ELEMENTWISE: 0.08, REDUCTION: 0.1, VIEW: 0.01, JOIN: 0.1}
LIBRARY, COMPILER, REFERENCE = range(3)


@dataclass
class Network:
    """Operators by kind, with the operators they read; -1 is the model's input."""

    kinds: list[int] = field(default_factory=list)
    operands: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, kind: int, *operands: int) -> int:
        self.kinds.append(kind)
        self.operands.append(operands)
        return len(self.kinds) - 1

    def chain(self, start: int, *kinds: int) -> int:
        for kind in kinds:
            start = self.add(kind, start)
        return start


def resnet() -> Network:
    net = Network()
    x = net.chain(-1, ANCHOR, ELEMENTWISE, REDUCTION)
    for blocks in (3, 4, 6, 3):
        for block in range(blocks):
            y = net.chain(x, ANCHOR, ELEMENTWISE, ANCHOR, ELEMENTWISE, ANCHOR)
            x = net.add(ELEMENTWISE, y, net.add(ANCHOR, x) if block == 0 else x)
            x = net.add(ELEMENTWISE, x)
    net.chain(x, REDUCTION, VIEW, ANCHOR)
    return net


def bert(blocks: int) -> Network:
    net = Network()

    def normalise(x: int) -> int:
        mean = net.add(REDUCTION, x)
        centred = net.add(ELEMENTWISE, x, mean)
        deviation = net.chain(net.add(ELEMENTWISE, centred, centred), REDUCTION, ELEMENTWISE, ELEMENTWISE)
        return net.chain(net.add(ELEMENTWISE, centred, deviation), ELEMENTWISE, ELEMENTWISE)

    x = normalise(net.chain(-1, REDUCTION, ELEMENTWISE))
    for _ in range(blocks):
        q, k, v = (net.chain(x, ANCHOR, ELEMENTWISE, VIEW, REDUCTION) for _ in range(3))
        scores = net.chain(net.add(ANCHOR, q, k), ELEMENTWISE, ELEMENTWISE, REDUCTION)
        mixed = net.chain(net.add(ANCHOR, scores, v), REDUCTION, VIEW, ANCHOR, ELEMENTWISE)
        x = normalise(net.add(ELEMENTWISE, mixed, x))
        h = net.chain(x, ANCHOR, ELEMENTWISE)
        gate = net.chain(h, ELEMENTWISE, ELEMENTWISE, ELEMENTWISE)
        h = net.chain(net.add(ELEMENTWISE, h, gate), ELEMENTWISE, ANCHOR, ELEMENTWISE)
        x = normalise(net.add(ELEMENTWISE, h, x))
    return net


def nasnet(cells: int) -> Network:
    net = Network()

    def separable(x: int) -> int:
        return net.chain(
            x, ELEMENTWISE, ANCHOR, ANCHOR, ELEMENTWISE, ELEMENTWISE, ANCHOR, ANCHOR, ELEMENTWISE
        )

    before, last = -1, net.chain(-1, ANCHOR, ELEMENTWISE)
    before = last
    for _ in range(cells):
        a = net.chain(last, ELEMENTWISE, ANCHOR, ELEMENTWISE)
        b = net.chain(before, ELEMENTWISE, ANCHOR, ELEMENTWISE)
        sums = [
            net.add(ELEMENTWISE, separable(a), a),
            net.add(ELEMENTWISE, separable(b), separable(a)),
            net.add(ELEMENTWISE, net.add(REDUCTION, a), b),
            net.add(ELEMENTWISE, net.add(REDUCTION, b), net.add(REDUCTION, b)),
            net.add(ELEMENTWISE, separable(b), separable(b)),
        ]
        before, last = last, net.add(JOIN, b, *sums)
    net.chain(last, ELEMENTWISE, REDUCTION, VIEW, ANCHOR)
    return net


def groups(net: Network, largest: int) -> Iterator[tuple[int, int]]:
    """(bitmask, first node) of each node and of all that grow from it, post-dominator by post-dominator."""
    count = len(net.kinds)
    readers: list[list[int]] = [[] for _ in range(count)]
    for n, operands in enumerate(net.operands):
        for o in operands:
            if o >= 0:
                readers[o].append(n)
    below = [0] * count
    above = [0] * count
    for n in range(count):
        above[n] = 1 << n
        for o in net.operands[n]:
            above[n] |= above[o] if o >= 0 else 0
    # Post-dominators of n: the nodes on every path from n to the end.
    for n in reversed(range(count)):
        common = (1 << count) - 1 if readers[n] else 0
        for r in readers[n]:
            common &= below[r]
        below[n] = common | 1 << n
    descendants = [0] * count
    for n in reversed(range(count)):
        descendants[n] = 1 << n
        for r in readers[n]:
            descendants[n] |= descendants[r]
    for n in range(count):
        members, last = 1 << n, n
        yield members, n
        while True:
            later = below[last] & ~(1 << last)
            if not later:
                break
            sink = (later & -later).bit_length() - 1
            members |= descendants[last] & above[sink]
            if members.bit_count() > largest:
                break
            yield members, n
            last = sink


def problem_of(net: Network, seed: int, formats: int = 3, largest: int = 9) -> Problem:
    """A library that fuses elementwise operators behind an anchor, a compiler that fuses all but anchors, a
    slow reference.
    """
    rng = random.Random(seed)
    count = len(net.kinds)
    consumers: dict[int, list[int]] = {v: [] for v in range(-1, count)}
    for n, operands in enumerate(net.operands):
        for o in dict.fromkeys(operands):
            consumers[o].append(n)
    values = [ProblemValue(None, tuple(consumers[-1]), 0, None)]
    values += [ProblemValue(n, tuple(consumers[n]), None, None if consumers[n] else 0) for n in range(count)]
    choices: list[Choice] = []
    for mask, first in groups(net, largest):
        members = [n for n in range(first, count) if mask >> n & 1]
        read = {o + 1 for n in members for o in net.operands[n] if o < 0 or not mask >> o & 1}
        written = {n + 1 for n in members if not consumers[n] or any(not mask >> c & 1 for c in consumers[n])}
        anchors = sum(net.kinds[n] == ANCHOR for n in members)
        plain_elementwise = all(net.kinds[n] == ELEMENTWISE for n in members if n != first)
        offers = []
        if plain_elementwise and net.kinds[first] in (ANCHOR, REDUCTION, ELEMENTWISE, JOIN):
            offers.append(LIBRARY)
        if not anchors:
            offers.append(COMPILER)
        if len(members) == 1:
            offers.append(REFERENCE)
        base_ms = sum(BASE_MS[net.kinds[n]] * (1.0 if n == first else 0.4) for n in members)
        for backend in offers:
            for p in range(formats if backend != REFERENCE else 1):
                for q in range(formats if backend == LIBRARY else p + 1):
                    if backend == COMPILER and p != q:
                        continue
                    slow = 20.0 if backend == REFERENCE else rng.uniform(0.6, 1.6)
                    choices.append(
                        Choice(
                            mask, backend, dict.fromkeys(read, p), dict.fromkeys(written, q), base_ms * slow
                        )
                    )
    conversion_ms = {
        (v, p, q): rng.uniform(0.02, 0.12)
        for v in range(len(values))
        for p in range(formats)
        for q in range(formats)
        if p != q
    }
    group_ms, crossing_ms = dict.fromkeys(range(3), 0.002), dict.fromkeys(range(3), 0.005)
    return Problem(count, tuple(values), tuple(choices), conversion_ms, group_ms, crossing_ms)


SYNTHETIC: dict[str, Callable[[], Network]] = {
    "resnet50": resnet,
    "bert 12": lambda: bert(12),
    "bert 200": lambda: bert(200),
    "nasnet": lambda: nasnet(24),
}
RECORDED: dict[str, Callable[[], onnx.ModelProto]] = {
    f"{name} {blocks}": partial(build, blocks)
    for name, build, sizes in (
        ("transformer", transformer_blocks, (4, 35, 345)),
        ("nasnet", nasnet_cells, (3, 24, 233)),
    )
    for blocks in sizes
}


def solve(problem: Problem) -> tuple[Solution, float, float]:
    """The solution, seconds, and MiB that this process, which has done nothing else, grew by at its peak."""
    before_kib = _memory_kib("VmRSS")
    start = time.perf_counter()
    solution = OpLevelSearch().solve(problem)
    seconds = time.perf_counter() - start
    return solution, seconds, (_memory_kib("VmHWM") - before_kib) / 1024


def _memory_kib(entry: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(entry))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help="of those below; all by default")
    parser.add_argument("--costs", type=Path, help="the cost database (default: the user's own)")
    parser.add_argument("--precision", help="float types to which values may be rounded")
    parser.add_argument("--devices", default="cpu", help="that may take part (default: %(default)s)")
    parser.add_argument("--synthetic", action="store_true", help="problems with random costs")
    parser.add_argument("--seed", type=int, default=0, help="of the random costs")
    parser.epilog = f"networks: {', '.join(RECORDED)}; synthetic: {', '.join(SYNTHETIC)}"
    arguments = parser.parse_args()
    arguments.threads = None
    known = SYNTHETIC if arguments.synthetic else RECORDED
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(known)}")
    print(
        f"{'network':16}{'nodes':>7}{'candidates':>11}{'find_s':>8}{'choices':>9}{'formulate_s':>12}"
        f"{'states':>9}{'search_s':>9}{'MiB':>7}{'ms':>11}  method, proven"
    )
    for name in arguments.names or known:
        if arguments.synthetic:
            problem = problem_of(SYNTHETIC[name](), arguments.seed)
            recorded = RecordedProblem(problem, len(problem.choices), 0.0, 0.0)
        else:
            with ProgressBars() as progress:
                recorded = record_problem(RECORDED[name](), arguments.costs, progress, target_of(arguments))
        problem = recorded.problem
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found, seconds, mib = pool.apply(solve, [problem])
        print(
            f"{name:16}{problem.node_count:7}{recorded.candidates:11}{recorded.candidates_s:8.2f}"
            f"{len(problem.choices):9}{recorded.formulate_s:12.2f}{found.states:9}{seconds:9.2f}{mib:7.0f}"
            f"{found.total_ms:11.4f}  {found.method}, {found.optimal}",
            flush=True,
        )


if __name__ == "__main__":
    main()
