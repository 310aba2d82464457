"""``hvd-coordinator``: reads arguments and environment, serves until a signal.

Exit codes: 0 after SIGTERM, SIGINT or SIGHUP, 1 after an error of its own, 2 for a call that can't work.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import horovod
from horovod.coordinator.server import Server, until_free
from horovod.coordinator.service import Service, ServiceOptions
from horovod.proto.security import (
    Address,
    Security,
    SecurityProblem,
    TlsFiles,
    load_security,
    load_token,
    parse_address,
)
from horovod.proto.signals import heard_in_loop

if TYPE_CHECKING:
    from horovod.observe.http import HttpServer

__all__ = ["build_parser", "run_commandline"]

log = logging.getLogger("horovod.coordinator")

_JOB_END_S = 12.0  # what a running job gets when the coordinator is stopped
_LAST_WORDS_S = 1.0
_GC = (50_000, 20, 100)  # a thousand agents announce hundreds of thousands of objects, hardly any of which are garbage


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="hvd-coordinator", description="Coordinates agents, and runs jobs on them.")
    add = parser.add_argument
    add("--version", action="version", version=horovod.__version__)
    add(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:50051", help="default 127.0.0.1:50051; port 0: any free one"
    )
    add("--token-file", metavar="FILE", default="", help="holds the token of the cluster (HVD_TOKEN_FILE, HVD_TOKEN)")
    add("--tls-cert", metavar="FILE", default="", help="certificate of this server")
    add("--tls-key", metavar="FILE", default="", help="its key")
    add("--tls-ca", metavar="FILE", default="", help="agents and launchers must show a certificate of this authority")
    add(
        "--peer-timeout",
        "--heartbeat-timeout",
        metavar="S",
        type=float,
        default=10.0,
        help="an agent that is silent for so long is lost (10)",
    )
    add(
        "--np",
        metavar="N",
        type=int,
        default=0,
        help="N processes that others start (HOROVOD_AGENT) are a job, whenever no other one runs",
    )
    add("--http-listen", metavar="HOST:PORT", default="", help="serve metrics, health and state there")
    add("--metrics-port", metavar="P", type=int, default=-1, help="the same on this port of --listen's host")
    add("--log-level", metavar="LEVEL", default="INFO", help="DEBUG, INFO, WARNING or ERROR")
    return parser


def run_commandline(argv: Sequence[str] | None = None) -> int:
    """The program; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is told in our own words
    gc.set_threshold(*_GC)
    try:
        _start_logging(arguments.log_level)
        return asyncio.run(_serve(arguments))
    except SecurityProblem as problem:
        print(f"hvd-coordinator: error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


async def _serve(arguments: argparse.Namespace) -> int:
    if arguments.peer_timeout < 1:
        raise SecurityProblem(
            f"--peer-timeout {arguments.peer_timeout:g} must be at least 1: a loaded host may be silent for so long"
        )
    if arguments.np < 0:
        raise SecurityProblem(f"--np {arguments.np} must be at least 1")
    files = TlsFiles(arguments.tls_cert, arguments.tls_key, arguments.tls_ca)
    security = load_security(load_token(arguments.token_file, os.environ), files)
    stopping, broken = asyncio.Event(), asyncio.Event()
    options = ServiceOptions(
        peer_timeout_s=arguments.peer_timeout, broken=lambda error: broken.set(), self_started=arguments.np
    )
    service = Service(options)
    try:
        listen = parse_address(arguments.listen, "--listen")
        await until_free(listen)
        # Before the port is open: whoever comes may take all descriptors that are left.
        with heard_in_loop(asyncio.get_running_loop(), lambda _number: stopping.set()):
            server = Server(service, listen, security)
            started = asyncio.Event()
            http = await _serve_http(service, started.is_set, arguments, listen)
            await server.start()
            started.set()
            print(f"hvd-coordinator: listening on {server.address}", flush=True)
            log.info("Agents and launchers need %s.", _wanted_of_callers(security))
            await _first_of(stopping, broken)
            if not broken.is_set():
                await _end_jobs(service)
            stopped = asyncio.ensure_future(server.stop(_LAST_WORDS_S))
            service.agents.close()
            await stopped
        if http is not None:
            await http.close()
    finally:
        service.close()
    return 1 if broken.is_set() else 0


def _wanted_of_callers(security: Security) -> str:
    """Whoever has it not, or has something else, fails before the first word: of that nothing is heard here."""
    wanted = ["the token"] if security.secret else []
    if security.uses_tls:
        wanted.append("--tls-ca with the authority of this certificate")
    if security.ca:
        wanted.append("--tls-cert and --tls-key that the authority here has signed")
    return ", ".join(wanted) or "neither a token nor certificates"


async def _serve_http(
    service: Service, is_listening: Callable[[], bool], arguments: argparse.Namespace, listen: Address
) -> HttpServer | None:
    if not arguments.http_listen and arguments.metrics_port < 0:
        return None
    from horovod.coordinator.http import coordinator_server  # loads what is not needed otherwise

    where, option = Address(listen.host, arguments.metrics_port), "--metrics-port"
    if arguments.http_listen:
        where, option = parse_address(arguments.http_listen, "--http-listen"), "--http-listen"
    try:
        http = coordinator_server(service, is_listening, where.host, where.port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SecurityProblem(f"can't serve metrics on {where}: {reason}; choose another port with {option}") from error
    await http.start()
    print(f"hvd-coordinator: metrics on {Address(where.host, http.port)}", flush=True)
    return http


async def _first_of(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _end_jobs(service: Service) -> None:
    """Cancels what runs; waits for its end as long as that can take."""
    service.desk.close("The coordinator was stopped.")
    end = asyncio.get_running_loop().time() + _JOB_END_S
    while not service.desk.is_idle and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.05)


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
