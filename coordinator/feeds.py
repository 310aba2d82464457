"""The output of a job's ranks on its way from the agents to the launcher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
from horovod.coordinator.outbox import Outbox
from horovod.coordinator.sessions import first_frame, until_one_ends
from horovod.proto import control_pb2
from horovod.proto.link import LinkError
from horovod.proto.pump import Pump

__all__ = ["Feed", "JobFeeds", "serve_output"]

log = logging.getLogger("horovod.coordinator")

_PROTOCOL = 1
_WORD_S = 5.0
_UNHEARD_S = 5.0  # how long the end of a job waits for output of an agent that has no stream for it


class Feed:
    """What one agent sends for one job; ``is_over`` when no more comes.

    ``taken``: up to there the launcher has it.  Only then the agent may forget it, as this coordinator may end at any moment.
    """

    def __init__(self, agent: str, instance: str, now: float) -> None:
        self.agent, self.instance = agent, instance
        self.pump: Pump[None] = Pump()  # only its numbers of received frames are used
        self.taken, self.end_at = 0, 0
        self.is_over = False
        self.streams = 0
        self.alone_since = now
        self.turn = asyncio.Lock()

    def begin_at(self, number: int) -> None:
        """The launcher has had so much from an earlier coordinator."""
        self.taken = self.pump.link.received = max(number, self.taken)

    def take(self, number: int) -> None:
        """The launcher has it."""
        if number > self.taken:
            self.taken = min(number, self.pump.link.received)
            self.is_over = self.is_over or 0 < self.end_at <= self.taken
            self.pump.nudge()

    def end(self) -> None:
        """No more is wanted."""
        self.is_over = True
        self.pump.stop()


class JobFeeds:
    """All feeds of one job; ``on_over`` is called when the last one is over."""

    def __init__(self, outbox: Outbox, agents: Mapping[str, str], now: float, on_over: Callable[[], None]) -> None:
        self._outbox, self._on_over = outbox, on_over
        self.feeds = {agent: Feed(agent, instance, now) for agent, instance in agents.items()}
        self.closed: set[int] = set()
        self.held = False  # an adopted job whose launcher has not come back: nobody knows what it has had

    def begin_at(self, taken: Mapping[str, int], outbox: Outbox, on_over: Callable[[], None]) -> None:
        """The launcher is back, and has so much of each agent."""
        self.held, self._outbox, self._on_over = False, outbox, on_over
        for agent, number in taken.items():
            if agent in self.feeds:
                self.feeds[agent].begin_at(number)

    def take(self, taken: Mapping[str, int]) -> None:
        """The launcher has so much of each agent."""
        for agent, number in taken.items():
            if agent in self.feeds:
                self.feeds[agent].take(number)
        self._on_over()

    @property
    def is_over(self) -> bool:
        """Whether all output is there."""
        return all(feed.is_over for feed in self.feeds.values())

    def end(self, agents: Iterable[str]) -> None:
        """Nothing more comes from these agents, or is wanted of them."""
        for agent in agents:
            if agent in self.feeds:
                self.feeds[agent].end()
        self._on_over()

    def end_unheard(self, ended_at: float, now: float) -> None:
        """After the end of the job: whoever has no stream for a while will not have one."""
        missing = [
            name
            for name, feed in self.feeds.items()
            if not feed.is_over and not feed.streams and now - max(feed.alone_since, ended_at) > _UNHEARD_S
        ]
        for name in missing:
            text = f"The last output of agent {name} did not come."
            self._outbox.put_now(control_pb2.JobUpdate(notice=control_pb2.JobNotice(text=text)))
        if missing:
            self.end(missing)

    def close_stream(self, stream: int) -> None:
        """Nobody reads stdout (1) or stderr (2) any more."""
        self.closed.add(stream)
        for feed in self.feeds.values():
            feed.pump.nudge()

    # ---- one stream of one agent

    async def serve(self, context: Any, feed: Feed, clock: Callable[[], float]) -> None:
        """Takes output as fast as the launcher does."""
        feed.streams += 1
        feed.pump.stop()
        try:
            async with feed.turn:  # an older stream may have a frame in its hands
                feed.pump.nudge()
                await until_one_ends(self._write(context, feed), self._read(context, feed))
        finally:
            feed.streams -= 1
            feed.alone_since = clock()

    async def _write(self, context: Any, feed: Feed) -> None:
        async def send(_number: int, _frame: None) -> None:
            await context.write(control_pb2.OutputWord(ack=feed.taken, closed=sorted(self.closed)))

        await feed.pump.write(send, _WORD_S)

    async def _read(self, context: Any, feed: Feed) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            if frame.seq <= feed.pump.link.received:
                continue
            await self._pass_on(feed, frame)
            try:
                feed.pump.link.accept(frame.seq)
            except LinkError as error:
                log.warning("The output of agent %s makes no sense: %s.", feed.agent, error)
                return
            if frame.WhichOneof("body") == "end":
                # The stream stays open until the agent has read that this has come.
                feed.end_at = frame.seq
            if self._outbox.closed:  # nobody reads any more
                self.take({feed.agent: frame.seq})

    async def _pass_on(self, feed: Feed, frame: control_pb2.OutputFrame) -> None:
        update, body = control_pb2.JobUpdate(agent=feed.agent, seq=frame.seq), frame.WhichOneof("body")
        if body == "data":
            update.output.CopyFrom(frame.data)
        elif body == "notice":
            update.notice.text = frame.notice
        await self._outbox.put(update)


async def serve_output(
    context: Any, jobs: Callable[[int], JobFeeds | None], clock: Callable[[], float], known: Callable[[int], bool]
) -> None:
    """An Output call, from its first frame on.  ``known``: whether agents with a session of this incarnation have told all."""
    frame = await first_frame(context)
    if frame is None or frame.WhichOneof("body") != "hello" or frame.hello.protocol != _PROTOCOL:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"An OutputHello of protocol {_PROTOCOL} is expected.")
        return
    job = jobs(frame.hello.job)
    if not known(frame.hello.incarnation) or (job is not None and job.held):
        return  # the agent tries again
    feed = job.feeds.get(frame.hello.agent) if job is not None else None
    if job is None or feed is None or feed.is_over or feed.instance != frame.hello.instance:
        await context.write(control_pb2.OutputWord(over=True))
    else:
        await job.serve(context, feed, clock)
