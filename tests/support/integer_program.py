"""The placement problem as an integer program for OR-tools' CP-SAT: a second opinion on the search, from
another formulation and another solver.
"""

from __future__ import annotations

from collections import defaultdict

from ortools.sat.python import cp_model

from collage_core.errors import PlacementError
from collage_core.search import NO_BACKEND, Problem, breakdown
from collage_core.search.cost import group_constant_ms, node_indices

__all__ = ["UNITS_PER_MS", "solve"]

UNITS_PER_MS = 10**7
"""CP-SAT counts in integers: costs are rounded to a tenth of a nanosecond."""


def solve(problem: Problem, time_limit_s: float = 300.0) -> tuple[tuple[int, ...], float]:
    """The choices of a proven optimum, and the program's own value of it in milliseconds.

    A choice is a 0/1 variable, every node is covered once. For each value and pair of formats a variable says
    whether it is converted: a reader's format must have been produced or converted into. Groups that wait for
    each other are cut off when they appear. PlacementError where there is no placement; RuntimeError where
    the time is up before the proof.
    """
    program = _Program(problem)
    while True:
        chosen, objective_ms = program.solve(time_limit_s)
        cycle = _waiting_for_each_other(problem, chosen)
        if not cycle:
            return chosen, objective_ms
        program.forbid(cycle)


class _Program:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.conversions: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for key in problem.conversion_ms:
            self.conversions[key[0]].append(key)
        self.model = cp_model.CpModel()
        self.chosen = [self.model.new_bool_var(f"x{c}") for c in range(len(problem.choices))]
        self.terms: list[tuple[cp_model.IntVar, float]] = [
            (x, choice.cost_ms + group_constant_ms(problem, choice))
            for x, choice in zip(self.chosen, problem.choices, strict=True)
        ]
        covering: list[list[int]] = [[] for _ in range(problem.node_count)]
        for c, choice in enumerate(problem.choices):
            for n in node_indices(choice.nodes):
                covering[n].append(c)
        for n, choices in enumerate(covering):
            if not choices:
                raise PlacementError(f"no choice covers node {n}")
            self.model.add_exactly_one(self.chosen[c] for c in choices)
        for v in range(len(problem.values)):
            self._value(v, covering)
        self.model.minimize(sum(round(ms * UNITS_PER_MS) * x for x, ms in self.terms))

    def _value(self, v: int, covering: list[list[int]]) -> None:
        """Conversions and the crossing of one value."""
        problem, value = self.problem, self.problem.values[v]
        # Who produces it in which format; a model input is there in its own.
        produced: dict[int, list[int]] = defaultdict(list)
        if value.producer is not None:
            for c in covering[value.producer]:
                if v in problem.choices[c].writes:
                    produced[problem.choices[c].writes[v]].append(c)
        sources = list(produced) if value.producer is not None else [value.input_format]
        converted: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        for p in sources:
            assert p is not None
            hops: dict[int, cp_model.IntVar] = {}
            for q in {q for (w, source, q) in self.conversions[v] if source == p}:
                y = self.model.new_bool_var(f"y{v}_{p}_{q}")
                if value.producer is not None:
                    self.model.add(sum(self.chosen[c] for c in produced[p]) >= y)
                hops[q] = y
                converted[q].append(y)
                self.terms.append((y, problem.conversion_ms[v, p, q]))
            for q, y in hops.items():  # a hop needs what it begins with
                if (v, p, q) in problem.ways:
                    self.model.add_implication(y, hops[problem.ways[v, p, q]])

        def available(q: int) -> cp_model.LinearExprT:
            made = sum(self.chosen[c] for c in produced[q]) if value.producer is not None else 0
            return made + int(q == value.input_format) + sum(converted[q])

        if value.output_format is not None:
            self.model.add(available(value.output_format) >= 1)
        crossings: dict[int, cp_model.IntVar] = {}
        for n in value.consumers:
            readers = [c for c in covering[n] if v in problem.choices[c].reads]
            by_format: dict[int, list[int]] = defaultdict(list)
            for c in readers:
                by_format[problem.choices[c].reads[v]].append(c)
            for q, choices in by_format.items():
                self.model.add(sum(self.chosen[c] for c in choices) <= available(q))
            if value.producer is None or not problem.crossing_ms:
                continue
            homes = {problem.choices[c].backend for c in covering[value.producer]} - {NO_BACKEND}
            for home in homes:
                makers = [
                    c
                    for c in covering[value.producer]
                    if v in problem.choices[c].writes and problem.choices[c].backend == home
                ]
                others = [c for c in readers if problem.choices[c].backend not in (home, NO_BACKEND)]
                if makers and others and problem.crossing_ms.get(home):
                    if home not in crossings:
                        crossings[home] = self._crossing(v, home)
                    pair = sum(self.chosen[c] for c in makers) + sum(self.chosen[c] for c in others)
                    self.model.add(pair - 1 <= crossings[home])

    def _crossing(self, v: int, home: int) -> cp_model.IntVar:
        z = self.model.new_bool_var(f"z{v}_{home}")
        self.terms.append((z, self.problem.crossing_ms[home]))
        return z

    def forbid(self, choices: list[int]) -> None:
        """Never all of these together."""
        self.model.add(sum(self.chosen[c] for c in choices) <= len(choices) - 1)

    def solve(self, time_limit_s: float) -> tuple[tuple[int, ...], float]:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.linearization_level = 2  # with one worker the default finds no useful bound
        solver.parameters.max_time_in_seconds = time_limit_s
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            raise PlacementError("the integer program is infeasible")
        if status != cp_model.OPTIMAL:
            raise RuntimeError(f"CP-SAT stopped with {solver.status_name(status)} after {time_limit_s} s")
        chosen = tuple(c for c, x in enumerate(self.chosen) if solver.value(x))
        return chosen, solver.objective_value / UNITS_PER_MS


def _waiting_for_each_other(problem: Problem, choices: tuple[int, ...]) -> list[int]:
    """Choices that form a circle, each reading from the one before; [] where there is none."""
    owner = {n: c for c in choices for n in node_indices(problem.choices[c].nodes)}
    followers: dict[int, set[int]] = {c: set() for c in choices}
    for value in problem.values:
        if value.producer is not None:
            followers[owner[value.producer]] |= {owner[n] for n in value.consumers}
    for c, after in followers.items():
        after.discard(c)
    state: dict[int, int] = {}
    for start in choices:
        path: list[int] = []
        stack = [(start, iter(sorted(followers[start])))] if start not in state else []
        while stack:
            node, rest = stack[-1]
            if node not in state:
                state[node] = 1
                path.append(node)
            following = next(rest, None)
            if following is None:
                state[node] = 2
                path.pop()
                stack.pop()
            elif state.get(following) == 1:
                return path[path.index(following) :]
            elif following not in state:
                stack.append((following, iter(sorted(followers[following]))))
    breakdown(problem, choices)  # and nothing else is wrong with it
    return []
