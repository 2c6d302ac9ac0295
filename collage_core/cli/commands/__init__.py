"""One module a command: NAME, SUMMARY, add_arguments(parser), run(args), which may return an exit code."""

from collage_core.cli.commands import backends, bench, check, costs, doctor, explain, optimize, run, tune

__all__ = ["ALL"]

ALL = (backends, doctor, optimize, tune, run, bench, check, explain, costs)
