"""The three calls, spoken by clients that break the rules too."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import grpc
import pytest
from horovod.coordinator import sessions
from horovod.coordinator.core import Coordinator, JobAdopted, JobCancelled, JobEnded, JobSubmitted
from horovod.coordinator.core.values import RankPlace
from horovod.coordinator.server import until_free
from horovod.proto import control_pb2, worker_pb2
from horovod.proto.security import Address, Security
from horovod.proto.services import OUTPUT, RUN, SESSION, admission, handlers, open_channel, open_stream

from tests.coordinator.peers import OPEN, Call, run, serving

Frame, Job, Out = control_pb2.AgentFrame, control_pb2.JobFrame, control_pb2.OutputFrame


def report(seq: int, ack: int = 0, **body: Any) -> control_pb2.AgentFrame:
    return Frame(seq=seq, ack=ack, report=control_pb2.AgentReport(**body))


def exited(seq: int, rank: int, code: int = 0) -> control_pb2.AgentFrame:
    return report(seq, rank_exited=control_pb2.RankExited(rank=rank, code=code, left=True))


def data(seq: int, text: bytes, rank: int = 0) -> control_pb2.OutputFrame:
    return Out(seq=seq, data=control_pb2.RankOutput(rank=rank, stream=1, data=text))


# ---- sessions


def test_a_session_goes_on_where_it_was() -> None:
    async def story() -> None:
        async with serving() as peers:
            agent = await peers.agent()
            welcome = (await agent.read()).welcome
            assert (welcome.resumed, welcome.received, welcome.peer_timeout_s) == (False, 0, 10.0)
            assert (await agent.read()).orders.items[0].registered.incarnation == welcome.incarnation
            launcher = await peers.launcher()
            start = await agent.read()
            assert (start.seq, start.orders.items[0].start_ranks.job) == (2, 1)
            await agent.send(report(1, 1, rank_started=control_pb2.RankStarted(rank=0, pid=7)))
            agent.stream.cancel()
            again = await peers.agent(incarnation=welcome.incarnation, received=1)
            assert (await again.read()).welcome.resumed
            assert (await again.read()).seq == 2
            for frame in (exited(1, 0), exited(2, 0), exited(3, 1)):  # number 1 was received already
                await again.send(frame)
            output = await peers.output(1)
            await output.send(Out(seq=1, end=control_pb2.OutputEnd()))
            assert (await launcher.read()).WhichOneof("body") == "accepted"
            assert (await launcher.read()).ended.code == 0

    run(story)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (Frame(seq=5, report=control_pb2.AgentReport()), "number 5 came after number 0"),
        (Frame(seq=1, ack=99, heartbeat=control_pb2.Heartbeat()), "number 99 is confirmed"),
        (Frame(seq=1, report=control_pb2.AgentReport()), "AgentReport has no body"),
        (report(1, register=control_pb2.Register(agent="b")), "a second registration"),
        (
            report(
                1,
                announcements=control_pb2.Announcements(
                    items=[control_pb2.Announcement(signature=worker_pb2.Signature(kind=77))]  # type: ignore[arg-type]
                ),
            ),
            "77 is not a valid Kind",
        ),
    ],
)
def test_an_agent_that_makes_no_sense_is_cut_off_and_told_why(frame: control_pb2.AgentFrame, said: str) -> None:
    async def story() -> str:
        async with serving() as peers:
            agent = await peers.agent()
            await agent.read("orders")
            await agent.send(frame)
            refused = (await agent.read("refused")).refused.text
            assert peers.service.core.agents == {}
            assert await agent.read() is None
            return str(refused)

    text = run(story)
    assert text.startswith("The coordinator has ended the session: it sent something that makes no sense (")
    assert said in text


def test_an_agent_that_counts_differently_can_not_go_on() -> None:
    async def story() -> str:
        async with serving() as peers:
            agent = await peers.agent()
            incarnation = (await agent.read()).welcome.incarnation
            again = await peers.agent(incarnation=incarnation, received=40)
            return str((await again.read()).refused.text)

    assert "it can't go on: the other side has received up to number 40, not 0 to 1" in run(story)


def test_an_agent_that_takes_no_orders_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MOST_KEPT_BYTES", 100_000)

    async def story() -> str:
        async with serving() as peers:
            agent = await peers.agent()
            await agent.read("orders")
            launcher = await peers.launcher(command=[b"x" * 200_000])
            assert (await launcher.read("ended")).ended.code == 1
            return str((await agent.read("refused")).refused.text)

    assert "it takes no orders any more" in run(story)


@pytest.mark.parametrize(
    ("method", "frame", "said"),
    [
        (SESSION, Frame(heartbeat=control_pb2.Heartbeat()), "An agent's first frame is a SessionHello."),
        (SESSION, Frame(), "An agent's first frame is a SessionHello."),
        (OUTPUT, data(1, b"x"), "An OutputHello of protocol 1 is expected."),
        (OUTPUT, Out(hello=control_pb2.OutputHello(protocol=9)), "An OutputHello of protocol 1 is expected."),
        (RUN, Job(cancel=control_pb2.JobCancel()), "A launcher's first frame is a JobSubmit."),
    ],
)
def test_calls_begin_as_they_must(method: Any, frame: Any, said: str) -> None:
    async def story() -> str:
        async with serving() as peers:
            call = peers.call(method)
            await call.send(frame)
            return await call.code()

    assert run(story) == f"INVALID_ARGUMENT: {said}"


def test_a_caller_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_FIRST_FRAME_S", 0.05)

    async def story() -> list[str]:
        async with serving() as peers:
            return [await peers.call(method).code() for method in (SESSION, OUTPUT, RUN)]

    assert [code.partition(":")[0] for code in run(story)] == ["INVALID_ARGUMENT"] * 3


def test_an_error_of_the_coordinator_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "handle", lambda core, event, now: 1 / 0)

    async def story() -> None:
        async with serving(broken=broken.append) as peers:
            agent = await peers.agent()
            await agent.read()

    broken: list[BaseException] = []
    run(story)
    assert isinstance(broken[0], ZeroDivisionError)


@pytest.mark.parametrize("method", [SESSION, OUTPUT, RUN], ids=lambda method: method.name)
def test_every_call_wants_the_token(method: Any) -> None:
    async def story() -> list[str]:
        async with serving(Security("open-sesame")) as peers:
            codes = [await peers.call(method, Security(secret)).code() for secret in ("", "open-poppy")]
            call = peers.call(method, Security("open-sesame"))
            await call.stream.done_writing()
            return [*codes, await call.code()]

    missing, wrong, right = run(story)
    assert missing.startswith("UNAUTHENTICATED: The coordinator wants a token, this one is missing")
    assert wrong.startswith("UNAUTHENTICATED: The coordinator wants a token, this one is another")
    assert right.startswith("INVALID_ARGUMENT")


def test_a_client_that_waits_for_admission_always_hears_why_it_is_refused() -> None:
    async def story() -> str:
        async with serving(Security("open-sesame")) as peers:
            await admission(peers.call(SESSION, Security("open-sesame")).stream)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await admission(peers.call(SESSION).stream)
            return str(refusal.value.details())

    assert "this one is missing" in run(story)


def test_a_server_that_is_no_coordinator_is_told_from_one_that_refuses() -> None:
    async def story() -> str:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handlers({"Session": lambda context: asyncio.sleep(0)}),))
        address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        try:
            async with open_channel(address, Security()) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await admission(open_stream(channel, SESSION, Security()))
                return str(refusal.value.details())
        finally:
            await server.stop(None)

    assert run(story) == "What answers there is no hvd-coordinator."


def test_a_port_that_a_connection_with_itself_holds_is_waited_for() -> None:
    with socket.socket() as itself:
        itself.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", itself.getsockname()[1])
        itself.connect(itself.getsockname())  # what redialling a port of the own host may come to

        async def story() -> None:
            waiting = asyncio.ensure_future(until_free(address))
            await asyncio.sleep(0)
            assert not waiting.done()
            itself.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            itself.close()
            await waiting
            await until_free(address)

        run(story)


def test_a_port_at_which_a_program_listens_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        run(lambda: until_free(Address("127.0.0.1", other.getsockname()[1]), patience_s=3600))


# ---- jobs


def test_a_launcher_of_another_version_and_jobs_that_are_none_are_refused() -> None:
    async def story() -> list[str]:
        async with serving() as peers:
            await (await peers.agent()).read("orders")
            launchers = [
                await peers.launcher(protocol=2, version="9.9"),
                await peers.launcher(size=0),
                await peers.launcher(command=[]),
                await peers.launcher(size=3),
            ]
            return [(await launcher.read()).refused.text for launcher in launchers]

    other, none, empty, large = run(story)
    assert other.startswith("This launcher (hvd 9.9) speaks protocol 2, the coordinator 1: install the same version")
    assert none == empty == "A job has at least one rank, and a command unless it attaches."
    assert large.startswith("3 ranks were asked for, but the agents have 2 slots.")


def test_limits_of_a_job_are_its_own() -> None:
    async def story() -> None:
        async with serving() as peers:
            await (await peers.agent()).read("orders")
            limits = control_pb2.JobLimits(stall_check_s=3, cache_capacity=5)
            await (await peers.launcher(limits=limits)).read()
            config = peers.service.core.config
            assert (config.stall_check_s, config.cache_capacity, config.grace_s) == (3, 5, 5)

    run(story)


def test_what_is_cancelled_ends_with_the_launcher_s_code() -> None:
    async def story() -> tuple[int, list[float]]:
        async with serving() as peers:
            agent = await peers.agent()
            await agent.read("orders")
            launcher = await peers.launcher()
            await launcher.read()
            stops = []
            for at_once in (False, True):
                cancel = control_pb2.JobCancel(code=130, reason="Ctrl-C", at_once=at_once)
                await launcher.send(Job(cancel=cancel))
                while not (frame := await agent.read("orders")).orders.items[-1].HasField("stop_ranks"):
                    continue
                stops.append(frame.orders.items[0].stop_ranks.grace_s)
            for frame in (exited(1, 0, 143), exited(2, 1, 137)):
                await agent.send(frame)
            output = await peers.output(1)
            await output.send(Out(seq=1, end=control_pb2.OutputEnd()))
            return (await launcher.read()).ended.code, stops

    assert run(story) == (130, [5.0, 0.0])


def test_a_job_that_waits_may_be_cancelled() -> None:
    async def story() -> control_pb2.JobEnded:
        async with serving() as peers:
            launcher = await peers.launcher(wait=True)
            assert "the agents have 0 slots" in (await launcher.read()).notice.text
            await launcher.send(Job(cancel=control_pb2.JobCancel(code=143, reason="enough")))
            ended = (await launcher.read()).ended
            assert peers.service.desk.is_idle
            return ended  # type: ignore[no-any-return]

    ended = run(story)
    assert (ended.code, ended.text, ended.rank) == (143, "enough", -1)


# ---- output


def test_output_of_a_broken_connection_comes_once() -> None:
    async def story() -> list[bytes]:
        async with serving() as peers:
            agent = await peers.agent()
            await agent.read("orders")
            launcher = await peers.launcher()
            await launcher.read()
            first = await peers.output(1)
            assert (await first.read()).ack == 0
            await first.send(data(1, b"one"))
            await first.send(data(2, b"two"))
            found = [(await launcher.read()).output.data for _ in range(2)]
            while (await first.read()).ack < 2:  # not before the launcher has it
                continue
            second = await peers.output(1)  # while the first one is still open
            assert (await second.read()).ack == 2
            await second.send(data(2, b"two"))
            await second.send(data(3, b"three"))
            await second.send(Out(seq=4, notice="a word"))
            await second.send(Out(seq=5, end=control_pb2.OutputEnd()))
            assert await first.code() == "OK"
            for frame in (exited(1, 0), exited(2, 1)):
                await agent.send(frame)
            while (update := await launcher.read()).WhichOneof("body") != "ended":
                found.append(update.output.data or update.notice.text.encode())
            return found

    assert run(story) == [b"one", b"two", b"three", b"a word"]


def test_output_that_nobody_asked_for_is_not_wanted() -> None:
    async def story() -> list[bool]:
        async with serving() as peers:
            await (await peers.agent()).read("orders")
            strangers = [await peers.output(1)]
            await (await peers.launcher()).read()
            strangers += [await peers.output(2), await peers.output(1, "b"), await peers.output(1, instance="other")]
            return [(await stranger.read()).over for stranger in strangers]

    assert run(story) == [True] * 4


def test_output_of_a_job_whose_launcher_does_not_come_back_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows how much the launcher of before had, so the agent is asked for nothing, and told no number."""
    monkeypatch.setattr("horovod.coordinator.jobs._RETURN_S", 0.0)

    async def story() -> list[Any]:
        async with serving() as peers:
            await (await peers.agent()).read("orders")
            peers.service.desk.adopted(JobAdopted("id", 3, 2, ("train",), "me@here", ("a",)))
            words = [await (await peers.output(3)).read()]
            peers.service.desk.tick()
            return [*words, await (await peers.output(3)).read()]

    held, over = run(story)
    assert held is None
    assert over.over


def test_a_launcher_that_has_attached_hears_what_happened_while_it_was_away() -> None:
    async def story() -> tuple[list[int], int]:
        async with serving() as peers:
            desk = peers.service.desk
            desk.adopted(JobAdopted("mine", 3, 1, (), "me@here", ()))
            desk.formed(4, [RankPlace(0, "a", "host-a", 0, 1, 0, 1)])
            desk.ended(JobEnded(1, "Rank 0 is gone."))
            assert not desk.is_idle
            launcher = await peers.launcher(size=1, command=[], attach=True, id="mine", again=True)
            ranks = list((await launcher.read("accepted")).accepted.places.rank)
            return ranks, (await launcher.read("ended")).ended.code

    assert run(story) == ([0], 1)


def test_agents_hear_of_streams_that_nobody_reads() -> None:
    async def story() -> list[int]:
        async with serving() as peers:
            await (await peers.agent()).read("orders")
            launcher = await peers.launcher()
            await launcher.read()
            output = await peers.output(1)
            await output.read()
            await launcher.send(Job(output_closed=control_pb2.OutputClosed(stream=1)))
            return list((await output.read()).closed)

    assert run(story) == [1]


def test_the_end_of_a_job_does_not_wait_for_output_that_can_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod.coordinator.feeds._UNHEARD_S", 0.1)

    async def story() -> list[str]:
        async with serving() as peers:
            agent = await peers.agent()
            await agent.read("orders")
            launcher = await peers.launcher()
            updates = [await launcher.read()]
            for frame in (exited(1, 0), exited(2, 1)):
                await agent.send(frame)
            updates += [await launcher.read() for _ in range(2)]
            return [f"{update.WhichOneof('body')} {update.notice.text}".strip() for update in updates]

    assert run(story) == ["accepted", "notice The last output of agent a did not come.", "ended"]


def test_jobs_of_the_core_go_through_the_service() -> None:
    async def story() -> str:
        async with serving() as peers:
            assert isinstance(peers.service.submit(JobSubmitted(1, ("x",))), str)
            peers.service.cancel(JobCancelled(1, "nothing runs"))
            return str(peers.service.submit(JobSubmitted(1, ("x",))))

    assert "1 ranks were asked for, there are 0 slots" in run(story)


# ---- large models


def test_a_model_of_8192_tensors_is_negotiated_in_one_frame() -> None:
    """The frame is larger than the 4 MB that gRPC allows by itself; the answers come in frames of a bounded size."""
    count, long = 8192, "layer." * 100

    async def story() -> tuple[int, list[int]]:
        async with serving() as peers:
            agent = await peers.agent(slots=1)
            await agent.read("orders")
            launcher = await peers.launcher(size=1)
            await agent.read("orders")
            await agent.send(report(1, 2, rank_hello=control_pb2.RankHello(rank=0, generation=1)))
            await agent.read("orders")
            signatures = (worker_pb2.Signature(name=f"{long}{n}", dtype=7) for n in range(count))
            items = [control_pb2.Announcement(request=n, signature=s) for n, s in enumerate(signatures, 1)]
            frame = report(2, 3, epoch=1, announcements=control_pb2.Announcements(items=items))
            await agent.send(frame)
            plans: list[int] = []
            sizes = []
            while len(plans) < count:
                answer = await agent.read("orders")
                sizes.append(answer.ByteSize())
                plans += [order.plan_made.requests[0].request for order in answer.orders.items]
            assert plans == list(range(1, count + 1))
            launcher.stream.cancel()
            return frame.ByteSize(), sizes

    sent_bytes, sizes = run(story)
    assert sent_bytes > 4 << 20
    assert max(sizes) <= (1 << 20) + 64
    assert len(sizes) < 10


def test_a_frame_beyond_the_limit_ends_its_own_call() -> None:
    async def story() -> str:
        async with serving() as peers:
            other = await peers.agent("b")
            unlimited = [("grpc.max_send_message_length", -1)]
            async with grpc.aio.insecure_channel(str(peers.address), options=unlimited) as channel:
                call = Call(open_stream(channel, SESSION, OPEN))
                await call.send(Frame(hello=peers.hello(version="9" * (65 << 20))))
                code = await call.code()
            await other.read("orders")
            await other.send(report(1, guests=control_pb2.Guests()))
            assert list(peers.service.core.agents) == ["b"]
            return code

    assert run(story).startswith("RESOURCE_EXHAUSTED: ")
