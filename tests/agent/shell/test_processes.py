"""Rank processes under wardens: starts, endings, and what happens when the warden itself is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import psutil
import pytest
from horovod.agent import processes
from horovod.agent.processes import Ending, RankProcess, StartSpec, WardenLines


class Story:
    """What a process reports."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.endings: list[Ending] = []
        self.started = asyncio.Event()
        self.gone = asyncio.Event()
        self.process = RankProcess(self._started, self.endings.append, self.gone.set)

    def _started(self, pid: int) -> None:
        self.pids.append(pid)
        self.started.set()

    def start(self, command: Sequence[str], grace_s: float = 5, directory: str = "", output: int = 2) -> None:
        self.process.start(StartSpec(command, dict(os.environ), directory, grace_s, output, 2))


async def ended(command: Sequence[str], **options: str) -> Ending:
    story = Story()
    story.start(command, **options)  # type: ignore[arg-type]
    await asyncio.wait_for(story.gone.wait(), 20)
    (ending,) = story.endings
    return ending


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        ("exit 0", Ending(0)),
        ("exit 3", Ending(3)),
        ("kill -KILL $$", Ending(137, 9)),
        ("kill -ABRT $$", Ending(134, 6)),
        ("kill $$", Ending(143, 15)),
    ],
)
def test_endings(script: str, ending: Ending) -> None:
    assert asyncio.run(ended(["sh", "-c", script])) == ending


def test_what_can_not_be_started_ends_with_the_reason() -> None:
    ending = asyncio.run(ended(["/no/such/program"]))
    assert ending == Ending(127, 0, "/no/such/program can't be started: No such file or directory")
    ending = asyncio.run(ended(["true"], directory="/no/such/folder"))
    text = "its working directory /no/such/folder does not exist there; start the launcher in one that all hosts have"
    assert ending == Ending(126, 0, text)


def test_an_environment_that_is_too_large_is_a_reason_too() -> None:
    async def run() -> Ending:
        story = Story()
        story.process.start(StartSpec(["true"], {"LARGE": "x" * (1 << 20)}, "", 1, 2, 2))
        await asyncio.wait_for(story.gone.wait(), 20)
        return story.endings[0]

    assert "Argument list too long" in asyncio.run(run()).start_error


@pytest.mark.parametrize("kill", [False, True])
def test_a_tree_is_ended_with_and_without_grace(kill: bool) -> None:
    async def run() -> Story:
        story = Story()
        read, write = os.pipe()
        script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
        story.start(["sh", "-c", script], grace_s=0.2, output=write)
        os.close(write)
        assert await asyncio.to_thread(os.read, read, 10) == b"up\n"
        os.close(read)
        if kill:
            story.process.kill()
        else:
            story.process.terminate()
        await asyncio.wait_for(story.gone.wait(), 20)
        return story

    story = asyncio.run(run())
    assert story.endings == [Ending(137, 9)]
    assert not psutil.pid_exists(story.pids[0])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGABRT, 134)])
def test_a_warden_that_is_killed_takes_its_rank_along(number: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(processes.log, "warning", lambda text, *values: told.append(text % values))

    async def run() -> Story:
        story = Story()
        story.start(["sleep", "100"])
        await asyncio.wait_for(story.started.wait(), 20)
        warden = psutil.Process(story.pids[0]).parent()
        assert warden is not None
        warden.send_signal(number)
        await asyncio.wait_for(story.gone.wait(), 20)
        return story

    before = set(os.listdir("/proc/self/fd"))
    story = asyncio.run(run())
    assert story.endings == [Ending(code, number)]
    assert told == [f"hvd-warden of process {story.pids[0]} was killed by signal {number}, and its rank with it."]
    assert not _runs(story.pids[0])
    assert set(os.listdir("/proc/self/fd")) <= before


def _runs(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        process.wait(5)
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired:
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_ranks_inherit_no_descriptor_of_the_agent() -> None:
    async def run() -> bytes:
        story = Story()
        read, write = os.pipe()
        keep = os.open("/dev/null", os.O_RDONLY)
        code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"
        story.start([sys.executable, "-c", code], output=write)
        os.close(write)
        await asyncio.wait_for(story.gone.wait(), 20)
        os.close(keep)
        data = os.read(read, 1000)
        os.close(read)
        return data

    assert asyncio.run(run()) == b"[0, 1, 2, 3]\n"  # 3 is the listing itself


def test_status_lines_may_be_cut_anywhere() -> None:
    lines = WardenLines("prog")
    for byte in b"started 12\nsignal 11\n":
        lines.feed(bytes([byte]))
    assert (lines.pid, lines.ending) == (12, Ending(139, 11))
