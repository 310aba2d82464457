"""What the shell does between the core and the world."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from horovod.agent.core import events as ev
from horovod.agent.shell import AgentOptions, AgentOutputs, AgentShell

from tests.aio import in_loop


def raises(error: BaseException) -> None:
    """An error of the agent's own fails the test."""
    raise error


@in_loop
async def test_bells_that_come_before_one_is_heard_are_one() -> None:
    """A thousand arrivals while a rank has joined make the loop look at all plans once or twice, not a thousand times."""
    shell = AgentShell(AgentOptions("a0", "h0", 1), AgentOutputs(lambda report: None, raises))
    heard: list[ev.Event] = []

    def handle(event: ev.Event, now: float) -> list[ev.Command]:
        heard.append(event)
        return [ev.SweepSoon()] * 3 if len(heard) == 1 else []

    core: Any = SimpleNamespace(handle=handle)
    shell.core = core
    await asyncio.gather(*(asyncio.to_thread(shell._ring) for _ in range(100)))
    while len(heard) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    first = len(heard)
    for _ in range(100):
        shell._ring()
    assert len(heard) == first
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert heard[first:] == [ev.Bell()]
    await shell.close()
