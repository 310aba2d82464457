"""The calls that every framework module re-exports: init, shutdown, who am I, what is built in.

One client per process serves all frameworks; ``HorovodBasics`` objects only look at it.  ``init`` is idempotent,
``shutdown`` may be called at any time, and both may alternate hundreds of times in one process.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from horovod.common import config, departure, process_sets
from horovod.common.exceptions import NotInitializedError, StartError, UsageError
from horovod.common.process_sets import ProcessSet
from horovod.common.types import Client, ReduceOp

__all__ = ["HorovodBasics", "client", "disown", "leave_at_end", "on_new_epoch"]

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."

_lock = threading.RLock()
_client: Client | None = None
_not_initialized = NOT_INITIALIZED
_atexit_done = False
_epoch_hooks: list[Callable[[], None]] = []


def client() -> Client:
    """The running client; NotInitializedError (a ValueError) where there is none."""
    if _client is None:
        raise NotInitializedError(_not_initialized)
    return _client


def on_new_epoch(hook: Callable[[], None]) -> None:
    """Calls ``hook`` after every shutdown and every init: bindings restart their handle tables there."""
    _epoch_hooks.append(hook)


def _make_client(settings: config.Settings, sets: Sequence[Sequence[int]]) -> Client:
    """An agent's client where an agent was named, else a world of size 1."""
    if settings.agent:
        from horovod.common.client import AgentClient

        return AgentClient.start(settings, sets)
    if settings.size > 1:
        raise StartError(
            f"HOROVOD_SIZE={settings.size}, but no agent is named in HOROVOD_AGENT, so the other ranks can't be found. "
            f"Start the program with: horovodrun -np {settings.size} python train.py "
            "(or unset HOROVOD_SIZE to run alone)."
        )
    from horovod.common.solo import SoloClient

    for notice in config.lonely_notices():
        warnings.warn(notice, RuntimeWarning, stacklevel=4)
    return SoloClient()


def _start(sets: Sequence[ProcessSet], check_comm: Callable[[int], None]) -> None:
    """Brings up the client once; leaves nothing behind when that fails."""
    global _client, _atexit_done
    if _not_initialized is not NOT_INITIALIZED:
        raise NotInitializedError(_not_initialized)
    if _client is None:
        settings = config.read_settings()
        if settings.size:
            check_comm(settings.size)
        _client = _make_client(settings, process_sets._distinct_ranks(sets, settings.size))
        if not settings.size:
            _check_late(check_comm, _client.size)
        _start_counting_anew()  # a call that failed before init counts on no other rank
    if not _atexit_done:
        atexit.register(leave_at_end)
        _atexit_done = True


def _check_late(check_comm: Callable[[int], None], size: int) -> None:
    """The agent has said how many ranks there are."""
    try:
        check_comm(size)
    except BaseException:
        _stop()
        raise


def leave_at_end() -> None:
    """At the end of the process: the others are told if it comes too early."""
    _stop(departure.reason(), finished=True)


def _stop(reason: str = "", finished: bool = False) -> None:
    """Leaves the job; does nothing when there is no client."""
    global _client
    with _lock:
        leaving = _client
        if leaving is None:
            return
        try:
            leaving.leave(reason, finished)
        finally:
            _client = None
            process_sets._forget_process_sets()
            _start_counting_anew()


def _start_counting_anew() -> None:
    for hook in _epoch_hooks:
        hook()


def _check_comm(comm: object, size: int) -> None:
    """``init(comm=...)`` may only name the whole job."""
    if comm is None:
        return
    if isinstance(comm, (str, bytes)) or not isinstance(comm, Sequence):
        raise UsageError(
            "init(comm=...) takes None or the list of all ranks. Communicators of mpi4py can't be used here."
        )
    if len(comm) and sorted(comm) != list(range(size)):
        raise UsageError(
            f"init(comm={list(comm)}) names some ranks of {size} only: a job can't be split that way here. "
            "Call init() on all ranks and make a ProcessSet of these ranks."
        )


def _clean_sets(sets: Sequence[ProcessSet] | str | None) -> Sequence[ProcessSet]:
    if sets is None:
        return []
    if isinstance(sets, str):
        if sets.lower() != "dynamic":
            raise UsageError(f'init(process_sets={sets!r}): give a list of ProcessSet or the string "dynamic".')
        config.enable_dynamic_process_sets()
        return []
    for index, entry in enumerate(sets):
        if not isinstance(entry, ProcessSet):
            raise UsageError(f"init(process_sets=...): entry {index} is {entry!r}, not a ProcessSet.")
    return list(sets)


class HorovodBasics:
    """The basic calls; arguments of the constructor are accepted for compatibility and not used."""

    def __init__(self, *_ignored: object) -> None:
        process_sets._setup(self)

    # ---- life cycle

    def init(self, comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
        """Brings this process into the job; returns when all ranks are there.  Does nothing when it runs already.

        ``comm``: None or the list of all ranks.  ``process_sets``: a list of ProcessSet, the same on all ranks, or
        "dynamic".  Raises ValueError when the job can't be joined, and for a set that repeats another (then the
        process is initialised nevertheless).
        """
        sets = _clean_sets(process_sets)
        with _lock:
            _start(sets, lambda size: _check_comm(comm, size))
            _resolve(sets)

    def shutdown(self) -> None:
        """Leaves the job.  What is open fails here and on all other ranks; ``init`` may be called again."""
        _stop()

    def is_initialized(self) -> bool:
        """Whether ``init`` has been called and ``shutdown`` has not."""
        return _client is not None

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Raises ValueError: timelines are switched on at start."""
        client()
        raise UsageError(
            f"The timeline {file_path} can't be started: it was not enabled when the job started "
            "(HOROVOD_TIMELINE=DYNAMIC), and this version does not write timelines yet."
        )

    def stop_timeline(self) -> None:
        """Does nothing: no timeline is active."""
        client()

    # ---- who am I

    def rank(self) -> int:
        """This process's number among all; ValueError before init."""
        return client().rank

    def size(self) -> int:
        """How many ranks there are; ValueError before init."""
        return client().size

    def local_rank(self) -> int:
        """This process's number on its host; ValueError before init."""
        return client().local_rank

    def local_size(self) -> int:
        """How many ranks this host has; ValueError before init."""
        return client().local_size

    def cross_rank(self) -> int:
        """This host's number among those that have this local rank; ValueError before init."""
        return client().cross_rank

    def cross_size(self) -> int:
        """How many hosts have this local rank; ValueError before init."""
        return client().cross_size

    def is_homogeneous(self) -> bool:
        """Whether all hosts have equally many ranks; ValueError before init."""
        return client().homogeneous

    # ---- what is there

    def mpi_threads_supported(self) -> bool:
        """Raises ValueError: there is no MPI here."""
        client()
        raise UsageError("mpi_threads_supported: MPI is not enabled; nothing here is built on it.")

    def mpi_enabled(self) -> bool:
        """Whether MPI carries the data of this job."""
        return False

    def mpi_built(self) -> bool:
        """Whether MPI support is compiled in."""
        return False

    def gloo_enabled(self) -> bool:
        """True, as on any Horovod without MPI: scripts ask this to know that ranks come from the launcher."""
        return True

    def gloo_built(self) -> bool:
        """True for the same reason."""
        return True

    def nccl_built(self) -> int:
        """NCCL's version code, 0 where it is not built in."""
        return 0

    def ddl_built(self) -> bool:
        """Whether IBM DDL is built in."""
        return False

    def ccl_built(self) -> bool:
        """Whether oneCCL is built in."""
        return False

    def cuda_built(self) -> bool:
        """Whether CUDA collectives are built in."""
        return False

    def rocm_built(self) -> bool:
        """Whether ROCm collectives are built in."""
        return False

    # ---- reduction constants

    Average = int(ReduceOp.AVERAGE)
    Sum = int(ReduceOp.SUM)
    Adasum = int(ReduceOp.ADASUM)
    Min = int(ReduceOp.MIN)
    Max = int(ReduceOp.MAX)
    Product = int(ReduceOp.PRODUCT)

    # ---- process sets, for horovod.common.process_sets

    def _process_set_ranks(self, set_id: int) -> list[int]:
        ranks = client().process_sets().get(set_id)
        if ranks is None:
            raise UsageError(f"There is no process set with id {set_id}.")
        return list(ranks)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return {set_id: list(ranks) for set_id, ranks in sorted(client().process_sets().items())}

    def _comm_process_set_id(self, comm: Any) -> int:
        raise UsageError(process_sets._MPI_TEXT)

    def _add_process_set_impl(self, ranks: Sequence[int]) -> int:
        _require_dynamic()
        return client().add_process_set(ranks).id

    def _remove_process_set_impl(self, set_id: int) -> None:
        _require_dynamic()
        client().remove_process_set(set_id)


def _resolve(sets: Sequence[ProcessSet]) -> None:
    process_sets._init_process_sets(sets)


def _require_dynamic() -> None:
    client()
    if not config.dynamic_process_sets():
        raise UsageError(
            "Process sets can only be added and removed with dynamic process sets: set HOROVOD_DYNAMIC_PROCESS_SETS=1 "
            'on all ranks before init, or call init(process_sets="dynamic").'
        )


def disown(text: str) -> None:
    """In a forked child: the parent's client must not be used, nor left, from here; every call raises this."""
    global _client, _lock, _not_initialized
    _lock = threading.RLock()
    _client = None
    _not_initialized = text
