"""Connects the agents of an epoch with each other, some connections between each two.

The agent at the higher place in the ring connects, the other listens.  A connection may come before this agent has heard of the
epoch: it waits, unanswered, for a while.  Whoever can't prove the key of the epoch is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from horovod.agent.core.values import Host
from horovod.agent.planes import handshake, sockets
from horovod.agent.planes.handshake import Greeting, Refused
from horovod.agent.planes.probe import answer_probes

__all__ = ["Link", "LinkFailed", "Links"]

log = logging.getLogger("horovod.agent")

_SPEAK_S = 10.0  # for each step of the handshake
_EARLY_S = 30.0  # a connection for an epoch that this agent has not heard of yet
_MOST_VISITS = 4096  # at most half of the descriptors that this process may have
_RETRY_S = 0.1
_HEAD_START_S = 0.25  # of an address over the next one


class LinkFailed(Exception):
    """An agent can't be reached; ``place`` is its place in the ring."""

    def __init__(self, place: int, text: str) -> None:
        super().__init__(text)
        self.place, self.text = place, text


@dataclass(frozen=True, slots=True)
class Link:
    """One connection to the agent at ``place``; the descriptor belongs to whoever takes it."""

    place: int
    lane: int
    descriptor: int


@dataclass(slots=True)
class _Meeting:
    """An epoch that is being connected: who is to come, and who has."""

    key: bytes
    place: int
    wanted: set[tuple[int, int]]
    come: dict[tuple[int, int], socket.socket] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Links:
    """Listens while the agent lives.  Belongs to the running loop."""

    def __init__(self, listener: socket.socket, lanes: int, open_s: float) -> None:
        self._listener, self._lanes, self._open_s = listener, lanes, open_s
        self._meetings: dict[int, _Meeting] = {}
        self._heard = asyncio.Condition()
        self._visits: dict[asyncio.Task[None], None] = {}  # oldest first
        self._most_visits = min(_MOST_VISITS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._reached: dict[str, str] = {}  # by agent, the address at which it was reached last
        self._task = asyncio.get_running_loop().create_task(self._accept())

    @property
    def lanes(self) -> int:
        """Connections between each two agents."""
        return self._lanes

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    # ---- the listening side

    async def _accept(self) -> None:
        while True:
            try:
                sock = await sockets.accept(self._listener)
            except OSError as error:  # no descriptors left, as a rule: some visits will be over soon
                log.warning("The data plane can't take a connection: %s.", error)
                await asyncio.sleep(_RETRY_S)
                continue
            if len(self._visits) >= self._most_visits:
                next(iter(self._visits)).cancel()  # who belongs here needs a moment only, and comes again
            task = asyncio.get_running_loop().create_task(self._receive_visit(sock))
            self._visits[task] = None
            task.add_done_callback(self._forget_visit)

    def _forget_visit(self, task: asyncio.Task[None]) -> None:
        self._visits.pop(task, None)

    async def _receive_visit(self, sock: socket.socket) -> None:
        try:
            first = await asyncio.wait_for(sockets.receive(sock, handshake.GREETING_BYTES), _SPEAK_S)
            if not handshake.is_probe(first):
                await self._shake_hands(sock, first)
                return
            await answer_probes(sock, first, _SPEAK_S)
            sock.close()
        except (Refused, OSError, asyncio.TimeoutError) as error:
            log.warning("A connection to the data plane was dropped: %s.", error or "it was silent for too long")
            sock.close()
        except BaseException:
            sock.close()
            raise

    async def _shake_hands(self, sock: socket.socket, first: bytes) -> None:
        greeting = Greeting.unpack(first)
        meeting = await asyncio.wait_for(self._meeting_of(greeting), _EARLY_S)
        if greeting.target != meeting.place or (greeting.source, greeting.lane) not in meeting.wanted:
            raise Refused(f"nobody expects lane {greeting.lane} from place {greeting.source}")
        nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        await sockets.send(sock, handshake.answer(meeting.key, greeting, nonce))
        mac = await asyncio.wait_for(sockets.receive(sock, handshake.MAC_BYTES), _SPEAK_S)
        handshake.check(meeting.key, greeting, nonce, mac)
        await sockets.send(sock, handshake.ACCEPTED)
        self._arrived(greeting, sock)

    async def _meeting_of(self, greeting: Greeting) -> _Meeting:
        async with self._heard:
            await self._heard.wait_for(lambda: greeting.epoch in self._meetings)
            return self._meetings[greeting.epoch]

    def _arrived(self, greeting: Greeting, sock: socket.socket) -> None:
        meeting = self._meetings.get(greeting.epoch)
        who = (greeting.source, greeting.lane)
        if meeting is None or who not in meeting.wanted:
            raise Refused("it came too late")
        meeting.wanted.discard(who)
        meeting.come[who] = sock
        meeting.changed.set()

    # ---- the connecting side

    async def open(self, epoch: int, ring: Sequence[Host], place: int, key: bytes) -> list[Link]:
        """All connections of this agent in an epoch; LinkFailed names an agent that can't be reached in time."""
        wanted = {(other, lane) for other in range(place + 1, len(ring)) for lane in range(self._lanes)}
        meeting = _Meeting(key, place, wanted)
        async with self._heard:
            self._meetings[epoch] = meeting
            self._heard.notify_all()
        calls = [
            asyncio.ensure_future(self._call(ring[other], Greeting(epoch, place, other, lane, b""), key))
            for other in range(place)
            for lane in range(self._lanes)
        ]
        made: list[socket.socket] = []
        try:
            deadline = asyncio.get_running_loop().time() + self._open_s
            made = list(await asyncio.gather(*calls))
            await self._all_come(meeting, deadline)
        except BaseException:
            await _abandon(calls, meeting)
            raise
        finally:
            self._meetings.pop(epoch, None)
        mine = [(other, lane) for other in range(place) for lane in range(self._lanes)]
        pairs = [*zip(mine, made, strict=True), *meeting.come.items()]
        return [Link(other, lane, sock.detach()) for (other, lane), sock in pairs]

    async def _all_come(self, meeting: _Meeting, deadline: float) -> None:
        while meeting.wanted:
            meeting.changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(meeting.changed.wait(), max(0.0, left))
            except asyncio.TimeoutError:
                place, _ = min(meeting.wanted)
                raise LinkFailed(place, f"it did not connect within {self._open_s:g} s") from None

    async def _call(self, host: Host, greeting: Greeting, key: bytes) -> socket.socket:
        deadline = asyncio.get_running_loop().time() + self._open_s
        reasons: dict[str, str] = {}
        while True:
            sock = await self._try_all(host, greeting, key, deadline, reasons)
            if sock is not None:
                return sock
            if asyncio.get_running_loop().time() + _RETRY_S >= deadline:
                tried = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
                raise LinkFailed(greeting.target, tried or "it has told no address")
            await asyncio.sleep(_RETRY_S)

    async def _try_all(
        self, host: Host, greeting: Greeting, key: bytes, deadline: float, reasons: dict[str, str]
    ) -> socket.socket | None:
        """Each address once, the one that worked last time first."""
        last = self._reached.get(host.agent)
        addresses = sorted(host.addresses, key=lambda address: address != last)
        while addresses:
            left = max(0.01, deadline - asyncio.get_running_loop().time())
            tries = sockets.connect_first(addresses, _HEAD_START_S, reasons)
            try:
                address, sock = await asyncio.wait_for(tries, left)
            except (OSError, asyncio.TimeoutError):
                return None
            addresses.remove(address)
            try:
                await asyncio.wait_for(_greet(sock, greeting, key), min(left, _SPEAK_S))
            except (Refused, OSError, asyncio.TimeoutError) as error:
                reasons[address] = str(error) or "no answer"
            else:
                self._reached[host.agent] = address
                return sock
        return None

    async def close(self) -> None:
        """Stops listening and drops who has not got through."""
        tasks = [self._task, *self._visits]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()


async def _greet(sock: socket.socket, template: Greeting, key: bytes) -> None:
    """The connecting side of the handshake; the socket is closed when it fails."""
    nonce = secrets.token_bytes(handshake.NONCE_BYTES)
    greeting = Greeting(template.epoch, template.source, template.target, template.lane, nonce)
    try:
        await sockets.send(sock, greeting.pack())
        answered = await sockets.receive(sock, handshake.ANSWER_BYTES)
        await sockets.send(sock, handshake.proof(key, greeting, answered))
        if await sockets.receive(sock, len(handshake.ACCEPTED)) != handshake.ACCEPTED:
            raise Refused("it did not accept")
    except BaseException:
        sock.close()
        raise


async def _abandon(calls: Sequence[asyncio.Future[socket.socket]], meeting: _Meeting) -> None:
    for call in calls:
        call.cancel()
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, socket.socket):
            outcome.close()
    meeting.wanted.clear()  # who is shaking hands now comes too late
    for sock in meeting.come.values():
        sock.close()
