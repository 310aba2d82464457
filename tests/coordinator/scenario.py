"""Replays a scenario file: events in, one per line; the commands that follow are logged below it, indented.

``config KEY=VALUE`` in the first line sets limits, ``standing SIZE`` the size of jobs that form by
themselves.  Invariants are checked after every event.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from horovod.coordinator.core import Command, Config, Coordinator, Event, GatheringSeen, JobEnded, JobFormed, Send
from horovod.coordinator.core.commands import Host
from horovod.coordinator.core.mismatch import DTYPES, OPS
from horovod.coordinator.core.selfstart import SelfStart
from horovod.coordinator.core.values import Error, ProcessSet, RankPlace, RankRequest, Signature

from tests.coordinator.commands import PLAN_BASE, event, split

INDENT = "    "
# What agents keep for another coordinator: it is looked at where that is the matter.
KEPT = {
    "StartRanks": ("id", "started", "launcher", "limits"),
    "Refusal": ("id",),
    "JobFinished": ("rank", "host", "pid", "signal", "last_lines"),
}


class Player:
    """One coordinator and its clock."""

    def __init__(self, config: Config | None = None) -> None:
        self.core = Coordinator(config or Config())
        self.now = 0.0

    def line(self, line: str) -> list[str]:
        """Carries out a line; the log below it."""
        words, options = split(line)
        word = words.pop(0)
        epoch = self.core.epoch.number if self.core.epoch else 0
        if word.startswith("@"):
            epoch, word = int(word[1:]), words.pop(0)
        if word == "config":
            self.core.config = self.core.defaults = Config(
                **{key: type(getattr(Config(), key))(value[-1]) for key, value in options.items()}
            )
            return []
        if word == "standing":
            self.core.selfstart = SelfStart(int(words[0]))
            return []
        if word == "up":
            size = self.core.job.size if self.core.job else 0
            steps = ("started", "hello") if self.core.job and not self.core.job.attached else ("hello",)
            return [text for rank in range(size) for step in steps for text in self.line(f"{step} {rank}")]
        if word == "wait":
            self.now += float(words[0])
        return self.log(event(word, words, options, self._agents(), epoch))

    def log(self, happened: Event) -> list[str]:
        """What the coordinator says to an event."""
        stale = self.core.stale
        commands = self.core.handle(happened, self.now)
        self.core.check_invariants()
        assert all(command.cause == self.core.handled for command in commands)
        return [line for command in commands for line in show(command)] + ["(dropped as stale)"] * (
            self.core.stale - stale
        )

    def _agents(self) -> dict[int, str]:
        return {place.rank: place.agent for place in self.core.job.places} if self.core.job else {}


def show(command: Command) -> list[str]:
    """``a: PlanMade plan=p1 ...`` or ``JobEnded code=0``."""
    if isinstance(command, (JobEnded, JobFormed, GatheringSeen)):
        return [_fields(command, skip="cause")]
    sends = [command] if isinstance(command, Send) else command.sends()
    return [f"{send.agent}: {_fields(send.body)}" for send in sends]


def _fields(value: Any, skip: str = "") -> str:
    parts = [type(value).__name__]
    for field in dataclasses.fields(value):
        # A scenario has few jobs, one after the other, and one secret.
        if field.name in ("job", "key", skip, *KEPT.get(parts[0], ())):
            continue
        if field.name != "guests" or value.guests:
            parts.append(f"{field.name}={_value(field.name, getattr(value, field.name))}")
    return " ".join(parts)


def _value(name: str, value: Any) -> str:
    if name == "plan":
        return f"p{value - PLAN_BASE}"
    if isinstance(value, Error):
        return f"{value.kind.name} {value.text!r}"
    if isinstance(value, Signature):
        return _signature(value)
    if isinstance(value, RankRequest):
        return f"{value.rank}#{value.request}"
    if isinstance(value, Host):
        return "/".join((value.agent, *value.addresses))
    if isinstance(value, ProcessSet):
        return f"{value.id}:{list(value.ranks)}"
    if isinstance(value, RankPlace):
        local, cross = f"{value.local_rank}/{value.local_size}", f"{value.cross_rank}/{value.cross_size}"
        return f"{value.rank}@{value.agent} local {local} cross {cross}"
    if isinstance(value, tuple):
        return f"[{', '.join(_value('', item) for item in value)}]"
    return repr(value) if isinstance(value, str) and name else str(value)


def _signature(value: Signature) -> str:
    shapes = ";".join(",".join(map(str, shape)) for shape in value.shapes)
    return f"<{value.kind.name.lower()} {value.name} {DTYPES[value.dtype]} [{shapes}] {OPS[value.op]}>"


def replay(text: str) -> str:
    """The file as it should be: its own events, with what the coordinator says now."""
    player = Player()
    lines = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [INDENT + said for said in player.line(line)]
    return "\n".join(lines) + "\n"


def files() -> list[Path]:
    """All scenarios."""
    return sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


__all__ = ["INDENT", "Player", "files", "replay", "show"]
