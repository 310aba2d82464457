"""Training speed against DDP with Gloo, in turns: ``python -m benchmarks.throughput --np 2 --json out.json``.

The networks are those of ``examples/torch_synthetic_benchmark.py``, trained with random inputs, one compute thread per
rank; a step counts as long as its slowest rank took.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.cases import Case
from benchmarks.measure import Outcome, Series, measure, running
from benchmarks.options import build_parser, effort_of, peers_of
from benchmarks.report import Report
from benchmarks.targets import THROUGHPUT

MODELS = {"resnet50": (8, 32), "bert-base": (1, 64)}
"""Batch and size (pixels or words) of each network."""


def _case(model: str, arguments: argparse.Namespace) -> Case:
    batch, size = MODELS.get(model, (8, 32))
    return Case("train", model=model, batch=arguments.batch or batch, size=arguments.size or size)


def speeds(outcome: Outcome, samples: int) -> dict[str, float]:
    """Images or sequences of all ranks in a second."""
    return {name: samples / summary.median_s for name, summary in outcome.summaries.items()}


def run(arguments: argparse.Namespace) -> Report:
    """Trains every network with every peer."""
    report = Report(sys.argv)
    able = [peer for peer in peers_of(arguments) if peer.name != "openmpi"]
    with running(able, arguments.np, arguments.threads) as (groups, skipped):
        report.add_groups(groups, skipped)
        for model in arguments.models.split(","):
            case = _case(model, arguments)
            outcome = measure([Series(name, group, case) for name, group in groups.items()], effort_of(arguments))
            report.add(model, outcome)
            found = report.values[f"{model} samples/s"] = speeds(outcome, case.batch * arguments.np)
            print(f"{'':24}{'  '.join(f'{name} {speed:.1f} samples/s' for name, speed in found.items())}", flush=True)
    report.judge(THROUGHPUT)
    return report


def main() -> int:
    """Reads the command line and measures."""
    parser = build_parser(__doc__)
    parser.set_defaults(peers="gloo", rounds=8, budget_s=1.0)
    parser.add_argument("--models", default=",".join(MODELS), help="networks of the example, separated by commas")
    parser.add_argument(
        "--batch", type=int, default=0, help="images or sequences per rank; default: a table by network"
    )
    parser.add_argument("--size", type=int, default=0, help="pixels or words; default: a table by network")
    parser.add_argument("--threads", type=int, default=1, help="compute threads per rank")
    arguments = parser.parse_args()
    return run(arguments).conclude(arguments.json, arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
