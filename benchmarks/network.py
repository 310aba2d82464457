"""Times collectives between agents: ``python -m benchmarks.network --json out.json``.

Two agents on this machine's loopback interface against torch Gloo with as many processes, and against the same bytes over plain
TCP; three agents in network namespaces behind links of 1 Gbit/s (needs root); how often agents call the kernel and the coordinator;
how long a job takes to start.  The peers take turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.cases import Case, single
from benchmarks.cluster.loopback import LoopbackCluster
from benchmarks.cluster.namespaces import why_not
from benchmarks.cluster.netcluster import Cluster
from benchmarks.group import Group
from benchmarks.machine import threads_per_rank
from benchmarks.measure import Effort, Series, measure, running
from benchmarks.peers import gloo, raw
from benchmarks.report import Report
from benchmarks.shapes import small
from benchmarks.site import Site
from benchmarks.startup import measure_startup
from benchmarks.targets import KIB, MIB, AtLeast, AtMost, Target

PARTS = ("pairs", "crowd", "links", "startup")
SIZES = (4 * KIB, 64 * KIB, 8 * MIB, 64 * MIB)
CROWD_BYTES = 16 * MIB
RATE, TOKEN = "1gbit", "of-a-benchmark-in-its-own-namespaces"
_TALLY_S = 1.5  # agents look at their counters twice a second

NETWORK: Sequence[Target] = (
    AtLeast("4 KiB, 2 agents, against Gloo", "1+1/4096", "hvd", "gloo", 0.8),
    AtLeast("64 KiB, 2 agents, against Gloo", "1+1/65536", "hvd", "gloo", 1),
    AtLeast("8 MiB, 2 agents, against Gloo", f"1+1/{8 * MIB}", "hvd", "gloo", 1),
    AtLeast("8 MiB, 2 agents, against Gloo (aim)", f"1+1/{8 * MIB}", "hvd", "gloo", 1.3),
    AtLeast("64 MiB, 2 agents, against Gloo", f"1+1/{64 * MIB}", "hvd", "gloo", 1),
    AtLeast("64 MiB, 2 agents, against Gloo (aim)", f"1+1/{64 * MIB}", "hvd", "gloo", 1.3),
    AtLeast("64 MiB, 2 agents, against plain TCP", f"1+1/{64 * MIB}", "hvd", "raw", 0.7),
    AtLeast("16 MiB, 2 agents with 2 ranks, against Gloo with 4", f"2+2/{16 * MIB}", "hvd", "gloo", 2),
    AtLeast("500 tensors of 4 KB, async, 2 agents, against Gloo", "1+1/500x4KB", "hvd", "gloo", 10),
    AtMost("socket writes of an agent for 500 tensors of 4 KB", "socket writes", "hvd", 100, "writes"),
    AtMost("announcements in steady state", "control messages", "announcements", 0, "messages"),
    AtLeast("64 MiB over 3 links of 1 Gbit/s, against plain TCP", f"1+1+1/{64 * MIB}", "hvd", "raw", 0.9),
    AtMost("horovodrun -np 2, start to first collective, beyond importing torch", "startup", "hvd", 1.5, "s"),
)


def _pairs(arguments: argparse.Namespace, effort: Effort, report: Report) -> None:
    with LoopbackCluster(2) as cluster:
        site = Site(cluster.hosts, slots=1)
        with running([site.peer(), gloo(), raw()], 2, threads_per_rank(2)) as (groups, skipped):
            report.add_groups(groups, skipped)
            for nbytes in SIZES:
                if nbytes <= arguments.max_bytes:
                    report.add(f"1+1/{nbytes}", measure(_series(groups, single(nbytes, "float32")), effort))
            burst = Case("async", small(arguments.tensors))
            report.add(f"1+1/{arguments.tensors}x4KB", measure(_series(groups, burst), effort))
            if "hvd" in groups:
                _count_calls(site, groups["hvd"], burst, report)


def _series(groups: dict[str, Group], case: Case) -> list[Series]:
    able = {name: group for name, group in groups.items() if name != "raw" or case.kind == "blocking"}
    found = [Series(name, group, case) for name, group in able.items()]
    if "hvd" in groups and case.kind == "blocking" and case.shapes[0][0] >= MIB // 4:
        found.append(Series("hvd-arena", groups["hvd"], Case("blocking", case.shapes, place="arena")))
    return found


def _count_calls(site: Site, group: Group, burst: Case, report: Report, bursts: int = 40) -> None:
    """Socket writes per burst and agent, and what the coordinator hears in the meantime."""
    group.order("prepare", name="burst", case=burst.to_json(), warm_up=3)
    before = _counts(site)
    group.order("run", name="burst", inner=1, samples=bursts - 1)  # one more is not timed
    after = _counts(site)
    group.order("drop")
    writes = [(now - then) / bursts for now, then in zip(after["writes"], before["writes"], strict=True)]
    report.values["socket writes"] = {"hvd": max(writes)}
    heard = sum(after["announcements"]) - sum(before["announcements"])
    report.values["control messages"] = {"announcements": heard}
    print(
        f"{'a burst':24}{max(writes):.1f} socket writes of an agent; {heard:g} announcements in {bursts} bursts",
        flush=True,
    )


def _counts(site: Site) -> dict[str, list[float]]:
    time.sleep(_TALLY_S)
    heard = [site.of_coordinator(f"hvd_{what}_total") for what in ("announcements", "plans_made", "plans_retired")]
    return {
        "writes": site.of_agents("hvd_agent_net_socket_calls_total", 'direction="sent"'),
        "announcements": [*heard, *site.of_agents("hvd_agent_announcements_total")],
    }


def _crowd(arguments: argparse.Namespace, effort: Effort, report: Report) -> None:
    nbytes = min(CROWD_BYTES, arguments.max_bytes)
    with LoopbackCluster(2) as cluster:
        site = Site(cluster.hosts, slots=2)
        with running([site.peer(), gloo()], 4, 1) as (groups, skipped):
            report.add_groups(groups, skipped)
            report.add(f"2+2/{nbytes}", measure(_series(groups, single(nbytes, "float32")), effort))


def _links(arguments: argparse.Namespace, effort: Effort, report: Report) -> None:
    reason = why_not()
    if reason:
        report.skipped["links"] = reason
        print(f"skipped links: {reason}", flush=True)
        return
    nbytes = min(64 * MIB, arguments.max_bytes)
    with Cluster(3) as cluster:
        for host in cluster.hosts:
            host.limit(RATE)
        site = Site(cluster.hosts, 1, TOKEN)
        with running([site.peer(), raw(cluster.hosts)], 3, 1) as (groups, skipped):
            report.add_groups(groups, skipped)
            series = [Series(name, group, single(nbytes, "float32")) for name, group in groups.items()]
            report.add(f"1+1+1/{nbytes}", measure(series, effort))


def _startup(arguments: argparse.Namespace, effort: Effort, report: Report) -> None:
    report.values["startup"] = found = measure_startup(2, effort.rounds)
    print(
        f"{'startup':24}{found['whole']:.2f} s to the first collective, importing torch {found['importing torch']:.2f} s"
    )


def run(arguments: argparse.Namespace) -> Report:
    """Measures what was asked for."""
    parts: dict[str, Callable[[argparse.Namespace, Effort, Report], None]] = dict(
        zip(PARTS, (_pairs, _crowd, _links, _startup), strict=True)
    )
    report = Report(sys.argv)
    effort = Effort(rounds=arguments.rounds, budget_s=arguments.budget_s)
    for name in arguments.only.split(","):
        parts[name](arguments, effort, report)
    report.judge(NETWORK)
    return report


def main() -> int:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    parser.add_argument("--max-bytes", type=int, default=64 * MIB, help="leave larger tensors out")
    parser.add_argument("--tensors", type=int, default=500, help="of a burst")
    parser.add_argument("--rounds", type=int, default=Effort().rounds, help="turns that each series takes")
    parser.add_argument("--budget-s", type=float, default=Effort().budget_s, help="seconds of each turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    arguments = parser.parse_args()
    return run(arguments).conclude(arguments.json, arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
