"""Damaged files, read one after the other in one process, each of which must be read or be refused.

    python fuzzed_files.py model|bundle|edited|database FILE COUNT SEED

edited: a bundle that is edited rather than damaged (`bundle_edits`), built and run. Prints the number of each
variant before it is tried, so that whoever started this knows which one ended the process; then the most
memory that was taken, and how many were read.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
from bundle_edits import edited

from collage_core import CollageError, build, load_model, normalise, require_static
from collage_core.costs import CostDatabase
from collage_core.runtime import read

_MOST_SECONDS = 30
_MOST_BYTES = 16 << 30
"""Of addresses: all the libraries together take some 4 GB. What is asked for beyond is refused."""
_MOST_ARENA_BYTES = 64 << 20
"""Models that want more are not run."""
_MOST_CHARACTERS = 4000


def damaged(data: bytes, seed: int) -> bytes:
    """A variant of `data`: cut off, or with some bytes flipped, overwritten, removed, doubled or swapped."""
    chance = random.Random(seed)
    kind = chance.choice(["cut", "flip", "flip", "flip", "overwrite", "remove", "double"])
    result = bytearray(data)
    if kind == "cut":
        return data[: chance.randrange(len(data))]
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(result))
        length = chance.randint(1, 12)
        if kind == "flip":
            result[at] ^= 1 << chance.randrange(8)
        elif kind == "overwrite":
            result[at : at + length] = chance.randbytes(len(result[at : at + length]))
        elif kind == "remove":
            del result[at : at + length]
        else:
            result[at:at] = result[at : at + length]
    return bytes(result)


def main(what: str, file: Path, count: int, seed: int) -> None:
    warnings.simplefilter("ignore")
    if what == "edited":
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    data = file.read_bytes()
    variant = file.with_name("variant")
    good = 0
    for i in range(seed, seed + count):
        print(i, flush=True)
        variant.write_bytes((edited if what == "edited" else damaged)(data, i))
        signal.alarm(_MOST_SECONDS)
        try:
            if what == "model":
                require_static(normalise(load_model(variant)))
            elif what == "database":
                for aside in file.parent.glob("variant-*"):  # SQLite's, of the variant before
                    aside.unlink()
                with CostDatabase(variant) as database:
                    for cost in database.items():
                        database.get(cost.key)
                        database.put(cost.key, cost.record)
            else:
                bundle = read(variant, check_weights=True)
                executable = build(bundle.graph, bundle.placement)
                if what == "edited" and sum(executable.program.arena_bytes.values()) < _MOST_ARENA_BYTES:
                    executable({v: np.ones(t.static_shape, t.dtype) for v, t in executable.inputs.items()})
            good += 1
        except CollageError as error:
            said = str(error)
            assert "\n" not in said, said
            assert 0 < len(said) <= _MOST_CHARACTERS, said
            print(f"  {said!r}")
        signal.alarm(0)
    print("megabytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    print("good", good)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
