"""What each backend's kernels reach on this machine, written into the packages that bring the backends.

    python benchmarks/priors.py --costs costs.sqlite

Every candidate of some networks is measured, which takes minutes each; to be called when the machine is idle.
What the database holds is not measured again. The networks are others than those by which efforts are judged,
but for the BERT encoder, which is two layers of BERT-base. Then each package here gets its table,
`priors/PROCESSOR.json`: of each kind of kernel the median of these networks. Tables of other processors stay.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from collage_benchmarks.evidence.machine import processor_json, slug_of
from collage_benchmarks.networks import NETWORKS, add_networks

from collage_core import CostDatabase, optimize
from collage_core.costs.roofline import PEAKS_VERSION, machine_peaks
from collage_core.measuring.estimates import Estimates
from collage_core.measuring.priors import medians
from collage_core.pipeline.effort import THOROUGH
from collage_core.priors import Priors

_PACKAGES = Path(__file__).resolve().parents[1] / "plugins"
_LEARNT_FROM = ("inception_v1", "resnet50", "shufflenet", "alexnet", "zfnet512", "bert_encoder", "detector")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_networks(parser, "--networks", default=_LEARNT_FROM)
    parser.add_argument("--costs", type=Path, required=True, metavar="FILE", help="cost database")
    parser.add_argument("--into", type=Path, default=_PACKAGES, metavar="FOLDER", help="default: plugins/")
    args = parser.parse_args()
    files = dict(_files(args.into))
    if not files:
        print(f"priors: no package in {args.into} brings any", file=sys.stderr)
        return 1
    reached = [_reached(name, args.costs) for name in args.networks]
    for backend, file in files.items():
        shares = medians(of_network.get(backend, {}) for of_network in reached)
        if not shares:
            print(f"{backend} is not available here: {file} stays as it is")
            continue
        file.parent.mkdir(exist_ok=True)
        file.write_text(Priors(backend, PEAKS_VERSION, shares).to_json(), encoding="utf-8")
        print(file)
    return 0


def _reached(name: str, costs: Path) -> dict[str, dict[str, float]]:
    """By backend and kind, of one network."""
    found = optimize(NETWORKS[name].build(), costs=costs, effort=THOROUGH, rounds=0)
    with CostDatabase(costs) as database:
        peaks = machine_peaks(found.placement.target, database)
    reached = Estimates(found.candidates, peaks).reached(found.costs)
    print(name, sum(map(len, reached.values())), "kinds of kernels", flush=True)
    return reached


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Of each backend whose package brings priors."""
    file = f"{slug_of(processor_json())}.json"
    for plugin in sorted(folder.glob("collage_*/collage_*/plugin.py")):
        if "collage_priors" in plugin.read_text(encoding="utf-8"):
            yield plugin.parent.name.removeprefix("collage_"), plugin.parent / "priors" / file


if __name__ == "__main__":
    sys.exit(main())
