"""The options of ``horovodrun``: one table that says of each what it does here.

An option works, or it is accepted and one line says what it means here, or it is refused with the reason.  None is
ignored.  Options that are not given leave no trace in the environment of the ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["OPTIONS", "Option", "build_parser", "dest_of", "given"]

_ELASTIC = "elastic jobs are not supported yet: the number of ranks is fixed by -np."
_SSH = "ranks on other hosts are started by hvd-agent, not through ssh: see --coordinator."
_MPI = "this launcher starts no mpirun: leave the option out, the ranks of a host meet in shared memory."
_TIMELINE = "the timeline is not supported yet."
_AUTOTUNE = "there is nothing to tune yet: fusion buffers and cycles do not exist here."
_NO_CYCLE = "accepted without effect: operations are not collected in cycles, each starts when its ranks have arrived."
_NO_FUSION = "accepted without effect: gradients are fused in shared memory by DistributedOptimizer, not in a copy."
_ONE_HOST = "accepted without effect: on one host all ranks reduce together in shared memory."
_NO_NIC = "accepted without effect: the ranks of one host use no network."
_NO_GLOO = "accepted without effect: the processes of all ranks are watched, so nobody waits for a dead one."
_NO_MPI_THREADS = "accepted without effect: no MPI is used."


@dataclass(frozen=True, slots=True)
class Option:
    """One option: names, how argparse reads it, and what it means here.

    ``variable`` is set for the ranks when the option is given.  ``note`` is printed then; ``refusal`` ends the launch.
    ``value`` is what a switch stands for; None: it takes ``n`` arguments of ``type``.
    """

    names: tuple[str, ...]
    help: str = ""
    dest: str = ""
    type: type = str
    value: bool | None = None
    n: int = 1
    metavar: str = ""
    group: str = ""
    variable: str = ""
    note: str = ""
    refusal: str = ""
    not_negative: bool = False


def _switch(name: str, help: str = "", dest: str = "", value: bool = True, **more: str) -> Option:
    return Option((name,), help, dest, value=value, **more)  # type: ignore[arg-type]


def _pair(name: str, no: str, help: str = "", **more: str) -> list[Option]:
    dest = name.lstrip("-").replace("-", "_")
    return [_switch(name, help, dest, True, **more), _switch(no, "", dest, False, **more)]


def _number(*names: str, help: str = "", **more: object) -> Option:
    return Option(names, help, **{"type": int, "not_negative": True, "metavar": "N", **more})  # type: ignore[arg-type]


def _refused(reason: str, *names: str, n: int = 1, value: bool | None = None) -> Option:
    return Option(names, refusal=reason, n=n, value=value)


OPTIONS: tuple[Option, ...] = (
    Option(("-np", "--num-proc"), "number of ranks", type=int, metavar="N"),
    _switch("--verbose", "say what the launcher does"),
    Option(("--coordinator",), "run on the agents of this hvd-coordinator, not on this host", metavar="HOST:PORT"),
    _switch("--wait", "with --coordinator: queue behind other jobs, and wait for agents"),
    Option(
        ("--coordinator-timeout",),
        "with --coordinator: wait so long for one that is gone to be started anew (300, HVD_COORDINATOR_TIMEOUT_SECONDS)",
        metavar="S",
        type=float,
    ),
    _switch("--attach", "with --coordinator: no command, the ranks are processes that others start (HOROVOD_AGENT)"),
    Option(("--token-file",), "with --coordinator: holds the token (HVD_TOKEN_FILE, HVD_TOKEN)", metavar="FILE"),
    Option(("--tls-ca",), "with --coordinator: the authority that has signed its certificate", metavar="FILE"),
    Option(("--tls-cert",), "with --coordinator: certificate to show to it", metavar="FILE"),
    Option(("--tls-key",), "with --coordinator: its key", metavar="FILE"),
    Option(("--config-file",), "YAML file with settings; options on the command line win", metavar="FILE"),
    Option(
        ("--output-filename",),
        "folder that receives the output of each rank, as rank.<n>/stdout and stderr, and failure.json if one fails",
        metavar="DIR",
    ),
    _switch("--disable-cache", "accepted: no checks are cached"),
    _switch(
        "--deterministic",
        "results repeat from run to run: the hosts pass data on in the order of their names",
        variable="HOROVOD_DETERMINISTIC",
    ),
    _number("--start-timeout", help="seconds in which all ranks must call init; 30 warns, given fails", metavar="S"),
    Option(("-H", "--hosts"), "where ranks run: localhost:<slots>", metavar="HOST:SLOTS", group="hosts"),
    Option(("-hostfile", "--hostfile"), "file with lines '<host> slots=<n>'", metavar="FILE", group="hosts"),
    Option(("--host-discovery-script",), group="hosts", refusal=_ELASTIC),
    _switch("--gloo", "accepted: its controller is what this launcher stands in for", group="controller"),
    Option(("--mpi",), value=True, group="controller", refusal=_MPI),
    Option(("--jsrun",), value=True, group="controller", refusal=_MPI),
    _number(
        "--fusion-threshold-mb",
        variable="HOROVOD_FUSION_THRESHOLD",
        note=_NO_FUSION,
    ),
    _number("--cycle-time-ms", type=float, variable="HOROVOD_CYCLE_TIME", note=_NO_CYCLE),
    _number(
        "--cache-capacity",
        help="plans kept, least used ones go first; 0 negotiates every operation",
        variable="HOROVOD_CACHE_CAPACITY",
    ),
    *_pair(
        "--hierarchical-allreduce",
        "--no-hierarchical-allreduce",
        variable="HOROVOD_HIERARCHICAL_ALLREDUCE",
        note=_ONE_HOST,
    ),
    *_pair(
        "--hierarchical-allgather",
        "--no-hierarchical-allgather",
        variable="HOROVOD_HIERARCHICAL_ALLGATHER",
        note=_ONE_HOST,
    ),
    *_pair("--torus-allreduce", "--no-torus-allreduce", variable="HOROVOD_TORUS_ALLREDUCE", note=_ONE_HOST),
    _switch(
        "--no-stall-check", "do not warn of ranks that wait", "no_stall_check", variable="HOROVOD_STALL_CHECK_DISABLE"
    ),
    _switch("--stall-check", "", "no_stall_check", False, variable="HOROVOD_STALL_CHECK_DISABLE"),
    _number(
        "--stall-check-warning-time-seconds",
        help="seconds a rank may wait for others before a warning (60)",
        variable="HOROVOD_STALL_CHECK_TIME_SECONDS",
        metavar="S",
    ),
    _number(
        "--stall-check-shutdown-time-seconds",
        help="seconds a rank may wait for others before the job fails (0: for ever)",
        variable="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        metavar="S",
    ),
    Option(
        ("--log-level",),
        "TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
        variable="HOROVOD_LOG_LEVEL",
        metavar="LEVEL",
    ),
    _switch(
        "--log-without-timestamp",
        "log lines without the time",
        "log_without_timestamp",
        variable="HOROVOD_LOG_HIDE_TIME",
    ),
    _switch("--log-hide-timestamp", "", "log_without_timestamp", variable="HOROVOD_LOG_HIDE_TIME"),
    _switch("--log-with-timestamp", "", "log_without_timestamp", False, variable="HOROVOD_LOG_HIDE_TIME"),
    _switch("--no-log-hide-timestamp", "", "log_without_timestamp", False, variable="HOROVOD_LOG_HIDE_TIME"),
    Option(("-prefix-timestamp", "--prefix-output-with-timestamp"), "time before each line of output", value=True),
    Option(("--network-interfaces", "--network-interface"), note=_NO_NIC),
    _number("--gloo-timeout-seconds", variable="HOROVOD_GLOO_TIMEOUT_SECONDS", note=_NO_GLOO),
    *_pair(
        "--mpi-threads-disable",
        "--no-mpi-threads-disable",
        variable="HOROVOD_MPI_THREADS_DISABLE",
        note=_NO_MPI_THREADS,
    ),
    _refused(_SSH, "-p", "--ssh-port"),
    _refused(_SSH, "-i", "--ssh-identity-file"),
    _refused(_ELASTIC, "--min-np", "--min-num-proc"),
    _refused(_ELASTIC, "--max-np", "--max-num-proc"),
    _refused(_ELASTIC, "--slots-per-host"),
    _refused(_ELASTIC, "--elastic-timeout"),
    _refused(_ELASTIC, "--reset-limit"),
    _refused(_ELASTIC, "--blacklist-cooldown-range", n=2),
    _refused(_TIMELINE, "--timeline-filename"),
    _refused(_TIMELINE, "--timeline-mark-cycles", value=True),
    _refused(_TIMELINE, "--no-timeline-mark-cycles", value=True),
    _refused(_AUTOTUNE, "--autotune", value=True),
    _refused(_AUTOTUNE, "--no-autotune", value=True),
    _refused(_AUTOTUNE, "--autotune-log-file"),
    _refused(_AUTOTUNE, "--autotune-warmup-samples"),
    _refused(_AUTOTUNE, "--autotune-steps-per-sample"),
    _refused(_AUTOTUNE, "--autotune-bayes-opt-max-samples"),
    _refused(_AUTOTUNE, "--autotune-gaussian-process-noise"),
    _refused(_MPI, "--mpi-args"),
    _refused(_MPI, "--tcp", value=True),
    _refused(_MPI, "--binding-args"),
    _refused("NCCL is not used yet: tensors are reduced in host memory.", "--num-nccl-streams"),
    _refused("there is no background thread that computes; nothing is pinned.", "--thread-affinity"),
)


def dest_of(option: Option) -> str:
    """The attribute that argparse fills."""
    if option.dest:
        return option.dest
    return next(name for name in reversed(option.names) if name.startswith("--")).lstrip("-").replace("-", "_")


class _Formatter(argparse.HelpFormatter):
    """A usage line without the options: there are too many."""


def build_parser() -> argparse.ArgumentParser:
    """The parser; everything from the first word that is no option on is the command."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np N [options] command [arguments]",
        description="Runs N copies of a command that train together on this host.",
        formatter_class=_Formatter,
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    parser.add_argument("-cb", "--check-build", action="store_true", help="say what works here")
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        target = groups.setdefault(option.group, parser.add_mutually_exclusive_group()) if option.group else parser
        target.add_argument(*option.names, **_keywords(option))
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="command", help="what each rank runs")
    return parser


def _keywords(option: Option) -> dict[str, Any]:
    keywords: dict[str, Any] = {"dest": dest_of(option), "default": None, "help": option.help or argparse.SUPPRESS}
    if option.value is not None:
        return keywords | {"action": "store_const", "const": option.value}
    keywords |= {"type": str if option.refusal else option.type, "metavar": option.metavar or "VALUE"}
    return keywords | ({"nargs": option.n} if option.n != 1 else {})


def given(options: Sequence[Option], arguments: argparse.Namespace) -> list[Option]:
    """The options that were given, one for each attribute."""
    found: dict[str, Option] = {}
    for option in options:
        value = getattr(arguments, dest_of(option), None)
        if value is not None and (option.value is None or option.value == value):
            found.setdefault(dest_of(option), option)
    return list(found.values())
