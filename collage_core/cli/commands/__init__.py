"""One module a command: NAME, SUMMARY, add_arguments(parser), run(args)."""

from collage_core.cli.commands import backends, bench, costs, doctor, explain, optimize, run, tune

__all__ = ["ALL"]

ALL = (backends, doctor, optimize, tune, run, bench, explain, costs)
