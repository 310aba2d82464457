"""``horovodrun``: reads the command line, runs the job, says how it ended.

Exit codes: 0 when every rank finished, else the code of the first failure (128 + signal), 130 and 143 for Ctrl-C and
SIGTERM, 2 for a call that can't work.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import horovod
from horovod.agent.limits import shortage
from horovod.agent.output import OutputOptions
from horovod.coordinator.core import Config
from horovod.proto.security import (
    SecurityProblem,
    TlsFiles,
    coordinator_timeout,
    is_loopback,
    load_security,
    load_token,
    parse_address,
)
from horovod.runner.check_build import check_build
from horovod.runner.environment import inherited, quiet_grpc, secrets_of
from horovod.runner.hosts import HostInfo, local_slots, parse_host_files, parse_hosts
from horovod.runner.job import JobSpec, run_job_with_signals
from horovod.runner.report import JobResult, failure_text, write_record
from horovod.runner.settings import UsageProblem, notes_of, parse_args, variables_of
from horovod.runner.variables import check_variables, environment_notes

if TYPE_CHECKING:
    from horovod.runner.remote import RemoteSpec

__all__ = [
    "check_build",
    "coordinator_config",
    "hosts_of",
    "job_spec",
    "number",
    "open_standard_descriptors",
    "output_directory",
    "parse_args",
    "remote_spec",
    "report",
    "run_commandline",
    "say",
    "start_logging",
]

log = logging.getLogger("horovod")

_LEVELS = {"TRACE": logging.DEBUG, "FATAL": logging.CRITICAL}


def run_commandline(argv: Sequence[str] | None = None) -> int:
    """The program; returns the exit code."""
    open_standard_descriptors()
    try:
        arguments = parse_args(argv)
        if arguments.version:
            print(horovod.__version__)
            return 0
        if arguments.check_build:
            return check_build(bool(arguments.verbose))
        return _run(arguments)
    except UsageProblem as problem:
        say(f"error: {problem}")
        return 2
    except KeyboardInterrupt:
        return 130


def open_standard_descriptors() -> None:
    """Where 0, 1 or 2 is closed, the next file would get that number, and output of ranks with it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _run(arguments: argparse.Namespace) -> int:
    """Runs the job that the arguments describe; returns the exit code."""
    environment = {**inherited(), **variables_of(arguments)}
    start_logging(environment, bool(arguments.verbose))
    check_variables(environment)
    for note in [*notes_of(arguments), *environment_notes(told=variables_of(arguments))]:
        say(note)
    output = OutputOptions(
        timestamps=bool(arguments.prefix_output_with_timestamp),
        directory=output_directory(arguments.output_filename),
    )
    job = _job(arguments, environment, output)
    try:
        result = asyncio.run(job)
    except UsageProblem:
        raise
    except Exception as error:
        result = _failed(error)
    finally:
        job.close()
    if result.code != 0:
        report(result, output.directory)
    return result.code


def _failed(error: Exception) -> JobResult:
    """A limit of the machine is told as such; all else is a mistake of ours."""
    if short := shortage(error):
        log.debug("The launcher met a limit.", exc_info=error)
        return JobResult(1, short)
    log.error("The launcher itself failed.", exc_info=error)
    return JobResult(1, f"The launcher itself failed: {error!r}. Please report this.")


def _job(
    arguments: argparse.Namespace, environment: Mapping[str, str], output: OutputOptions
) -> Coroutine[None, None, JobResult]:
    """The job, here or elsewhere."""
    if not arguments.coordinator:
        return run_job_with_signals(job_spec(arguments, environment, output))
    quiet_grpc()
    from horovod.runner.remote import run_remote_job  # loads grpc, which a local job does without

    return run_remote_job(remote_spec(arguments, environment, output))


def remote_spec(arguments: argparse.Namespace, environment: Mapping[str, str], output: OutputOptions) -> RemoteSpec:
    """The job for a coordinator elsewhere; UsageProblem where address, token or certificates can't be used."""
    from horovod.runner.remote import RemoteSpec

    try:
        files = TlsFiles(arguments.tls_cert or "", arguments.tls_key or "", arguments.tls_ca or "")
        secret = load_token(arguments.token_file or "", secrets_of())
        address = parse_address(arguments.coordinator, "--coordinator")
        is_loopback(address.host)  # a name that nobody knows is told now
        security = load_security(secret, files)
        timeout_s = coordinator_timeout(arguments.coordinator_timeout, environment)
    except SecurityProblem as problem:
        raise UsageProblem(str(problem)) from problem
    return RemoteSpec(
        coordinator=address,
        security=security,
        size=arguments.num_proc,
        command=tuple(arguments.command),
        environment=environment,
        wait=bool(arguments.wait),
        attach=bool(arguments.attach),
        limits=coordinator_config(environment, arguments.start_timeout),
        coordinator_timeout_s=timeout_s,
        output=output,
    )


def job_spec(arguments: argparse.Namespace, environment: Mapping[str, str], output: OutputOptions) -> JobSpec:
    """The job; UsageProblem where hosts or folders can't be used."""
    return JobSpec(
        size=arguments.num_proc,
        command=tuple(arguments.command),
        environment=environment,
        slots=local_slots(hosts_of(arguments), arguments.num_proc),
        config=coordinator_config(environment, arguments.start_timeout),
        output=output,
        helpers=environment.get("HVD_HELPERS", ""),
    )


def hosts_of(arguments: argparse.Namespace) -> list[HostInfo]:
    """The hosts that were named, else this one."""
    if arguments.hosts:
        return parse_hosts(arguments.hosts)
    if arguments.hostfile:
        return parse_host_files(arguments.hostfile)
    return [HostInfo("localhost", arguments.num_proc)]


def output_directory(name: str | None) -> str:
    """The folder for captured output, made if needed; without a record of an earlier job's failure."""
    if not name:
        return ""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failure.json").unlink(missing_ok=True)
    except OSError as error:
        raise UsageProblem(f"the output folder {name} can't be used: {error.strerror or error}") from error
    return str(folder)


def coordinator_config(environment: Mapping[str, str], start_timeout_s: int | None) -> Config:
    """The limits of the coordinator.  The launcher's environment, with the options already in it, is read here."""
    given = start_timeout_s if start_timeout_s is not None else number(environment, "HOROVOD_START_TIMEOUT", 0)
    off = number(environment, "HOROVOD_STALL_CHECK_DISABLE", 0) > 0
    return Config(
        stall_check_s=0 if off else number(environment, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60),
        stall_shutdown_s=0 if off else number(environment, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0),
        deadlock_grace_s=number(environment, "HVD_DEADLOCK_GRACE_SECONDS", 10),
        cache_capacity=int(number(environment, "HOROVOD_CACHE_CAPACITY", 16_384)),
        start_warning_s=given or 30.0,
        start_timeout_s=given,
        deterministic=number(environment, "HOROVOD_DETERMINISTIC", 0) > 0,
    )


def number(environment: Mapping[str, str], name: str, default: float) -> float:
    """A variable that is a number, at least 0; UsageProblem for anything else."""
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise UsageProblem(f"the environment variable {name} is {text!r}, but it must be a number >= 0")
    return value


def start_logging(environment: Mapping[str, str], verbose: bool) -> None:
    """The launcher's own log, on stderr."""
    name = environment.get("HOROVOD_LOG_LEVEL", "").upper()
    level = _LEVELS.get(name, getattr(logging, name, logging.WARNING) if name.isalpha() else logging.WARNING)
    hide_time = environment.get("HOROVOD_LOG_HIDE_TIME", "0") not in ("", "0")
    time = "" if hide_time else "%(asctime)s "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{time}%(levelname)s %(message)s"))
    log.handlers = [handler]
    log.setLevel(min(level, logging.INFO) if verbose else level)
    log.propagate = False


def say(text: str) -> None:
    """A line of the launcher itself; a closed console is no reason to fail."""
    try:
        print(f"horovodrun: {text}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def report(result: JobResult, directory: str) -> None:
    """Says how the job failed, last, and leaves a record where output is kept."""
    if directory:
        problem = write_record(result, directory)
        if problem:
            say(problem)
        else:
            log.info("The failure is recorded in %s.", Path(directory) / "failure.json")
    say(failure_text(result))
