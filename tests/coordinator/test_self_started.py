"""Jobs of processes that others start, beside launched ones: whose turn it is, and how the coordinator ends them."""

from __future__ import annotations

from horovod.coordinator.core.gathering import Gathering, number_ranks
from horovod.coordinator.core.values import Guest
from horovod.proto import control_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.peers import Call, Peers, run, serving


async def report(agent: Call, seq: int, epoch: int = 0, **body: object) -> None:
    """The agent says something."""
    message = control_pb2.AgentReport(epoch=epoch, **body)  # type: ignore[arg-type]
    await agent.send(control_pb2.AgentFrame(seq=seq, report=message))


async def order(agent: Call, body: str) -> control_pb2.Order:
    """The next order of this kind; what comes before it, or with it, is let go."""
    while True:
        frame = await agent.read("orders")
        assert frame is not None
        found = [item for item in frame.orders.items if item.WhichOneof("body") == body]
        if found:
            return found[0]  # type: ignore[no-any-return]


def guests(*numbers: int) -> control_pb2.Guests:
    return control_pb2.Guests(items=[control_pb2.Guest(id=number, pid=number, rank=-1) for number in numbers])


async def formed(peers: Peers) -> Call:
    """An agent with a job of one process."""
    agent = await peers.agent()
    await report(agent, 1, guests=guests(1))
    start = (await order(agent, "start_ranks")).start_ranks
    assert (list(start.guests), start.size, list(start.command)) == ([1], 1, [])
    await report(agent, 2, rank_hello=control_pb2.RankHello(rank=0, generation=1, pid=1))
    await order(agent, "epoch_start")
    return agent


def test_a_launcher_that_waits_has_its_turn_before_the_next_processes() -> None:
    async def story() -> None:
        async with serving(self_started=1) as peers:
            agent = await formed(peers)
            refused = await (await peers.launcher(1)).read("refused")
            assert "A job runs already: 1 rank of processes that others have started." in refused.refused.text
            launcher = await peers.launcher(1, wait=True)
            assert "processes that others have started" in (await launcher.read("notice")).notice.text
            await report(agent, 3, epoch=1, rank_left=control_pb2.RankLeft(rank=0, generation=1))
            await report(agent, 4, guests=guests(2))
            start = (await order(agent, "start_ranks")).start_ranks
            assert (list(start.command), list(start.guests)) == ([b"train"], [])
            # Its end is not enough: its last output is still on the way.
            await report(agent, 5, rank_exited=control_pb2.RankExited(rank=0, pid=9, left=True))
            await order(agent, "job_finished")
            assert peers.service.core.job is None
            assert peers.service.core.selfstart.held
            output = await peers.output(start.job)
            await output.send(control_pb2.OutputFrame(seq=1, end=control_pb2.OutputEnd()))
            assert (await launcher.read("ended")).ended.code == 0
            assert list((await order(agent, "start_ranks")).start_ranks.guests) == [2]

    run(story)


def test_a_coordinator_that_is_stopped_ends_the_job() -> None:
    async def story() -> None:
        async with serving(self_started=1) as peers:
            agent = await formed(peers)
            peers.service.desk.close("The coordinator was stopped.")
            text = (await order(agent, "end_epoch")).end_epoch.error.text
            assert text == "The job was cancelled: The coordinator was stopped."
            assert not peers.service.desk.is_idle
            await report(agent, 3, epoch=1, rank_left=control_pb2.RankLeft(rank=0, generation=1))
            await order(agent, "job_finished")
            assert peers.service.desk.is_idle

    run(story)


@given(st.data())
def test_every_rank_has_one_place_and_hosts_stay_together(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    names = [f"agent{index}" for index in range(len(counts))]
    row = [(name, Guest(number)) for name, count in zip(names, counts, strict=True) for number in range(count)]
    wishing = data.draw(st.lists(st.sampled_from(range(len(row))), unique=True))
    wishes = data.draw(st.permutations(range(len(row))))[: len(wishing)]
    for index, rank in zip(wishing, wishes, strict=True):
        row[index] = (row[index][0], Guest(row[index][1].id, rank=rank))
    placed = number_ranks(row, {name: f"host-{name}" for name in names})
    places = [item.place for item in placed]
    assert [place.rank for place in places] == list(range(len(row)))
    assert all(item.guest.rank in (-1, item.place.rank) for item in placed)
    for place in places:
        local = [other.rank for other in places if other.agent == place.agent]
        assert (local.index(place.rank), len(local)) == (place.local_rank, place.local_size)
        crossing = [other for other in places if other.local_rank == place.local_rank]
        assert sorted(other.cross_rank for other in crossing) == list(range(place.cross_size))
    if not wishing:
        assert [place.agent for place in places] == [name for name, _ in row]


def test_a_report_that_was_under_way_brings_nobody_back() -> None:
    book = Gathering(standing=2)
    book.report("a", [Guest(1), Guest(2)], 0)
    assert [book.settle(key).id for key in book.first()] == [1, 2]
    book.report("a", [Guest(1), Guest(2), Guest(3)], 0)
    assert list(book.waiting) == [("a", 3)]
    book.report("a", [Guest(3)], 0)
    assert not book.settled
    book.check_invariants()
    book.forget("a")
    assert not book.waiting
