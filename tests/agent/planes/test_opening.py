"""A plane that can't be opened leaves no connection behind."""

from __future__ import annotations

import asyncio

import pytest
from horovod.agent.core import events as ev
from horovod.agent.core.values import Host
from horovod.agent.planes import sockets
from horovod.agent.planes.links import Link, Links
from horovod.agent.planes.opening import PlaneOptions
from horovod.agent.planes.tcp import TcpOptions
from horovod.agent.shell import AgentOptions, AgentOutputs, AgentShell
from horovod.proto import control_pb2

from tests.aio import in_loop

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(60)]
KEY = b"k" * 32


class Reports:
    """What the agent says."""

    def __init__(self) -> None:
        self.all: list[control_pb2.AgentReport] = []

    def broken(self, error: BaseException) -> None:
        raise error


@in_loop
async def test_links_are_closed_when_there_is_no_board_for_them() -> None:
    made = [Links(sockets.listen("127.0.0.1"), 2, 20.0) for _ in range(2)]
    ring = tuple(Host(f"a{i}", f"h{i}", (f"127.0.0.1:{links.port}",)) for i, links in enumerate(made))
    reports = Reports()
    shell = AgentShell(
        AgentOptions("a0", "h0", 1),
        AgentOutputs(reports.all.append, reports.broken),
        PlaneOptions(made[0], TcpOptions()),
    )
    other = asyncio.ensure_future(made[1].open(1, ring, 1, KEY))
    await shell._open_plane(ev.PlaneOpen(1, ring, 0, KEY))  # without BoardCreate: as when memory was exhausted
    close_ends(await other)
    await shell.close()
    for links in made:
        await links.close()


def close_ends(links: list[Link]) -> None:
    for link in links:
        sock = sockets.socket.socket(fileno=link.descriptor)
        sock.settimeout(5)
        assert sock.recv(1) == b""  # the other end is closed
        sock.close()
