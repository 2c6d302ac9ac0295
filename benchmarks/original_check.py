"""What the check of the model as it was given takes, beside the recording that every optimization needs:

    python benchmarks/original_check.py [NETWORK ...]

Both run the network once on the reference: the recording keeps every value of the normalised graph, the check
the outputs of the original. One process runs both; its start counts as the recording's, which needs it
anyway. In turns, ROUNDS of them after one that does not count; medians and interquartile ranges in seconds.
Nothing else should run meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from collage_benchmarks.networks import NETWORKS

from collage_core.costs.inputs import synthesise_inputs
from collage_core.costs.recording import record, reference_values, reference_worker
from collage_core.ir import from_model, save_stored
from collage_core.ir.passes import normalise

_NETWORKS = ("squeezenet", "dcgan", "inception_v2", "densenet121", "resnext50", "bert_base")
_ROUNDS = 5


def main() -> None:
    print(f"{'network':14} {'recording s (IQR)':>20} {'check s (IQR)':>20} {'ratio':>6}")
    for name in sys.argv[1:] or _NETWORKS:
        original = from_model(NETWORKS[name].build())
        graph = normalise(original)
        inputs = synthesise_inputs(graph)
        taken_s: tuple[list[float], list[float]] = ([], [])
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            save_stored(graph, folder / "graph")
            for number in range(_ROUNDS + 1):
                start = time.perf_counter()
                with reference_worker() as worker:
                    record(folder / "graph", inputs, folder / f"values{number}", worker)
                    middle = time.perf_counter()
                    save_stored(original, folder / "original")
                    reference_values(folder / "original", inputs, worker=worker)
                    end = time.perf_counter()
                if number:
                    taken_s[0].append(middle - start)
                    taken_s[1].append(end - middle)
        (low, recording, high), (least, check, most) = (np.percentile(t, (25, 50, 75)) for t in taken_s)
        print(
            f"{name:14} {recording:12.2f} ({high - low:.2f}) {check:13.2f} ({most - least:.2f}) "
            f"{check / recording:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
