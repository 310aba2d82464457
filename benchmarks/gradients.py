"""Times what training does with many gradients: ``python -m benchmarks.gradients --np 2 --peers gloo --json out.json``.

* sets of tensors, submitted asynchronously and then awaited: ResNet-50, 500 small ones, GPT-2 small;
* a training step with 160 gradients: what ``DistributedOptimizer`` (or DDP) adds to the step of ranks that don't speak;
* a new name in every step, and memory over many of them;
* shared memory of a rank that trains with ``DistributedOptimizer``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from statistics import median

from benchmarks.cases import Case, single
from benchmarks.group import Group
from benchmarks.machine import threads_per_rank
from benchmarks.measure import Effort, Outcome, Series, measure, running
from benchmarks.memory import memfd_bytes, private_bytes, tree
from benchmarks.options import build_parser, effort_of, peers_of
from benchmarks.peers import hvd
from benchmarks.report import Report, format_s
from benchmarks.shapes import SETS, layers, total_bytes
from benchmarks.stats import slowest
from benchmarks.targets import GRADIENTS

KINDS = ("sets", "step", "names", "memory")
NAME_TURNS = 10


def measure_sets(groups: Mapping[str, Group], effort: Effort, report: Report, wanted: str) -> None:
    """Every set of tensors, on every peer."""
    for name in wanted.split(","):
        case = Case("async", SETS[name]())
        print(f"{name}: {len(case.shapes)} tensors, {total_bytes(case.shapes) / 1e6:.1f} MB", flush=True)
        report.add(name, measure([Series(peer, group, case) for peer, group in groups.items()], effort))


def measure_step(groups: Mapping[str, Group], effort: Effort, report: Report, batch: int) -> None:
    """The step with and without a reduction, in turns, and the difference."""
    shapes = layers()
    print(f"step: {len(shapes)} tensors, {total_bytes(shapes) / 1e6:.1f} MB, batch {batch}", flush=True)
    able = {name: group for name, group in groups.items() if name != "openmpi"}
    series = [
        Series(f"{name}{suffix}", group, Case(kind, shapes, batch=batch))
        for name, group in able.items()
        for kind, suffix in (("step-alone", "-alone"), ("step", ""))
    ]
    outcome = measure(series, effort)
    report.add("step", outcome)
    report.values["step added"] = added_s(outcome)
    for name, seconds in report.values["step added"].items():
        print(f"{'step added':24}{name} {format_s(seconds)}", flush=True)


def added_s(outcome: Outcome, base: str = "alone") -> dict[str, float]:
    """What each peer adds to the step of its own ranks alone, or of a single one; below a microsecond it is noise."""
    names = outcome.summaries.keys()
    pairs = {name: f"{name}-{base}" for name in names if f"{name}-{base}" in names}
    return {name: max(1e-6, outcome.median_difference(name, other)) for name, other in pairs.items()}


def measure_names(group: Group, report: Report, count: int) -> None:
    """A new name every step; memory of ranks and launcher after each tenth."""
    group.order("prepare", name="names", case=single(4096, "float32", kind="names").to_json(), warm_up=10)
    pids = tree(group.launcher_pids)
    samples: list[float] = []
    used: list[int] = []
    for _ in range(NAME_TURNS):
        answers = group.order("run", name="names", inner=max(1, count // NAME_TURNS // 10), samples=10)
        samples += slowest([answer["seconds"] for answer in answers])
        used.append(private_bytes(pids) + sum(nbytes for _, nbytes in memfd_bytes(pids).values()))
    group.order("drop")
    # Peaks: a rank's memory falls by a tenth whenever one of its tables is built anew, and comes back.
    growth = max(used[NAME_TURNS // 2 :]) - max(used[: NAME_TURNS // 2])
    report.values["names"] = {"hvd": median(samples)}
    report.values["names growth"] = {"bytes": float(growth), "names": float(count)}
    print(
        f"{'names':24}hvd {format_s(median(samples))}, {count} names, grew by {growth / 1e6:.2f} MB in the later half"
    )


def measure_memory(report: Report, size: int, batch: int) -> None:
    """Shared memory of ranks that have done nothing but train, against the bytes of their gradients."""
    shapes = layers()
    with running([hvd()], size, threads_per_rank(size)) as (groups, skipped):
        report.add_groups(groups, skipped)
        if "hvd" not in groups:
            return
        groups["hvd"].order("prepare", name="step", case=Case("step", shapes, batch=batch).to_json(), warm_up=10)
        found = memfd_bytes(tree(groups["hvd"].launcher_pids)).values()
    arenas = [nbytes for name, nbytes in found if "arena" in name]
    others = sum(nbytes for name, nbytes in found if "arena" not in name)
    gradient_bytes = total_bytes(shapes)
    used = max(arenas, default=0) + others
    report.values["memory"] = {
        "gradients": float(gradient_bytes),
        "arena": float(max(arenas, default=0)),
        "board": float(others),
        "excess": used - 1.1 * gradient_bytes,
    }
    print(
        f"{'memory':24}arena {max(arenas, default=0) / 1e6:.1f} MB + board {others / 1e6:.1f} MB, "
        f"gradients {gradient_bytes / 1e6:.1f} MB"
    )


def run(arguments: argparse.Namespace) -> Report:
    """Measures what was asked for."""
    report = Report(sys.argv)
    kinds = arguments.only.split(",")
    with running(peers_of(arguments), arguments.np, threads_per_rank(arguments.np)) as (groups, skipped):
        report.add_groups(groups, skipped)
        if "sets" in kinds:
            measure_sets(groups, effort_of(arguments), report, arguments.sets)
        if "step" in kinds:
            measure_step(groups, effort_of(arguments), report, arguments.batch)
        if "names" in kinds and "hvd" in groups:
            measure_names(groups["hvd"], report, arguments.names)
    if "memory" in kinds and not arguments.without_hvd:
        measure_memory(report, arguments.np, arguments.batch)
    report.judge(GRADIENTS)
    return report


def main() -> int:
    """Reads the command line and measures."""
    parser = build_parser(__doc__)
    parser.add_argument("--only", default=",".join(KINDS), help="some of " + ",".join(KINDS))
    parser.add_argument("--sets", default=",".join(SETS), help="some of " + ",".join(SETS))
    parser.add_argument("--batch", type=int, default=64, help="rows per rank in a training step")
    parser.add_argument("--names", type=int, default=100_000, help="how many new names")
    arguments = parser.parse_args()
    return run(arguments).conclude(arguments.json, arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
