"""A coordinator on a port of this process, and clients that say to it whatever a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from horovod.coordinator.server import Server
from horovod.coordinator.service import Service, ServiceOptions
from horovod.proto import control_pb2
from horovod.proto.security import Address, Security
from horovod.proto.services import OUTPUT, RUN, SESSION, Method, open_channel, open_stream

T = TypeVar("T")
OPEN = Security()


def run(story: Callable[[], Coroutine[None, None, T]]) -> T:
    """Runs a story in a loop of its own."""
    return asyncio.run(asyncio.wait_for(story(), 30))


@dataclass
class Call:
    """A stream to the coordinator."""

    stream: Any
    said: list[Any] = field(default_factory=list)
    takes: bool = True  # a launcher's: says that it has what it reads

    async def send(self, frame: Any) -> None:
        """A frame."""
        await self.stream.write(frame)

    async def read(self, *bodies: str) -> Any:
        """The next frame that is no heartbeat, or one of these; None at the end."""
        while (frame := await self.stream.read()) is not grpc.aio.EOF:
            self.said.append(frame)
            if "body" not in frame.DESCRIPTOR.oneofs_by_name:
                return frame
            body = frame.WhichOneof("body")
            if isinstance(frame, control_pb2.JobUpdate) and frame.agent and self.takes:
                taken = control_pb2.OutputTaken(taken={frame.agent: frame.seq})
                await self.send(control_pb2.JobFrame(taken=taken))
            if body is None:  # the end of an agent's output
                continue
            if body in bodies or (not bodies and body != "heartbeat"):
                return frame
        return None

    async def code(self) -> str:
        """How the call ended."""
        try:
            while await self.stream.read() is not grpc.aio.EOF:
                continue
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "OK"


class Peers:
    """The coordinator and its clients."""

    def __init__(self, service: Service, address: Address) -> None:
        self.service, self.address = service, address
        self._channels: list[grpc.aio.Channel] = []

    def call(self, method: Method, security: Security = OPEN) -> Call:
        """A new connection with a call."""
        channel = open_channel(self.address, security)
        self._channels.append(channel)
        return Call(open_stream(channel, method, security))

    async def agent(self, name: str = "a", slots: int = 2, **hello: Any) -> Call:
        """An agent that has said Hello."""
        call = self.call(SESSION)
        await call.send(control_pb2.AgentFrame(hello=self.hello(name, slots, **hello)))
        return call

    def hello(self, name: str = "a", slots: int = 2, **other: Any) -> control_pb2.SessionHello:
        """What an agent says first."""
        register = control_pb2.Register(agent=name, host=f"host-{name}", slots=slots)
        fields = {"protocol": 1, "version": "x", "register": register, "instance": f"instance-{name}", **other}
        return control_pb2.SessionHello(**fields)

    async def launcher(self, size: int = 2, wait: bool = False, **other: Any) -> Call:
        """A launcher that has submitted a job."""
        call = self.call(RUN)
        fields = {"protocol": 1, "size": size, "command": [b"train"], "wait": wait, "launcher": "me@here", **other}
        await call.send(control_pb2.JobFrame(submit=control_pb2.JobSubmit(**fields)))
        return call

    async def output(self, job: int, name: str = "a", **other: Any) -> Call:
        """An agent's output of a job."""
        call = self.call(OUTPUT)
        fields = {"protocol": 1, "agent": name, "instance": f"instance-{name}", "job": job, **other}
        await call.send(control_pb2.OutputFrame(hello=control_pb2.OutputHello(**fields)))
        return call

    async def close(self) -> None:
        """Ends all connections."""
        for channel in self._channels:
            await channel.close()


@asynccontextmanager
async def serving(security: Security = OPEN, **options: Any) -> AsyncIterator[Peers]:
    """A coordinator as long as the block lasts."""
    broken: list[BaseException] = []
    service = Service(ServiceOptions(**{"broken": broken.append, **options}))
    server = Server(service, Address("127.0.0.1", 0), security)
    await server.start()
    peers = Peers(service, server.address)
    try:
        yield peers
        service.core.check_invariants()
    finally:
        await peers.close()
        await server.stop(0)
        service.close()
    assert broken == []
