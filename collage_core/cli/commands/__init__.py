"""One module a command: NAME, SUMMARY, add_arguments(parser), run(args), which may return an exit code."""

from collage_core.cli.commands import (
    backends,
    bench,
    check,
    costs,
    doctor,
    explain,
    export,
    new_backend,
    optimize,
    quantize,
    run,
    tune,
)

__all__ = ["ALL", "MEASURING"]

ALL = (backends, doctor, optimize, tune, quantize, run, bench, check, explain, export, costs, new_backend)

MEASURING = (optimize, tune, bench, check)
"""Whose costs are kept, whenever they end."""
