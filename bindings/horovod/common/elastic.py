"""State that survives changes of the ranks, and the loop that brings ranks together again.

A state holds what training needs to go on: it is saved in memory (``commit``), brought back after a failed collective
(``restore``) and made the same on all ranks (``sync``, from rank 0).  ``run_fn`` wraps the function that trains.  Decisions
are in ``core/recovery.py``; how a job tells of new and lost hosts is in ``notifications.py``.

Collectives belong inside of the wrapped function, or behind it: ranks that come later run no others.
"""

from __future__ import annotations

import copy
import functools
import inspect
import queue
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from horovod.common import process_sets
from horovod.common.basics import HorovodBasics, client
from horovod.common.core.recovery import FIRST_ATTEMPT, Attempt, GiveUp, Recovery
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt, StartError, UsageError
from horovod.common.notifications import HostUpdateResult, WorkerNotificationManager, notification_manager
from horovod.common.objects import allgather_pickled
from horovod.common.process_sets import global_process_set

__all__ = [
    "HostUpdateResult",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "reset",
    "run_fn",
]

F = TypeVar("F", bound=Callable[..., Any])

_basics = HorovodBasics()


class State:
    """What all states have: commits, changes of the hosts, callbacks.

    Subclasses say how to ``save``, ``restore`` and ``sync``, and may say what to do in ``reset``.  ``bcast_object`` sends
    rank 0's object to all ranks, ``get_rank`` says which rank this is.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_host_messages"}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        vars(self).update(attributes, _host_messages=queue.Queue())

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Calls these, in order, whenever ranks have met in a new epoch: to scale a learning rate, to divide data anew."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Ranks have met in a new epoch: forgets changes that it has already, calls ``reset`` and the callbacks."""
        self._drain()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Takes note of a change; ``check_host_updates`` acts on it.  May be called from any thread."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then checks for changes of the hosts.  All ranks must call it."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if rank 0 was told that hosts have changed.

        All ranks must call it.  It saves nothing, which makes it cheaper than ``commit``.
        """
        before, latest, result = self._last_updated_timestamp, self._last_updated_timestamp, 0
        for timestamp, change in self._drain():
            if timestamp > before:
                latest, result = max(latest, timestamp), result | change
        before, latest, result = self._broadcast((before, latest, int(result)), "updates")
        self._last_updated_timestamp = latest
        if latest > before:
            raise HostsUpdatedInterrupt(result == HostUpdateResult.removed)

    def save(self) -> None:
        """Keeps a copy of the state in memory; one that fails leaves the last copy as it was."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings the last copy back."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes the state rank 0's on all ranks, and saves it.  All ranks must call it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts the state to the ranks that there are now; does nothing unless a subclass has something to adapt."""

    def _drain(self) -> list[tuple[float, int]]:
        messages = []
        while True:
            try:
                messages.append(self._host_messages.get_nowait())
            except queue.Empty:
                return messages

    def _broadcast(self, obj: Any, what: str) -> Any:
        """Rank 0's object.  It is named, so that ranks that do different things can't take each other's objects."""
        if _takes_name(self._bcast_object):
            return self._bcast_object(obj, name=f"elastic.{what}")
        return self._bcast_object(obj)


def _takes_name(function: Callable[..., Any]) -> bool:
    try:
        return "name" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


class ObjectState(State):
    """A state of plain Python objects: each keyword becomes an attribute.

    Attributes are copied deeply when they are saved and restored, so what is inside of a list or a dictionary is brought
    back, too.  They must be copyable and picklable (by cloudpickle).  Attributes that are set later, under other names,
    are not part of the state.  ValueError for names that states use themselves.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        self._saved_state: dict[str, Any] = {}
        self._check_names(kwargs)
        self._saved_state = self._copied(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        """Copies the attributes; ValueError, naming it, for one that can't be copied, and nothing has changed then."""
        self._saved_state = self._copied(self._values())

    def restore(self) -> None:
        """Sets the attributes to copies of what was saved."""
        for name, value in self._copied(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Sets the attributes to rank 0's, as they are now, and saves them."""
        if self._saved_state:
            for name, value in self._broadcast(self._values(), "state").items():
                setattr(self, name, value)
        self.save()

    def _values(self) -> dict[str, Any]:
        missing = [name for name in self._saved_state if not hasattr(self, name)]
        if missing:
            raise UsageError(
                f"{type(self).__name__} has no attribute {missing[0]!r} any more, which is part of what it saves: set it "
                "to None instead of deleting it."
            )
        return {name: getattr(self, name) for name in self._saved_state}

    def _copied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """All in one copy, so that what two of them share stays shared."""
        try:
            return copy.deepcopy(dict(values))
        except Exception as error:
            name = next((name for name in values if not _is_copyable(values[name])), "?")
            raise UsageError(
                f"{type(self).__name__}.{name} can't be copied ({type(error).__name__}: {error}), so it can't be part of a "
                "state: hold what it is made from, and detach tensors that are part of a graph."
            ) from error

    def _check_names(self, names: Iterable[str]) -> None:
        own = {name for name in vars(self) if name.startswith("_")}
        taken = [name for name in names if hasattr(ObjectState, name) or name in own]
        if taken:
            raise UsageError(
                f"{type(self).__name__} has {taken[0]!r} itself: give that part of the state another name."
            )


def _is_copyable(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


# ---- the loop


def reset() -> None:
    """Leaves the job and enters it again: ranks meet in a new epoch, with the process sets that they had."""
    kept = process_sets._remember_process_sets()
    _basics.shutdown()
    _basics.init(process_sets=[process_sets.ProcessSet(ranks) for ranks in kept.ranks])
    kept.register_again()


def run_fn(func: F, reset: Callable[[], None]) -> F:
    """The function, run again with a restored or synchronised state when the ranks of the job change.

    Its first argument is the state.  It is called when all ranks have rank 0's state, and what it returns is returned.
    When it raises HorovodInternalError the state is restored, when it raises HostsUpdatedInterrupt it stays; then ``reset``
    brings the ranks together, the state's ``on_reset`` is called, and all begins again.  In a job whose ranks are fixed no
    epoch can follow a failed one: there HorovodInternalError is raised at once, with advice.  Other exceptions are
    the user's.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        try:
            return _run(state, reset, functools.partial(func, state, *args, **kwargs))
        finally:
            notification_manager.remove_listener(state)

    return cast(F, wrapper)


def _run(state: State, reset: Callable[[], None], work: Callable[[], Any]) -> Any:
    recovery, attempt, size = Recovery(), FIRST_ATTEMPT, _size()
    while True:
        try:
            if attempt.resets:
                _reset_after(attempt, reset)
                state.on_reset()
            size = _size()
            if not _all_may_skip(attempt.may_skip_sync):
                state.sync()
            return work()
        except HorovodInternalError as error:
            attempt = _after_failure(recovery, state, error, size)
            state.restore()
        except HostsUpdatedInterrupt as interrupt:
            attempt = recovery.after_update(interrupt.skip_sync)


def _after_failure(recovery: Recovery, state: State, error: HorovodInternalError, size: int) -> Attempt:
    """The next attempt; raises the error, with advice, when there is none."""
    commits = getattr(state, "_commits", 0)
    objection = notification_manager.job.objection(error, size, recovery.is_repeated(commits))
    decision = recovery.after_failure(commits, objection, f"{type(error).__name__}: {error}")
    if isinstance(decision, GiveUp):
        _add_advice(error, decision.advice)
        raise error
    return decision


def _add_advice(error: HorovodInternalError, advice: str) -> None:
    """Puts it behind the text, once, where that is a text; the object stays the one that was raised."""
    if advice in str(error):
        return
    if error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} {advice}", *error.args[1:])
    message = getattr(error, "_message", None)  # what TensorFlow's errors print
    if isinstance(message, str):
        error._message = f"{message} {advice}"  # type: ignore[attr-defined]


def _reset_after(attempt: Attempt, reset: Callable[[], None]) -> None:
    try:
        reset()
    except StartError as error:
        if not attempt.cause:
            raise
        raise StartError(f"{error} This was to follow a failure, {attempt.cause}") from error


def _size() -> int:
    return _basics.size() if _basics.is_initialized() else 1


def _all_may_skip(mine: bool) -> bool:
    """Whether no rank needs the state; ranks that answered this by themselves would wait for each other."""
    if _size() == 1:
        return mine
    return all(allgather_pickled(client(), mine, "elastic.may_skip_sync", global_process_set))
