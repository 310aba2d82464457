"""States, the loop around the user's function, and what tells them of hosts, without any other rank."""

from __future__ import annotations

import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from horovod.common import elastic, notifications
from horovod.common.basics import HorovodBasics
from horovod.common.elastic import HostUpdateResult, ObjectState, State, run_fn
from horovod.common.exceptions import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    RankLostError,
    StartError,
    UsageError,
)
from horovod.common.notifications import WorkerNotificationManager, notification_manager
from horovod.common.process_sets import ProcessSet, add_process_set


def send(obj: Any) -> Any:
    """What rank 0 gets of a broadcast."""
    return obj


def rank() -> int:
    return 0


def make(**values: Any) -> Any:
    return ObjectState(send, rank, **values)


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    yield
    assert not notification_manager._listeners
    notification_manager._waiting.clear()
    notification_manager.use_job(notifications.FixedJob())


def test_signatures() -> None:
    shown = {
        State: "bcast_object, get_rank", ObjectState: "bcast_object, get_rank, **kwargs",
        State.register_reset_callbacks: "self, callbacks", State.on_hosts_updated: "self, timestamp, update_res",
        State.commit: "self", State.check_host_updates: "self", State.save: "self", State.restore: "self",
        State.sync: "self", State.reset: "self", State.on_reset: "self", run_fn: "func, reset",
    }  # fmt: skip
    for called, text in shown.items():
        parameters = inspect.signature(called).parameters.values()
        assert ", ".join(("**" if p.kind is p.VAR_KEYWORD else "") + p.name for p in parameters) == text
    assert [int(result) for result in HostUpdateResult.__members__.values()] == [0, 1, 2, 3]
    assert HostUpdateResult.removed | HostUpdateResult.added == HostUpdateResult.mixed


# ---- objects


def test_attributes_are_saved_and_restored_deeply() -> None:
    state = make(epoch=1, history={"loss": [1.0], "best": {"at": (0, 1)}}, names=["a"])
    state.epoch = 2
    state.history["loss"].append(0.5)
    state.history["best"]["at"] = (3, 4)
    state.names.append("b")
    state.restore()
    assert (state.epoch, state.history, state.names) == (1, {"loss": [1.0], "best": {"at": (0, 1)}}, ["a"])
    state.history["loss"].append(0.25)
    state.commit()
    state.history["loss"].clear()
    state.restore()
    state.history["loss"].append(7)
    state.restore()  # what was brought back is a copy, too
    assert state.history["loss"] == [1.0, 0.25]


def test_what_two_attributes_share_stays_shared() -> None:
    shared = [1]
    state = make(a=shared, b={"inner": shared})
    state.save()
    state.restore()
    assert state.a is state.b["inner"]
    assert state.a is not shared


def test_other_attributes_are_not_part_of_the_state() -> None:
    state = make(epoch=0)
    state.extra = 1
    state.save()
    state.extra = 2
    state.restore()
    assert state.extra == 2


def test_a_commit_that_fails_midway_changes_nothing() -> None:
    state = make(epoch=0, items=[1], last=None)
    state.epoch, state.last = 5, threading.Lock()
    state.items.append(2)
    with pytest.raises(
        UsageError, match=r"ObjectState\.last can't be copied \(TypeError: .*\), so it can't be part of a"
    ):
        state.commit()
    state.restore()
    assert (state.epoch, state.items, state.last) == (0, [1], None)
    with pytest.raises(UsageError, match=r"ObjectState\.lock can't be copied"):
        make(epoch=0, lock=threading.Lock())


def test_names_that_states_use_themselves_are_refused() -> None:
    for name in ("commit", "save", "_saved_state", "_rank", "_host_messages"):
        with pytest.raises(UsageError, match=f"ObjectState has '{name}' itself"):
            make(**{name: 1})

    class WithDefault(ObjectState):
        epoch = 3

    assert WithDefault(send, rank, epoch=4).epoch == 4


def test_a_deleted_attribute_is_named() -> None:
    state = make(epoch=0, batch=0)
    del state.batch
    with pytest.raises(UsageError, match="no attribute 'batch' any more"):
        state.save()


def test_sync_takes_what_is_sent_and_saves_it() -> None:
    """Upstream sends what was saved last, so that what changed since then is lost when hosts are added."""
    sent: list[Any] = []

    def root_sends(obj: Any, name: str | None = None) -> Any:
        sent.append((name, dict(obj)))
        return {"epoch": 7, "items": [7]}

    state: Any = ObjectState(root_sends, rank, epoch=1, items=[])
    state.epoch = 2
    state.sync()
    assert sent == [("elastic.state", {"epoch": 2, "items": []})]
    state.epoch = 9
    state.items.append(9)
    state.restore()
    assert (state.epoch, state.items) == (7, [7])
    empty: Any = ObjectState(root_sends, rank)
    empty.sync()
    assert len(sent) == 1


def test_a_state_can_be_pickled() -> None:
    state = make(epoch=3, table={"a": [1]})
    state.register_reset_callbacks([])
    state.on_hosts_updated(1, HostUpdateResult.added)
    again = pickle.loads(pickle.dumps(state))
    again.epoch = 5
    again.commit()
    again.restore()
    assert (again.epoch, again.table) == (5, {"a": [1]})


def test_abstract_methods_say_so() -> None:
    for name in ("save", "restore", "sync"):
        with pytest.raises(NotImplementedError):
            getattr(State(send, rank), name)()


# ---- updates of hosts


@pytest.mark.parametrize(
    ("told", "skip"),
    [
        ([(1, 1)], True),
        ([(1, 2)], False),
        ([(1, 3)], False),
        ([(1, 1), (2, 1)], True),
        ([(1, 1), (2, 2)], False),
        ([(2, 2), (1, 1)], False),
    ],
)
def test_a_commit_tells_of_hosts(told: list[tuple[int, int]], skip: bool) -> None:
    state = make(epoch=0)
    state.epoch = 1
    for timestamp, result in told:
        state.on_hosts_updated(timestamp, HostUpdateResult(result))
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.commit()
    assert raised.value.skip_sync is skip
    assert state._last_updated_timestamp == max(timestamp for timestamp, _ in told)
    assert state._host_messages.empty()
    state.commit()  # told once
    state.restore()
    assert state.epoch == 1  # saved before


def test_old_news_are_none() -> None:
    state = make()
    state.on_hosts_updated(5, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state.on_hosts_updated(5, HostUpdateResult.added)
    state.on_hosts_updated(4, HostUpdateResult.removed)
    state.check_host_updates()


def test_only_what_rank_0_was_told_counts() -> None:
    state = ObjectState(lambda obj: (0, 0, 0), rank)
    state.on_hosts_updated(5, HostUpdateResult.added)
    state.check_host_updates()
    state = ObjectState(lambda obj: (0, 3, 1), rank)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.check_host_updates()
    assert raised.value.skip_sync


def test_checks_save_nothing() -> None:
    state = make(epoch=0)
    state.epoch = 1
    state.check_host_updates()
    state.restore()
    assert state.epoch == 0


def test_on_reset_forgets_news_and_calls_back_in_order() -> None:
    called: list[str] = []

    class Mine(ObjectState):
        def reset(self) -> None:
            called.append("reset")

    state = Mine(send, rank)
    state.register_reset_callbacks([lambda: called.append("a"), lambda: called.append("b")])
    state.register_reset_callbacks(iter([lambda: called.append("c")]))
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.on_reset()
    assert called == ["reset", "a", "b", "c"]
    state.check_host_updates()


def test_listeners_hear_what_was_told_before_they_came() -> None:
    manager = WorkerNotificationManager()
    first, second = make(), make()
    manager.handle_hosts_updated(1, HostUpdateResult.removed)
    manager.handle_hosts_updated(2, HostUpdateResult.added)
    manager.register_listener(first)
    manager.register_listener(second)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        first.commit()
    assert not raised.value.skip_sync
    second.commit()
    manager.handle_hosts_updated(3, HostUpdateResult.removed)
    manager.remove_listener(first)
    manager.remove_listener(first)
    manager.handle_hosts_updated(4, HostUpdateResult.removed)
    for state, latest in ((first, 3), (second, 4)):
        with pytest.raises(HostsUpdatedInterrupt):
            state.commit()
        assert state._last_updated_timestamp == latest


# ---- run


class Script:
    """A state that notes what happens to it, and a function that ends its attempts in turn as it is told."""

    def __init__(self, *ends: Exception | None, commits: bool = False) -> None:
        self.ends = list(ends)
        self.commits = commits
        self.said: list[str] = []
        self.state: Any = _Noting(self.said)

    def train(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        self.said.append("train")
        if self.commits:
            state.commit()
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            raise end
        return args, kwargs

    def run(self, *args: Any, reset: Callable[[], None] | None = None, **kwargs: Any) -> Any:
        return run_fn(self.train, reset or (lambda: self.said.append("init")))(self.state, *args, **kwargs)


class _Noting(State):
    def __init__(self, said: list[str]) -> None:
        super().__init__(send, rank)
        self.said = said

    def save(self) -> None:
        self.said.append("save")

    def restore(self) -> None:
        self.said.append("restore")

    def sync(self) -> None:
        self.said.append("sync")

    def reset(self) -> None:
        self.said.append("reset")


def test_run_synchronises_first_and_returns_what_the_function_returns() -> None:
    script = Script()
    assert script.run(1, 2, key=3) == ((1, 2), {"key": 3})
    assert script.said == ["sync", "train"]


def test_run_keeps_name_and_text() -> None:
    def train(state: Any) -> None:
        """Mine."""

    wrapped = run_fn(train, lambda: None)
    assert (wrapped.__name__, wrapped.__doc__) == ("train", "Mine.")


def test_a_failed_collective_restores() -> None:
    script = Script(HorovodInternalError("x"))
    script.run()
    assert script.said == ["sync", "train", "restore", "init", "reset", "sync", "train"]


@pytest.mark.parametrize("skip", [False, True])
def test_new_hosts_restore_nothing(skip: bool) -> None:
    script = Script(HostsUpdatedInterrupt(skip), HostsUpdatedInterrupt(skip), HorovodInternalError("x"))
    script.run()
    again = ["init", "reset", *([] if skip else ["sync"]), "train"]
    assert script.said == ["sync", "train", *again, *again, "restore", "init", "reset", "sync", "train"]


def test_other_exceptions_are_the_users() -> None:
    for error in (KeyError("mine"), StartError("mine"), UsageError("mine")):
        script = Script(error)
        with pytest.raises(type(error), match="mine"):
            script.run()
        assert script.said == ["sync", "train"]


def test_a_failure_without_progress_ends() -> None:
    error = RankLostError("Rank 1 is gone.")
    script = Script(HorovodInternalError("first"), error, None)
    with pytest.raises(
        RankLostError, match=r"^Rank 1 is gone\. It failed again without a commit .* checkpoint\.$"
    ) as raised:
        script.run()
    assert raised.value is error
    assert script.said.count("train") == 2


def test_advice_is_given_once() -> None:
    error = RankLostError("Rank 1 is gone.")
    ends = [HorovodInternalError("x"), HorovodInternalError("y"), HorovodInternalError("z"), error]
    outer, inner = Script(), Script(*ends)
    outer.train = lambda state: inner.run()  # type: ignore[method-assign]
    with pytest.raises(RankLostError) as raised:
        outer.run()
    assert raised.value is error
    assert str(error).count("without a commit") == 1


def test_progress_allows_more_failures() -> None:
    script = Script(*[HorovodInternalError("x") for _ in range(5)], commits=True)
    script.run()
    assert script.said.count("train") == 6


def test_failures_in_sync_and_callbacks_are_failures_of_the_attempt() -> None:
    script = Script(HostsUpdatedInterrupt())
    errors = [HorovodInternalError("in the callback")]
    script.state.register_reset_callbacks([lambda: _raise(errors.pop()) if errors else None])
    script.run()
    assert script.said == ["sync", "train", "init", "reset", "restore", "init", "reset", "sync", "train"]


def _raise(error: Exception) -> None:
    raise error


def test_an_init_that_fails_tells_of_the_failure_before() -> None:
    script = Script(RankLostError("Rank 1 is gone."))
    with pytest.raises(StartError, match=r"^No agent\. This was to follow a failure, RankLostError: Rank 1 is gone\.$"):
        script.run(reset=lambda: _raise(StartError("No agent.")))
    script = Script(HostsUpdatedInterrupt())
    with pytest.raises(StartError, match=r"^No agent\.$"):
        script.run(reset=lambda: _raise(StartError("No agent.")))


def test_a_job_tells_through_the_manager() -> None:
    """The seam for elastic jobs: nothing but ``use_job`` is needed, and the user's function does not change."""

    class Growing:
        def __init__(self) -> None:
            self.asked: list[tuple[str, int, bool]] = []

        def watch(self, tell: Callable[[float, int], None]) -> None:
            self.tell = tell

        def objection(self, error: HorovodInternalError, size: int, is_repeated: bool) -> str:
            self.asked.append((str(error), size, is_repeated))
            return "" if len(self.asked) < 4 else "Enough."

    job = Growing()
    notification_manager.use_job(job)
    script = Script(*[HorovodInternalError("x") for _ in range(4)])
    with pytest.raises(HorovodInternalError, match=r"^x Enough\.$"):
        script.run()
    assert job.asked == [("x", 1, False), ("x", 1, True), ("x", 1, True), ("x", 1, True)]

    state = make(epoch=0)
    epochs: list[int] = []

    def train(state: Any) -> str:
        epochs.append(state.epoch)
        while state.epoch < 3:
            state.epoch += 1
            if state.epoch == 2 and len(epochs) == 1:
                thread = threading.Thread(target=job.tell, args=(1.0, HostUpdateResult.added))
                thread.start()
                thread.join()
            state.commit()
        return "done"

    assert run_fn(train, lambda: None)(state) == "done"
    assert epochs == [0, 2]


# ---- with the real client of one process


@pytest.fixture
def hvd(monkeypatch: pytest.MonkeyPatch) -> Iterator[HorovodBasics]:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    hvd = HorovodBasics()
    hvd.init()
    yield hvd
    hvd.shutdown()


def test_reset_leaves_and_enters_again(hvd: HorovodBasics) -> None:
    elastic.reset()
    assert hvd.is_initialized()
    hvd.shutdown()
    elastic.reset()
    assert hvd.is_initialized()
    with pytest.raises(UsageError):
        add_process_set(ProcessSet([0]))  # one process has one set, before and after


def test_run_without_init_says_so() -> None:
    def ask(obj: Any) -> Any:
        HorovodBasics().rank()

    with pytest.raises(ValueError, match="has not been initialized"):
        run_fn(lambda state: None, elastic.reset)(ObjectState(ask, rank, epoch=0))
