"""One module a command: NAME, SUMMARY, add_arguments(parser), run(args), which may return an exit code."""

from collage_core.cli.commands import (
    backends,
    bench,
    check,
    config,
    costs,
    doctor,
    explain,
    export,
    new_backend,
    optimize,
    place,
    quantize,
    run,
    tune,
)

__all__ = ["ALL", "MEASURING"]

ALL = (
    *(backends, doctor, optimize, place, tune, quantize, run, bench, check, explain, export, costs),
    *(config, new_backend),
)

MEASURING = (optimize, place, tune, bench, check)
"""Whose costs are kept, whenever they end."""
