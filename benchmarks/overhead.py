"""Times our own code with nobody to wait for: ``python -m benchmarks.overhead --np 2 --json out.json``.

* a small ``allreduce_``, layer by layer: what Python and C calls cost a rank;
* the gradients of ResNet-50, and as many tiny ones: what hooks and copies add to a plain copy of the same bytes and the
  same reductions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from benchmarks.cases import Case
from benchmarks.group import Group
from benchmarks.measure import Effort, Series, measure, running
from benchmarks.options import build_parser, effort_of
from benchmarks.peers import hvd
from benchmarks.report import Report, format_s
from benchmarks.shapes import Shapes, resnet50, small
from benchmarks.targets import OVERHEAD

LAYERS = ("allreduce_", "client", "engine", "foreign call")
SMALL_SHAPE = (64,)
GRADIENT_SETS: Mapping[str, Shapes] = {"161 tiny": small(161, 64), "resnet50": resnet50()}


def measure_layers(group: Group, effort: Effort, report: Report) -> None:
    """Each layer of a small call, those below it included."""
    cases = [Case("layer", [SMALL_SHAPE], place=layer) for layer in LAYERS]
    report.add("layers", measure([Series(case.place, group, case) for case in cases], effort))


def measure_hooks(group: Group, effort: Effort, report: Report, wanted: str) -> None:
    """Steps with hooks, and their floor, in turns; the difference."""
    added: dict[str, float] = {}
    for name in wanted.split(","):
        kinds = ("hooks", "hooks-floor")
        outcome = measure([Series(kind, group, Case(kind, GRADIENT_SETS[name])) for kind in kinds], effort)
        report.add(f"gradients/{name}", outcome)
        if not outcome.skipped:
            hooks, floor = (outcome.summaries[kind].median_s for kind in kinds)
            added[name] = hooks - floor
            print(f"{'':24}beyond the floor: {format_s(max(0.0, hooks - floor))}", flush=True)
    report.values["gradients beyond the floor"] = added


def run(arguments: argparse.Namespace) -> Report:
    """Measures what was asked for."""
    report = Report(sys.argv)
    kinds = arguments.only.split(",")
    with running([hvd({"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})], arguments.np, 1) as (groups, skipped):
        report.add_groups(groups, skipped)
        for group in groups.values():
            if "layers" in kinds:
                measure_layers(group, effort_of(arguments), report)
            if "gradients" in kinds:
                measure_hooks(group, effort_of(arguments), report, arguments.sets)
    report.judge(OVERHEAD)
    return report


def main() -> int:
    """Reads the command line and measures."""
    parser = build_parser(__doc__, with_peers=False)
    parser.add_argument("--only", default="layers,gradients", help="layers, gradients, or both")
    parser.add_argument("--sets", default=",".join(GRADIENT_SETS), help="some of " + ",".join(GRADIENT_SETS))
    arguments = parser.parse_args()
    return run(arguments).conclude(arguments.json, arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
