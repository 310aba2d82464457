"""Times an allreduce of one tensor: ``python -m benchmarks.allreduce --np 2 --peers gloo,openmpi --json out.json``.

Series: ``hvd`` reduces a tensor in ordinary memory, copies included; ``hvd-arena`` one that lives in the arena;
``floor`` is the reduction kernel on the same buffers, split over the ranks, without rounds.  Sums are checked first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from benchmarks.cases import Case, single
from benchmarks.group import Group
from benchmarks.machine import threads_per_rank
from benchmarks.measure import Effort, Series, measure, running
from benchmarks.options import build_parser, effort_of, peers_of
from benchmarks.report import Report
from benchmarks.targets import ALLREDUCE, KIB, MIB, case_name

SIZES = {
    "float32": (8, 4 * KIB, 64 * KIB, MIB, 8 * MIB, 64 * MIB),
    "float16": (MIB, 8 * MIB, 64 * MIB),
    "bfloat16": (MIB, 8 * MIB, 64 * MIB),
}
SMALLEST_IN_ARENA = MIB
CROWD = 4  # ranks of the case in which ranks outnumber cores
CROWD_BYTES = 4 * KIB


def series_of(groups: Mapping[str, Group], nbytes: int, dtype: str) -> list[Series]:
    """Who does what with one size."""
    found = [Series(name, group, single(nbytes, dtype)) for name, group in groups.items()]
    if "hvd" in groups and nbytes >= SMALLEST_IN_ARENA:
        found.append(Series("hvd-arena", groups["hvd"], single(nbytes, dtype, place="arena")))
        found.append(Series("floor", groups["hvd"], Case("floor", [(single(nbytes, dtype).shapes[0][0],)], dtype)))
    return found


def _sizes(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    wanted = [int(size) for size in arguments.sizes.split(",") if size]
    return [
        (dtype, nbytes)
        for dtype in arguments.dtypes.split(",")
        for nbytes in (wanted or SIZES[dtype])
        if nbytes <= arguments.max_bytes
    ]


def run(arguments: argparse.Namespace) -> Report:
    """Measures all sizes, then the case with more ranks than cores."""
    report = Report(sys.argv)
    peers, effort = peers_of(arguments), effort_of(arguments)
    with running(peers, arguments.np, threads_per_rank(arguments.np)) as (groups, skipped):
        report.add_groups(groups, skipped)
        for dtype, nbytes in _sizes(arguments):
            report.add(case_name(dtype, nbytes), measure(series_of(groups, nbytes, dtype), effort))
    if not arguments.no_crowd:
        _run_crowd(arguments, effort, report)
    report.judge(ALLREDUCE)
    return report


def _run_crowd(arguments: argparse.Namespace, effort: Effort, report: Report) -> None:
    with running(peers_of(arguments), CROWD, 1) as (groups, skipped):
        report.add_groups(groups, skipped)
        outcome = measure(series_of(groups, CROWD_BYTES, "float32"), effort)
        report.add(f"{CROWD} ranks/{case_name('float32', CROWD_BYTES)}", outcome)


def main() -> int:
    """Reads the command line and measures."""
    parser = build_parser(__doc__)
    parser.add_argument("--sizes", default="", help="bytes, separated by commas; default: a table by dtype")
    parser.add_argument("--dtypes", default=",".join(SIZES), help="float32, float16, bfloat16")
    parser.add_argument("--max-bytes", type=int, default=64 * MIB, help="leave larger sizes out")
    parser.add_argument("--no-crowd", action="store_true", help="leave out the case with more ranks than cores")
    arguments = parser.parse_args()
    return run(arguments).conclude(arguments.json, arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
