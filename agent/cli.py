"""``hvd-agent``: reads arguments and environment, serves this host until a signal.

Exit codes: 0 after SIGTERM, SIGINT or SIGHUP, 1 after an error of its own, 2 for a call that can't work or that is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import horovod
from horovod.agent.cores import available_cores
from horovod.agent.daemon import Daemon, DaemonOptions, PlaneSettings
from horovod.agent.helpers import helpers_problem
from horovod.agent.planes.plane import plane_problem
from horovod.agent.planes.tcp import TcpOptions
from horovod.proto.security import (
    Address,
    SecurityProblem,
    TlsFiles,
    coordinator_timeout,
    is_loopback,
    load_security,
    load_token,
    parse_address,
)
from horovod.proto.signals import heard_in_loop

if TYPE_CHECKING:
    from horovod.observe.http import HttpServer

__all__ = ["build_parser", "run_commandline"]

_PLANE_VARIABLES = ("HOROVOD_CPU_OPERATIONS", "HOROVOD_CPU_ALLREDUCE")

log = logging.getLogger("horovod.agent")


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="hvd-agent", description="Runs this host's ranks for a coordinator.")
    add = parser.add_argument
    add("--version", action="version", version=horovod.__version__)
    add("--coordinator", metavar="HOST:PORT", required=True, help="where hvd-coordinator listens")
    add("--name", metavar="NAME", default="", help="unique among the agents; default: the host's name")
    add("--slots", metavar="N", type=int, default=0, help="ranks that may run here; default: one for each core")
    add(
        "--label",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="where this host is, such as rack=7; repeat it",
    )
    add("--token-file", metavar="FILE", default="", help="holds the token of the cluster (HVD_TOKEN_FILE, HVD_TOKEN)")
    add("--tls-ca", metavar="FILE", default="", help="the authority that has signed the coordinator's certificate")
    add("--tls-cert", metavar="FILE", default="", help="certificate to show to the coordinator")
    add("--tls-key", metavar="FILE", default="", help="its key")
    add(
        "--metrics-port",
        metavar="P",
        type=int,
        default=-1,
        help="serve metrics, health and state there: on 127.0.0.1, with a token on all",
    )
    add(
        "--allow-uid",
        metavar="UID",
        type=int,
        action="append",
        default=[],
        help="ranks may run as this user too; repeat it",
    )
    add(
        "--socket",
        metavar="ADDRESS",
        default="",
        help="where processes come in that you start yourself (HOROVOD_AGENT): /run/hvd/agent.sock, or @name",
    )
    add("--plane", metavar="NAME", default="", help="what moves data between hosts: tcp or gloo; default: tcp")
    add("--data-listen", metavar="HOST", default="", help="address at which other agents' data come in; default: all")
    add("--data-ports", metavar="A-B", default="", help="ports for it, for firewalls; default: any")
    add("--advertise", metavar="HOST", default="", help="address that other agents are told; default: tried in turn")
    add("--interface", metavar="NIC", default="", help="tell other agents the addresses of this interface only")
    add("--peer-timeout", metavar="S", type=float, default=10.0, help="an agent that is silent for so long is lost")
    add(
        "--coordinator-timeout",
        metavar="S",
        type=float,
        default=None,
        help="ranks go on without a coordinator for so long (300, HVD_COORDINATOR_TIMEOUT_SECONDS)",
    )
    add("--log-level", metavar="LEVEL", default="INFO", help="DEBUG, INFO, WARNING or ERROR")
    return parser


def run_commandline(argv: Sequence[str] | None = None) -> int:
    """The program; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is told in our own words
    try:
        _start_logging(arguments.log_level)
        return asyncio.run(_serve(_options(arguments), arguments.metrics_port))
    except SecurityProblem as problem:
        print(f"hvd-agent: error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def _options(arguments: argparse.Namespace) -> DaemonOptions:
    coordinator = parse_address(arguments.coordinator, "--coordinator")
    is_loopback(coordinator.host)  # a name that nobody knows is told now
    files = TlsFiles(arguments.tls_cert, arguments.tls_key, arguments.tls_ca)
    if problem := helpers_problem(os.environ.get("HVD_HELPERS", "")):
        raise SecurityProblem(problem)
    if arguments.slots < 0:
        raise SecurityProblem(f"--slots {arguments.slots} must be at least 1")
    host = socket.gethostname()
    return DaemonOptions(
        coordinator=coordinator,
        security=load_security(load_token(arguments.token_file, os.environ), files),
        name=arguments.name or host,
        host=host,
        slots=arguments.slots or max(1, int(available_cores())),
        labels=dict(map(_label, arguments.label)),
        environment=dict(os.environ),
        helpers=os.environ.get("HVD_HELPERS", ""),
        allowed_uids=frozenset(arguments.allow_uid),
        coordinator_timeout_s=coordinator_timeout(arguments.coordinator_timeout, os.environ),
        socket=arguments.socket,
        plane=_plane(arguments, bool(load_token(arguments.token_file, os.environ))),
    )


def _plane_name(argument: str, environment: Mapping[str, str]) -> str:
    given = [("--plane", argument), *((name, environment.get(name, "").strip()) for name in _PLANE_VARIABLES)]
    source, name = next(((source, value) for source, value in given if value), ("", "tcp"))
    if problem := plane_problem(name, source):
        raise SecurityProblem(problem)
    if name.lower() == "gloo" and importlib.util.find_spec("torch") is None:
        raise SecurityProblem(
            f"the plane gloo ({source}) needs the package torch, which this host does not have: `pip install torch`, "
            "or use --plane tcp on all hosts"
        )
    return name.lower()


def _plane(arguments: argparse.Namespace, has_token: bool) -> PlaneSettings:
    if arguments.peer_timeout < 2:
        raise SecurityProblem(f"--peer-timeout {arguments.peer_timeout:g} must be at least 2 seconds")
    name = _plane_name(arguments.plane, os.environ)
    return PlaneSettings(
        name=name,
        listen=arguments.data_listen or ("" if has_token else "127.0.0.1"),
        ports=_ports(arguments.data_ports),
        advertise=arguments.advertise,
        interface=arguments.interface,
        tcp=TcpOptions(lanes=1 if name == "gloo" else 2, silent_s=arguments.peer_timeout),
    )


def _ports(text: str) -> range:
    first, _, last = text.partition("-")
    if not text:
        return range(1)
    if not first.isdigit() or not (last or first).isdigit() or not 0 < int(first) <= int(last or first) < 65536:
        raise SecurityProblem(f"--data-ports {text!r} must be written A-B, for example 7000-7099")
    return range(int(first), int(last or first) + 1)


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise SecurityProblem(f"--label {text!r} must be written KEY=VALUE, for example rack=7")
    return key, value


async def _serve(options: DaemonOptions, metrics_port: int) -> int:
    try:
        daemon = Daemon(options)
    except (OSError, ValueError) as error:  # a port that is taken, an interface that is missing
        raise SecurityProblem(str(error)) from error
    http = await _serve_http(daemon, metrics_port) if metrics_port >= 0 else None
    if daemon.lobby is not None:
        print(f"hvd-agent: HOROVOD_AGENT={daemon.lobby.shell.address}", flush=True)
    with heard_in_loop(asyncio.get_running_loop(), lambda number: daemon.stop(f"it was stopped by {number.name}")):
        code = await daemon.run()
    if http is not None:
        await http.close()
    if daemon.problem:
        print(f"hvd-agent: error: {daemon.problem}", file=sys.stderr)
    return code


async def _serve_http(daemon: Daemon, port: int) -> HttpServer:
    from horovod.agent.http import agent_server  # loads what is not needed otherwise

    where = Address("0.0.0.0" if daemon.options.security.secret else "127.0.0.1", port)
    try:
        http = agent_server(daemon, where.host, where.port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SecurityProblem(
            f"can't serve metrics on {where}: {reason}; choose another port with --metrics-port"
        ) from error
    await http.start()
    print(f"hvd-agent: metrics on {Address(where.host, http.port)}", flush=True)
    return http


def _start_logging(level: str) -> None:
    numeric = getattr(logging, level.upper(), None)
    if not isinstance(numeric, int):
        raise SecurityProblem(f"--log-level {level} must be DEBUG, INFO, WARNING or ERROR")
    root = logging.getLogger("horovod")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root.handlers = [handler]
    root.setLevel(numeric)
    root.propagate = False
