"""Output on its way to a coordinator that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import pytest
from horovod.agent.relay import Relay, RelayOptions
from horovod.proto import control_pb2
from horovod.proto.security import Address, Security
from horovod.proto.services import admit, handlers, server_options

T = TypeVar("T")
Word = control_pb2.OutputWord


def run(story: Callable[[], Coroutine[None, None, T]]) -> T:
    return asyncio.run(asyncio.wait_for(story(), 30))


class Coordinator:
    """Serves Output calls as the story says: each call gets the next behaviour."""

    def __init__(self, *behaviours: Callable[[Any], Coroutine[None, None, None]]) -> None:
        self._behaviours = list(behaviours)
        self.hellos: list[control_pb2.OutputHello] = []

    async def output(self, context: Any) -> None:
        await admit(context)
        self.hellos.append((await context.read()).hello)
        await (self._behaviours.pop(0) if self._behaviours else self.all)(context)

    async def all(self, context: Any) -> None:
        """Takes everything."""
        await context.write(Word(ack=0))
        while (frame := await context.read()) is not grpc.aio.EOF:
            await context.write(Word(ack=frame.seq))


@asynccontextmanager
async def relaying(coordinator: Coordinator) -> AsyncIterator[Relay]:
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((handlers({"Output": coordinator.output}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Relay(RelayOptions(Address("127.0.0.1", port), Security(), "a", "first", 7))
    finally:
        await server.stop(0)


class Told:
    """What a stream hears of its bytes."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bool]] = []
        self.changed = asyncio.Event()

    def __call__(self, count: int, taken: bool) -> None:
        self.told.append((count, taken))
        self.changed.set()

    async def wait_for(self, count: int) -> list[tuple[int, bool]]:
        while len(self.told) < count:
            self.changed.clear()
            await self.changed.wait()
        return self.told


def test_bytes_count_as_written_when_they_are_confirmed() -> None:
    async def story() -> tuple[list[tuple[int, bool]], bool, list[str]]:
        told, held = Told(), asyncio.Event()

        async def slowly(context: Any) -> None:
            await context.write(Word(ack=0))
            frames = [await context.read(), await context.read()]
            assert [frame.data.data for frame in frames] == [b"one", b"three"]
            await context.write(Word(ack=1))
            await held.wait()
            await context.write(Word(ack=2))
            assert (await context.read()).WhichOneof("body") == "end"
            await context.write(Word(ack=3))

        coordinator = Coordinator(slowly)
        async with relaying(coordinator) as relay:
            relay.put(relay.target(0, "stdout"), b"one", told)
            relay.put(relay.target(1, "stderr"), b"three", told)
            first = list(await told.wait_for(1))
            assert relay.unconfirmed_bytes == 5
            held.set()
            whole = await relay.close(None)
        hello = coordinator.hellos[0]
        return [*first, *told.told[1:]], whole, [hello.agent, hello.instance, str(hello.job)]

    assert run(story) == ([(3, True), (5, True)], True, ["a", "first", "7"])


def test_what_a_broken_connection_lost_is_sent_again() -> None:
    async def story() -> list[bytes]:
        taken: list[bytes] = []

        async def breaks(context: Any) -> None:
            await context.write(Word(ack=0))
            taken.append((await context.read()).data.data)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

        async def goes_on(context: Any) -> None:
            await context.write(Word(ack=1))
            while (frame := await context.read()) is not grpc.aio.EOF:
                taken.append(frame.data.data or frame.notice.encode())
                await context.write(Word(ack=frame.seq))

        async with relaying(Coordinator(breaks, goes_on)) as relay:
            for text in (b"one", b"two", b"three"):
                relay.put(relay.target(0, "stdout"), text, Told())
            target, words = relay.words("a word")
            relay.put(target, words, Told())
            assert await relay.close(None)
        return taken

    assert run(story) == [b"one", b"two", b"three", b"a word", b""]


def test_a_later_coordinator_that_wants_nothing_is_believed_whatever_its_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was started anew, and the launcher that knew how much it had is gone."""

    async def story() -> list[tuple[int, bool]]:
        async def breaks(context: Any) -> None:
            await context.write(Word(ack=0))
            await context.read()
            await context.write(Word(ack=1))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

        async def wants_nothing(context: Any) -> None:
            await context.write(Word(over=True))

        told = Told()
        async with relaying(Coordinator(breaks, wants_nothing)) as relay:
            relay.put(relay.target(0, "stdout"), b"one", told)
            await told.wait_for(1)
            relay.put(relay.target(0, "stdout"), b"two", told)
            await told.wait_for(2)
            await relay.close(None)
        return told.told

    assert run(story) == [(3, True), (3, True)]
    assert "confirms output" not in caplog.text


def test_a_stream_that_nobody_reads_is_told_so() -> None:
    async def story() -> tuple[list[tuple[int, bool]], list[tuple[int, bool]]]:
        async def closed(context: Any) -> None:
            await context.write(Word(ack=0, closed=[1]))
            while (frame := await context.read()) is not grpc.aio.EOF:
                await context.write(Word(ack=frame.seq, closed=[1]))

        out, err = Told(), Told()
        async with relaying(Coordinator(closed)) as relay:
            relay.put(relay.target(0, "stdout"), b"x", out)
            relay.put(relay.target(0, "stderr"), b"x", err)
            await relay.close(None)
        return out.told, err.told

    assert run(story) == ([(1, False)], [(1, True)])


def test_output_that_nobody_wants_holds_up_nobody() -> None:
    async def story() -> list[tuple[int, bool]]:
        async def unwanted(context: Any) -> None:
            await context.write(Word(over=True))

        told = Told()
        async with relaying(Coordinator(unwanted)) as relay:
            relay.put(relay.target(0, "stdout"), b"before", told)
            await told.wait_for(1)
            relay.put(relay.target(0, "stdout"), b"after", told)
            await told.wait_for(2)
            assert await relay.close(None)
        return told.told

    assert run(story) == [(6, True), (5, True)]


def test_a_coordinator_that_takes_nothing_is_waited_for_as_long_as_was_said() -> None:
    async def story() -> bool:
        async def never(context: Any) -> None:
            await asyncio.Event().wait()

        async with relaying(Coordinator(never)) as relay:
            relay.put(relay.target(0, "stdout"), b"x", Told())
            return await relay.close(0.05)

    assert run(story) is False


def test_a_coordinator_that_confirms_what_there_is_not_gets_no_more() -> None:
    async def story() -> list[tuple[int, bool]]:
        async def wrong(context: Any) -> None:
            await context.write(Word(ack=99))

        told = Told()
        async with relaying(Coordinator(wrong)) as relay:
            relay.put(relay.target(0, "stdout"), b"x", told)
            await told.wait_for(1)
            await relay.close(None)
        return told.told

    assert run(story) == [(1, True)]
