"""The table of ranks: output is complete however slow the console is, and a pipe held by a stranger ends nothing."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from horovod.agent import ranks
from horovod.agent.core import events as ev
from horovod.agent.output import OutputOptions
from horovod.agent.ranks import RankOptions, RankTable


class GatedConsole:
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        assert self.go.wait(20)
        self.data += data


class Story:
    """Events of a table, and a way to wait for them."""

    def __init__(self, **options: object) -> None:
        self.console = GatedConsole()
        self.events: list[ev.Event] = []
        self.changed = asyncio.Event()
        output = OutputOptions(self.console, self.console)
        self.table = RankTable(RankOptions(output, grace_s=0.2, **options), self._post)  # type: ignore[arg-type]

    def _post(self, event: ev.Event) -> None:
        self.events.append(event)
        self.changed.set()

    def start(self, script: str) -> None:
        self.table.start(ev.StartProcess(0, ("sh", "-c", script), dict(os.environ), ""))

    async def ended(self) -> ev.ProcessEnded:
        while not (found := [event for event in self.events if isinstance(event, ev.ProcessEnded)]):
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)
        return found[0]


def test_what_a_rank_wrote_before_it_ended_is_not_lost_to_a_slow_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_LINGER_S", 0.1)

    async def run() -> bytes:
        story = Story()
        story.start("head -c 1090000 /dev/zero | tr '\\0' 'x'; head -c 60000 /dev/zero | tr '\\0' 'y'; echo; exit 3")
        assert (await story.ended()).code == 3
        closing = asyncio.ensure_future(story.table.close(None))
        await asyncio.wait({closing}, timeout=1)
        assert not closing.done()
        story.console.go.set()
        await asyncio.wait_for(closing, 20)
        return bytes(story.console.data)

    data = asyncio.run(run())
    assert (data.count(b"x"), data.count(b"y")) == (1_090_000, 60_000)


def test_a_pipe_that_a_stranger_holds_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_LINGER_S", 0.1)

    async def run() -> None:
        read, write = os.pipe()
        story = Story()
        story.console.go.set()
        story.start("echo $$; sleep 0.3; exit 0")
        while not any(isinstance(event, ev.ProcessStarted) for event in story.events):
            story.changed.clear()
            await asyncio.wait_for(story.changed.wait(), 20)
        started = next(event for event in story.events if isinstance(event, ev.ProcessStarted))
        held = os.open(f"/proc/{started.pid}/fd/1", os.O_WRONLY)
        await story.ended()
        await asyncio.wait_for(story.table.close(None), 20)
        for descriptor in (read, write, held):
            os.close(descriptor)

    asyncio.run(run())


def test_only_this_rank_gets_its_extras_and_the_report_has_the_last_lines() -> None:
    async def run() -> tuple[bytes, ev.ProcessEnded]:
        story = Story(extra=lambda rank: ({"OWN": f"of {rank}"}, ()), host_environment={"TMPDIR": os.fsdecode(b"\xff")})
        story.console.go.set()
        story.start('echo "$OWN"; printf "$TMPDIR" | od -An -tx1; echo last >&2; exit 1')
        ended = await story.ended()
        story.table.say("a word")
        await story.table.close(None)
        return bytes(story.console.data), ended

    data, ended = asyncio.run(run())
    assert b"[0]<stdout>:of 0\n" in data
    assert b"[0]<stdout>: ff\n" in data
    assert data.endswith(b"horovodrun: a word\n")
    assert (ended.code, ended.last_lines) == (1, "last")
