"""Process sets: groups of ranks that run collectives of their own.

Ids follow fixed rules: 0 is everybody, sets given to ``init`` get 1, 2, … in their order, sets added later take the id
that was freed first.  The order in which ranks are given does not matter.  A :class:`ProcessSet` is just an object
until it is registered; then ``process_set_id`` says which set it stands for.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from horovod.common.exceptions import NotInitializedError, UsageError

if TYPE_CHECKING:
    from horovod.common.basics import HorovodBasics

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]

_MPI_TEXT = "Communicators of mpi4py can't be used here: give the list of ranks instead."

_basics: HorovodBasics | None = None
_registered: weakref.WeakSet[ProcessSet] = weakref.WeakSet()


def _is_mpi_comm(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "mpi4py"


def _clean_ranks(ranks: Iterable[object]) -> list[int]:
    clean: list[int] = []
    for rank in ranks:
        if isinstance(rank, bool) or not hasattr(rank, "__index__"):
            raise UsageError(f"A process set needs integer ranks, got {rank!r}.")
        clean.append(int(rank.__index__()))
    return sorted(clean)


class ProcessSet:
    """Some ranks of the job, by their global numbers; mpi4py communicators raise ValueError.

    ``process_set_id`` is None until the set is registered by ``init`` or ``add_process_set``.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if _is_mpi_comm(ranks_or_comm):
            raise UsageError(_MPI_TEXT)
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = _clean_ranks(ranks_or_comm)
        self.mpi_comm: Any = None

    def size(self) -> int | None:
        """How many ranks the set has; None while it is not registered."""
        if self.process_set_id is None:
            return None
        return len(_require_basics()._process_set_ranks(self.process_set_id))

    def rank(self) -> int | None:
        """This rank's place inside the set; None while it is not registered, ValueError for an outsider."""
        if self.process_set_id is None:
            return None
        basics = _require_basics()
        ranks = basics._process_set_ranks(self.process_set_id)
        if basics.rank() not in ranks:
            raise UsageError(f"Rank {basics.rank()} is not a member of {self}.")
        return ranks.index(basics.rank())

    def included(self) -> bool | None:
        """Whether this rank is a member; None when the ranks are not known."""
        if self.ranks is None:
            return None
        return _require_basics().rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def _temp_process_set_object(process_set_id: int) -> ProcessSet:
    """An object for a set that is known by its id alone."""
    temporary = ProcessSet([])
    temporary.process_set_id = process_set_id
    temporary.ranks = None
    return temporary


def _setup(basics: HorovodBasics) -> None:
    """Names the object that answers questions about this process."""
    global _basics
    _basics = basics


def _require_basics() -> HorovodBasics:
    if _basics is None:
        raise NotInitializedError("Horovod has not been initialized; use hvd.init().")
    return _basics


def _check_ranks(ranks: Sequence[int], size: int, what: str) -> None:
    if not ranks:
        raise UsageError(f"{what} has no ranks.")
    if len(set(ranks)) != len(ranks):
        raise UsageError(f"{what} names a rank twice: {list(ranks)}.")
    if ranks[0] < 0 or (ranks[-1] >= size > 0):
        raise UsageError(f"{what} has ranks {list(ranks)}, but this job has ranks 0 to {size - 1}.")


def _distinct_ranks(sets: Sequence[ProcessSet], size: int) -> list[list[int]]:
    """The rank lists to register, in order, without repetitions and without the global set; ``size`` 0: not known yet."""
    seen = {tuple(range(size))}
    distinct = []
    for index, process_set in enumerate(sets):
        ranks = process_set.ranks or []
        _check_ranks(ranks, size, f"Process set {index} given to init")
        if tuple(ranks) not in seen:
            seen.add(tuple(ranks))
            distinct.append(ranks)
    return distinct


def _init_process_sets(process_set_list: Sequence[ProcessSet]) -> None:
    """Gives each object the id of the registered set with its ranks; ValueError for one that repeats another."""
    registered = _require_basics()._get_process_set_ids_and_ranks()
    by_ranks = {tuple(ranks): set_id for set_id, ranks in registered.items()}
    global_process_set.ranks = list(registered[0])
    taken = {0}
    for index, process_set in enumerate(process_set_list):
        set_id = by_ranks.get(tuple(process_set.ranks or ()))
        process_set.process_set_id = None
        if set_id is None:
            raise UsageError(
                f"Process set {index} given to init, {process_set}, is not registered: "
                "shut down first, or use add_process_set with dynamic process sets."
            )
        if set_id in taken:
            raise UsageError(
                f"Process set {index} given to init, {process_set}, repeats another set of the list "
                "or the global set. Horovod is initialized; init can be called again with a valid list."
            )
        taken.add(set_id)
        _register(process_set, set_id)


def _register(process_set: ProcessSet, set_id: int) -> None:
    process_set.process_set_id = set_id
    _registered.add(process_set)


def _forget_process_sets() -> None:
    """After shutdown no object stands for a registered set any more; the global set keeps its id."""
    for process_set in list(_registered):
        process_set.process_set_id = None
    _registered.clear()
    global_process_set.ranks = []


class _KeptSets:
    """The registered sets besides the global one, in the order of their ids, and the objects that stand for them."""

    def __init__(self, ranks: Sequence[list[int]], objects: Sequence[ProcessSet]) -> None:
        self.ranks = ranks
        self._objects = objects

    def register_again(self) -> None:
        """After an init with these sets: the objects stand for the sets that have their ranks now."""
        if not self._objects:
            return
        by_ranks = {tuple(ranks): i for i, ranks in _require_basics()._get_process_set_ids_and_ranks().items()}
        for process_set in self._objects:
            _register(process_set, by_ranks[tuple(process_set.ranks or ())])


def _remember_process_sets() -> _KeptSets:
    """What is registered now, the same on all ranks whatever objects they hold; nothing before init."""
    if not _require_basics().is_initialized():
        return _KeptSets([], [])
    registered = _require_basics()._get_process_set_ids_and_ranks()
    objects = [process_set for process_set in _registered if process_set.process_set_id in registered]
    return _KeptSets([list(registered[set_id]) for set_id in sorted(registered) if set_id], objects)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a set on all ranks, which must all call this in the same order; blocks until they have.

    Raises ValueError without dynamic process sets, for a set that exists already, and when not initialised.
    """
    basics = _require_basics()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set.ranks or []
    _check_ranks(ranks, basics.size(), "The process set")
    for set_id, known in basics._get_process_set_ids_and_ranks().items():
        if known == ranks:
            raise UsageError(f"A process set with ranks {ranks} exists already, with id {set_id}.")
    _register(process_set, basics._add_process_set_impl(ranks))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set on all ranks, which must all call this; False for the global set and an unregistered one."""
    set_id = process_set.process_set_id
    if set_id is None or set_id == 0:
        return False
    _require_basics()._remove_process_set_impl(set_id)
    process_set.process_set_id = None
    _registered.discard(process_set)
    return True
