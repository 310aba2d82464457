"""Times ``model.fit``: ``python -m benchmarks.tensorflow_fit --np 2 --json out.json``.

A Keras model with 161 variables (84 MB) is trained with ``DistributedOptimizer``, by ranks that don't speak, by one rank
while the others are idle, and by ``tf.distribute`` with MultiWorkerMirroredStrategy.  In the same turns, torch takes the
training step of ``benchmarks.gradients``, whose cost for as many bytes is what the cost of ``fit`` is compared with.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.cases import Case
from benchmarks.gradients import added_s
from benchmarks.machine import threads_per_rank
from benchmarks.measure import Series, measure, running
from benchmarks.options import build_parser, effort_of, peers_of
from benchmarks.peers import keras
from benchmarks.report import Report, format_s
from benchmarks.shapes import layers, total_bytes
from benchmarks.targets import TENSORFLOW_FIT

KINDS = {
    "hvd": ("step", "step-alone", "step-single"),
    "keras": ("fit", "fit-alone", "fit-single"),
    "mirrored": ("fit",),
}


def run(arguments: argparse.Namespace) -> Report:
    """Measures what was asked for."""
    report = Report(sys.argv)
    shapes = layers(arguments.layers)
    print(f"fit: {len(shapes) + 1} variables, {total_bytes(shapes) / 1e6:.1f} MB, batch {arguments.batch}", flush=True)
    peers = [*peers_of(arguments), *([] if arguments.without_hvd else [keras()])]
    with running(peers, arguments.np, threads_per_rank(arguments.np)) as (groups, skipped):
        report.add_groups(groups, skipped)
        series = [
            Series(name + kind.removeprefix(KINDS[name][0]), group, Case(kind, shapes, batch=arguments.batch))
            for name, group in groups.items()
            for kind in KINDS.get(name, ())
        ]
        outcome = measure(series, effort_of(arguments))
    report.add("fit", outcome)
    report.values["added"] = added_s(outcome)
    report.values["added to a single process"] = added_s(outcome, "single")
    for what in ("added", "added to a single process"):
        print(f"{what:28}" + "  ".join(f"{name} {format_s(s)}" for name, s in report.values[what].items()))
    report.judge(TENSORFLOW_FIT)
    return report


def main() -> int:
    """Reads the command line and measures."""
    parser = build_parser(__doc__)
    parser.add_argument("--batch", type=int, default=64, help="rows per rank in a training step")
    parser.add_argument("--layers", type=int, default=80, help="fully connected layers, of 512 x 512")
    parser.set_defaults(peers="mirrored", rounds=12, budget_s=1.0)
    arguments = parser.parse_args()
    return run(arguments).conclude(arguments.json, arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
