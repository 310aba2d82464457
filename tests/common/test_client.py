"""The client against a model of its engine and an agent that the test plays: every slow path, no process, no thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from horovod.common.engine import CLOSED, FAILED
from horovod.common.exceptions import (
    AgentLostError,
    DuplicateNameError,
    EngineError,
    MismatchError,
    NotInitializedError,
    NotWhileJoinedError,
    RankLostError,
    ShutDownError,
    StalledError,
    UsageError,
)
from horovod.common.types import CollectiveKind, Signature

from tests.common.fakes import Rank, named, unnamed


@pytest.fixture
def rank() -> Iterator[Rank]:
    rank = Rank()
    yield rank
    rank.check()


def planned(rank: Rank, signature: Signature, plan: int = 7) -> None:
    """Brings the signature to a live plan with one finished round."""
    op = rank.submit(signature)
    rank.plan_ready(plan, rank.announced()[-1].request)
    rank.engine.complete(op.handle)
    op.wait()


def test_first_use_announces_and_runs_when_the_plan_is_there(rank: Rank) -> None:
    op = rank.submit(named("x"))
    (announce,) = rank.announced()
    assert (announce.signature.name, announce.contested_plan) == ("allreduce.x", 0)
    assert not op.poll()
    rank.plan_ready(7, announce.request)
    assert rank.engine.ops[op.handle].round == 0
    rank.engine.complete(op.handle)
    assert op.poll()
    op.wait()


def test_from_the_second_round_on_no_message_is_sent(rank: Rank) -> None:
    planned(rank, named("x"))
    sent = len(rank.session.sent)
    for round_number in range(1, 50):
        op = rank.submit(named("x"))
        assert rank.engine.ops[op.handle].round == round_number
        rank.engine.complete(op.handle)
        op.wait()
    assert len(rank.session.sent) == sent


def test_unnamed_operations_queue_behind_one_announcement(rank: Rank) -> None:
    ops = [rank.submit(unnamed(), f"allreduce.noname.{i}") for i in range(5)]
    (announce,) = rank.announced()
    assert announce.signature.name == "allreduce.noname.0"
    rank.plan_ready(3, announce.request)
    assert [rank.engine.ops[op.handle].round for op in ops] == [0, 1, 2, 3, 4]
    late = rank.submit(unnamed(), "allreduce.noname.5")
    assert rank.engine.ops[late.handle].round == 5


def test_duplicate_name_is_refused_and_the_first_is_unaffected(rank: Rank) -> None:
    first = rank.submit(named("x"))
    with pytest.raises(DuplicateNameError, match=r"allreduce\.x"):
        rank.submit(named("x"))
    rank.plan_ready(7, rank.announced()[0].request)
    with pytest.raises(ValueError, match="in flight"):
        rank.submit(named("x"))
    rank.engine.complete(first.handle)
    first.wait()


def test_a_finished_operation_that_nobody_synchronised_frees_its_name(rank: Rank) -> None:
    planned(rank, named("x"))
    first = rank.submit(named("x"))
    rank.engine.complete(first.handle)
    second = rank.submit(named("x"))
    rank.engine.complete(second.handle)
    second.wait()
    first.wait()


def test_a_changed_signature_contests_its_plan(rank: Rank) -> None:
    planned(rank, named("x"))
    op = rank.submit(named("x", (3,)))
    announce = rank.announced()[-1]
    assert (announce.contested_plan, announce.contested_round) == (7, 1)
    assert rank.acknowledged() == []
    rank.retire(7, 1)
    assert rank.acknowledged() == [7]
    rank.plan_ready(8, announce.request)
    assert rank.engine.ops[op.handle].round == 0


def test_retired_plan_runs_up_to_its_limit(rank: Rank) -> None:
    planned(rank, named("x"))
    rank.retire(7, 3)
    for expected in (1, 2):
        assert rank.acknowledged() == []
        op = rank.submit(named("x"))
        assert rank.engine.ops[op.handle].round == expected
        rank.engine.complete(op.handle)
        op.wait()
    assert rank.acknowledged() == [7]
    rank.submit(named("x"))
    assert rank.announced()[-1].contested_plan == 0


def test_parked_operations_go_on_below_the_limit_and_are_announced_anew_beyond(rank: Rank) -> None:
    first = rank.submit(unnamed(), "n0")
    rank.plan_ready(3, rank.announced()[0].request)
    rank.mark(3)
    parked = [rank.submit(unnamed(), f"n{i}") for i in (1, 2, 3)]
    assert [rank.engine.ops[op.handle].round for op in parked] == [-1, -1, -1]
    assert len(rank.announced()) == 1
    rank.retire(3, 2)
    assert [rank.engine.ops[op.handle].round for op in parked] == [1, -1, -1]
    assert [a.signature.name for a in rank.announced()] == ["n0", "n2"]
    rank.plan_ready(4, rank.announced()[-1].request)
    assert [rank.engine.ops[op.handle].round for op in parked] == [1, 0, 1]
    for op in (first, parked[0]):
        assert rank.acknowledged() == []
        rank.engine.complete(op.handle)
        op.wait()
    assert rank.acknowledged() == [3]


def test_arrived_operations_beyond_the_limit_leave_in_order(rank: Rank) -> None:
    ops = [rank.submit(unnamed(), f"n{i}") for i in range(4)]
    rank.plan_ready(3, rank.announced()[0].request)
    rank.engine.ops[ops[1].handle].opened = True
    rank.retire(3, 1)
    assert [a.signature.name for a in rank.announced()] == ["n0", "n2"]
    rank.plan_ready(4, rank.announced()[-1].request)
    assert [rank.engine.ops[op.handle].round for op in ops] == [0, 1, 0, 1]


def test_a_retired_plan_without_operations_is_acknowledged_at_once(rank: Rank) -> None:
    planned(rank, named("x"))
    rank.retire(7, 0)
    rank.say()
    assert rank.acknowledged() == [7]


def test_retirement_of_an_unknown_plan_is_acknowledged(rank: Rank) -> None:
    rank.retire(99, 5)
    assert rank.acknowledged() == [99]


@pytest.mark.parametrize(("kind", "error"), [(0, MismatchError), (1, UsageError), (2, NotWhileJoinedError)])
def test_refusal_reaches_the_waiter_and_frees_the_name(rank: Rank, kind: int, error: type[Exception]) -> None:
    op = rank.submit(named("x"))
    rank.refuse(rank.announced()[0].request, kind, "because")
    assert op.poll()
    for _ in range(2):
        with pytest.raises(error, match="because"):
            op.wait()
    rank.submit(named("x"))
    assert len(rank.announced()) == 2


def test_refusal_that_overtakes_the_submit_waits_for_the_waiter(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    leave = rank.client.exit

    def refused_meanwhile() -> None:
        leave()
        monkeypatch.undo()
        rank.refuse(rank.announced()[0].request)

    monkeypatch.setattr(type(rank.client), "exit", lambda _: refused_meanwhile())
    op = rank.submit(named("x"))
    with pytest.raises(MismatchError):
        op.wait()


def test_refused_unnamed_operation_lets_the_next_announce(rank: Rank) -> None:
    first, second = rank.submit(unnamed(), "n0"), rank.submit(unnamed(), "n1")
    rank.refuse(rank.announced()[0].request)
    with pytest.raises(MismatchError):
        first.wait()
    assert [a.signature.name for a in rank.announced()] == ["n0", "n1"]
    rank.plan_ready(3, rank.announced()[1].request)
    assert rank.engine.ops[second.handle].round == 0


def test_an_operation_whose_input_is_gone_takes_no_round_anywhere(rank: Rank) -> None:
    spent, intact = rank.submit(unnamed(), "n0"), rank.submit(unnamed(), "n1")
    rank.plan_ready(3, rank.announced()[0].request)
    rank.engine.ops[spent.handle].spent = True
    rank.retire(3, 0)
    announce = rank.announced()[-1]
    assert (announce.signature.name, announce.no_room_bytes, announce.input_gone) == ("n0", 0, True)
    rank.refuse(announce.request, 6, "can't start it again")
    with pytest.raises(EngineError, match="can't start it again"):
        spent.wait()
    announce = rank.announced()[-1]
    assert (announce.signature.name, announce.no_room_bytes, announce.input_gone) == ("n1", 0, False)
    rank.plan_ready(4, announce.request)
    assert rank.engine.ops[intact.handle].round == 0


@pytest.mark.parametrize(("kind", "error"), [(3, ShutDownError), (4, RankLostError), (5, StalledError)])
def test_end_of_epoch_fails_everything_now_and_later(rank: Rank, kind: int, error: type[Exception]) -> None:
    planned(rank, named("x"))
    bound, waiting = rank.submit(named("x")), rank.submit(named("y"))
    rank.end_epoch(kind, "rank 1 on host a was killed by signal 9")
    for op in (bound, waiting):
        with pytest.raises(error, match="signal 9"):
            op.wait()
    with pytest.raises(error, match="signal 9"):
        rank.submit(named("z"))
    with pytest.raises(error):
        rank.client.join()


def test_a_completed_round_beats_the_end(rank: Rank) -> None:
    planned(rank, named("x"))
    op = rank.submit(named("x"))
    rank.engine.complete(op.handle)
    rank.end_epoch(4, "lost")
    op.wait()


@pytest.mark.parametrize(("status", "error"), [(FAILED, RankLostError), (CLOSED, ShutDownError)])
def test_board_may_fail_before_the_message_is_here(
    rank: Rank, status: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horovod.common.member._END_TEXT_S", 0.0)
    planned(rank, named("x"))
    op = rank.submit(named("x"))
    rank.engine.text = "rank 1 is gone"
    rank.engine.complete(op.handle, status)
    with pytest.raises(error, match="rank 1 is gone"):
        op.wait()


def test_lost_agent_ends_bound_operations_too(rank: Rank) -> None:
    planned(rank, named("x"))
    op = rank.submit(named("x"))
    rank.client.lost("The agent of this host is gone: it has closed the connection.")
    with pytest.raises(AgentLostError, match="has closed"):
        op.wait()


def test_agent_that_takes_no_messages_is_lost(rank: Rank) -> None:
    rank.session.gone = True
    with pytest.raises(AgentLostError):
        rank.submit(named("x")).wait()


def test_leave_fails_what_is_open_and_says_so(rank: Rank) -> None:
    planned(rank, named("x"))
    bound, waiting = rank.submit(named("x")), rank.submit(named("y"))
    rank.client.leave()
    assert rank.engine.closed
    assert rank.session.kinds()[-1] == "leave"
    for op in (bound, waiting):
        with pytest.raises((ShutDownError, NotInitializedError)):
            op.wait()
    with pytest.raises(NotInitializedError):
        rank.submit(named("z"))
    rank.client.leave()
    assert rank.session.kinds().count("leave") == 1


def test_words_after_leave_do_not_touch_the_engine(rank: Rank) -> None:
    op = rank.submit(named("x"))
    request = rank.announced()[0].request
    rank.client.leave()
    rank.plan_ready(7, request)
    rank.retire(7, 0)
    assert rank.engine.ops[op.handle].round == -1


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (named("x", process_set=9), "no process set with id 9"),
        (named("x", process_set=1), "not a member of process set 1"),
        (Signature(CollectiveKind.BROADCAST, "broadcast.x", False, 7, ((4,),), root=5), "root rank 5"),
    ],
)
def test_wrong_calls_are_refused_locally(rank: Rank, signature: Signature, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rank.submit(signature)
    assert rank.session.sent == []


def test_pull_operation_can_be_read_between_wait_and_done(rank: Rank) -> None:
    signature = Signature(CollectiveKind.ALLGATHER, "allgather.x", False, 7, ((-1,),))
    op = rank.client.gather(signature, [(0, 4)], [1])
    with pytest.raises(UsageError, match="between wait"):
        op.meta(0)
    rank.plan_ready(5, rank.announced()[0].request)
    rank.engine.complete(op.handle)
    op.wait()
    assert op.meta(1) == (1,)
    assert op.data_bytes(1) == 8
    again = rank.client.gather(signature, [(0, 4)], [1])
    assert again.handle != op.handle
    op.done()
    op.done()
    with pytest.raises(UsageError):
        op.copy([(0, 0, 0, 4)])


def test_tag_is_the_plan_or_the_request(rank: Rank) -> None:
    planned(rank, named("x"))
    rank.submit(named("x"))
    assert rank.engine.tags == [rank.announced()[0].request, 7]


def test_what_a_waiter_is_shown_to_wait_for_follows_the_operation(rank: Rank) -> None:
    planned(rank, named("x"))
    op = rank.submit(named("x", (5,)))  # contests the plan
    (_, announced) = rank.announced()
    assert rank.client.show(op, 0) == announced.request
    rank.retire(7, 1)
    rank.plan_ready(8, announced.request)
    assert rank.client.show(op, announced.request) == 8
    rank.retire(8, 0)  # evicted before anybody else has arrived
    assert rank.client.show(op, 8) == rank.announced()[-1].request
    assert rank.engine.tags[op.handle - 1] == rank.announced()[-1].request


def test_who_waits_behind_an_announcement_is_shown_to_wait_for_it(rank: Rank) -> None:
    first, second = rank.submit(unnamed()), rank.submit(unnamed())
    (announced,) = rank.announced()
    assert rank.client.show(second, 0) == announced.request
    rank.plan_ready(7, announced.request)
    assert (rank.client.show(first, 0), rank.client.show(second, 0)) == (7, 7)


def test_a_parked_operation_is_shown_to_wait_for_its_plan(rank: Rank) -> None:
    planned(rank, named("x"))
    rank.mark(7)
    op = rank.submit(named("x"))
    assert rank.client.show(op, 0) == 7
    rank.retire(7, 1)
    assert rank.client.show(op, 7) == rank.announced()[-1].request


@pytest.mark.parametrize("signature", [named("x"), unnamed()])
def test_what_could_not_be_announced_leaves_its_name_free(
    rank: Rank, signature: Signature, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: object, descriptors: object = ()) -> None:
        raise ValueError("too long")

    with monkeypatch.context() as broken:
        broken.setattr(rank.session, "send", fail)
        with pytest.raises(ValueError, match="too long"):
            rank.submit(signature)
    rank.check()
    assert all(op.freed for op in rank.engine.ops.values())
    op = rank.submit(signature)
    rank.plan_ready(7, rank.announced()[0].request)
    rank.engine.complete(op.handle)
    op.wait()


@pytest.mark.parametrize(
    ("values", "error"),
    [({"op": 1.0}, TypeError), ({"root": "0"}, TypeError), ({"prescale": 2}, TypeError), ({"op": True}, TypeError)],
)
def test_a_signature_that_cannot_be_announced_is_not_made(values: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match="must be"):
        named("x", **values)


def test_memory_stays_flat_over_many_names(rank: Rank) -> None:
    core = rank.client._core
    for number in range(200):
        planned(rank, named(f"loss.{number}"), 100 + number)
        rank.retire(100 + number, 1)
    assert (len(core.plans), len(core.live), len(core.waiting), len(core.requests), len(core.retiring)) == (0,) * 5
    assert len(rank.acknowledged()) == 200
