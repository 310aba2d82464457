"""``horovod.run``: a function on several ranks, its results in a list.

The function goes to the ranks through inherited memory files, and the results come back the same way.  The job runs in
a thread with a loop of its own, so that notebooks (which have a running loop) work, and Ctrl-C ends the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import cloudpickle
from horovod.agent.limits import shortage
from horovod.agent.output import FileTarget, OutputOptions, Target, TextTarget
from horovod.runner import memory_files
from horovod.runner.environment import inherited
from horovod.runner.hosts import HostInfo, local_slots, parse_host_files, parse_hosts
from horovod.runner.job import Job, JobSpec
from horovod.runner.launch import coordinator_config, output_directory, start_logging
from horovod.runner.report import EXIT_TEXT, JobResult, failure_text, write_record
from horovod.runner.settings import UsageProblem
from horovod.runner.variables import check_variables

__all__ = ["run"]

T = TypeVar("T")

_CANCEL_CODE = 130


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[T]:
    """Runs ``func(*args, **kwargs)`` on ``num_proc`` ranks of this host; what it returned, by rank.

    ``executable`` is the Python of the ranks.  ``disable_cache``, ``network_interfaces`` and ``use_gloo``
    change nothing here.
    Raises RuntimeError naming rank and traceback when a rank fails, ValueError for arguments that can't work together,
    NotImplementedError for what is not supported yet.
    """
    del disable_cache, network_interfaces
    if np is not None:
        num_proc = _deprecated("np", "num_proc", np)
    if min_np is not None:
        min_num_proc = _deprecated("min_np", "min_num_proc", min_np)
    if max_np is not None:
        max_num_proc = _deprecated("max_np", "max_num_proc", max_np)
    if network_interface is not None:
        _deprecated("network_interface", "network_interfaces", network_interface)
    _check_pairs(hosts, hostfile, use_gloo, use_mpi)
    _refuse(
        "elastic jobs are not supported yet",
        min_num_proc=min_num_proc,
        max_num_proc=max_num_proc,
        slots=slots,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        host_discovery_script=host_discovery_script,
    )
    _refuse(
        "ranks on other hosts are hvd-agent's, not ssh's",
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
    )
    _refuse("this launcher starts no mpirun", use_mpi=use_mpi or None, mpi_args=mpi_args)
    call = _Call(func, tuple(args), dict(kwargs or {}), num_proc, executable or sys.executable)
    where = _Where(hosts, hostfile, start_timeout, output_filename, bool(verbose))
    return _run_call(call, where)


@dataclass(frozen=True, slots=True)
class _Call:
    """What the ranks do."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    num_proc: int
    executable: str


@dataclass(frozen=True, slots=True)
class _Where:
    """Where they do it."""

    hosts: str | None
    hostfile: str | None
    start_timeout: int | None
    output_filename: str | None
    verbose: bool


def _deprecated(old: str, new: str, value: T) -> T:
    warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=3)
    return value


def _check_pairs(hosts: str | None, hostfile: str | None, use_gloo: bool | None, use_mpi: bool | None) -> None:
    if hosts is not None and hostfile is not None:
        raise UsageProblem("Give either hosts or hostfile, not both.")
    if use_gloo and use_mpi:
        raise UsageProblem("Give either use_gloo or use_mpi, not both.")


def _refuse(reason: str, **arguments: object) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise NotImplementedError(f"{', '.join(given)} can't be used: {reason}.")


@dataclass(slots=True)
class _Files:
    """The memory files of one call."""

    function: int
    results: list[int] = field(default_factory=list)

    def extra(self, rank: int) -> tuple[dict[str, str], tuple[int, ...]]:
        """What this rank inherits."""
        pair = (self.function, self.results[rank])
        return {memory_files.FUNCTION_VARIABLE: str(pair[0]), memory_files.RESULT_VARIABLE: str(pair[1])}, pair

    def close(self) -> None:
        """Lets the memory go."""
        for descriptor in (self.function, *self.results):
            os.close(descriptor)


def _run_call(call: _Call, where: _Where) -> list[Any]:
    if call.num_proc < 1:
        raise UsageProblem(f"num_proc={call.num_proc} must be >= 1")
    hosts = [HostInfo("localhost", call.num_proc)]
    if where.hosts is not None or where.hostfile is not None:
        hosts = parse_hosts(where.hosts) if where.hosts is not None else parse_host_files(where.hostfile or "")
    slots = local_slots(hosts, call.num_proc)
    payload = cloudpickle.dumps((list(sys.path), cloudpickle.dumps((call.func, call.args, call.kwargs))))
    files = _Files(memory_files.make("hvd-function", payload))
    try:
        files.results = [memory_files.make(f"hvd-result-{rank}") for rank in range(call.num_proc)]
        spec = _spec(call, where, slots, files)
        result = _in_thread(spec)
        if result.code != 0:
            raise RuntimeError(_failure(result, files, spec.output.directory))
        return [cloudpickle.loads(memory_files.read_all(item)[1:]) for item in files.results]
    finally:
        files.close()


def _spec(call: _Call, where: _Where, slots: int, files: _Files) -> JobSpec:
    environment = inherited()
    check_variables(environment)
    if where.verbose:
        start_logging(environment, True)
    return JobSpec(
        size=call.num_proc,
        command=(call.executable, "-m", "horovod.runner.run_task"),
        environment=environment,
        slots=slots,
        config=coordinator_config(environment, where.start_timeout),
        output=OutputOptions(
            _console(sys.stdout, 1),
            _console(sys.stderr, 2),
            directory=output_directory(where.output_filename),
            speaker="horovod.run",
        ),
        extra=files.extra,
        helpers=environment.get("HVD_HELPERS", ""),
    )


def _console(stream: Any, descriptor: int) -> Target:
    """The stream's descriptor; a stream without one (a notebook, a test) is written as text."""
    try:
        stream.flush()
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError, io.UnsupportedOperation):
        if stream is not None:
            return TextTarget(stream.write)
    return FileTarget(descriptor)


def _failure(result: JobResult, files: _Files, directory: str) -> str:
    """The text of the error: the traceback of the user's function if there is one, else the end of stderr."""
    problem = write_record(result, directory) if directory else ""
    text = "\n".join(filter(None, (f"{EXIT_TEXT}: {failure_text(result)}", problem)))
    if 0 <= result.rank < len(files.results):
        told = memory_files.read_all(files.results[result.rank])
        if told[:1] == b"E":
            trace = told[1:].decode(errors="replace").rstrip()
            return f"{EXIT_TEXT}: {result.text}\nThe function raised on rank {result.rank}:\n{trace}"
    return text


class _Thread(threading.Thread):
    """A job in a loop of its own."""

    def __init__(self, spec: JobSpec) -> None:
        super().__init__(name="hvd-job", daemon=True)
        self._spec = spec
        self._loop: asyncio.AbstractEventLoop | None = None
        self._job: Job | None = None
        self.result: JobResult | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs the job."""
        try:
            self.result = asyncio.run(self._main())
        except BaseException as error:
            self.error = error

    async def _main(self) -> JobResult:
        self._job = Job(self._spec)
        self._loop = asyncio.get_running_loop()
        return await self._job.run()

    def cancel(self) -> None:
        """Ends the job; from another thread."""
        loop, job = self._loop, self._job
        if loop is not None and job is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(
                    job.cancel, _CANCEL_CODE, "The program that called horovod.run was interrupted."
                )


def _in_thread(spec: JobSpec) -> JobResult:
    thread = _Thread(spec)
    thread.start()
    interrupted: KeyboardInterrupt | None = None
    while thread.is_alive():
        try:
            thread.join(0.1)
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
            thread.cancel()
    if interrupted is not None:
        raise interrupted
    if thread.error is not None:
        text = shortage(thread.error) or f"the launcher itself failed: {thread.error}"
        raise RuntimeError(f"{EXIT_TEXT}: {text}") from thread.error
    assert thread.result is not None
    return thread.result
