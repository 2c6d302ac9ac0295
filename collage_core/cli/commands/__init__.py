"""One module a command: NAME, SUMMARY, add_arguments(parser), run(args)."""

from collage_core.cli.commands import backends, bench, costs, explain, optimize, run

__all__ = ["ALL"]

ALL = (backends, optimize, run, bench, explain, costs)
