"""Kills the coordinator at any moment and starts another one: what was on its way is lost as a kill loses it.

Each agent has received a prefix of the orders that were meant for it, and goes on with them.  Nobody hears its reports.  When
the next coordinator is there, each agent presents itself when its turn comes; orders of the old one that it has not
carried out by then are forgotten, as in agent/daemon.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from horovod.agent.core import values as v

if TYPE_CHECKING:
    from tests.model.world import AgentHost, World

MOST_PAUSE = 400  # steps between two kills
LONGEST_ABSENCE = 300


class Restarts:
    """``count`` kills are still to come."""

    def __init__(self, world: World, count: int, chance: random.Random) -> None:
        self._world, self._count, self._chance = world, count, chance
        self._kill_at = chance.randrange(MOST_PAUSE)
        self._start_at = 0
        self._joined: frozenset[int] = frozenset()
        self.is_down = False

    def actors(self, steps: int) -> Iterator[tuple[bool, Callable[[], None], object]]:
        """A kill or a start, when it is time."""
        if self._count and not self.is_down and steps >= self._kill_at:
            yield True, self._kill, None
        if self.is_down and steps >= self._start_at:
            yield True, self._start, None
        if self._is_unheard_of():
            yield True, self._world.submit, None

    def last_actors(self) -> list[tuple[bool, Callable[[], None], object]]:
        """When nobody else can move, everybody waits for the coordinator."""
        return [(True, self._start, None)] if self.is_down else []

    def host_actors(self, host: AgentHost) -> Iterator[tuple[bool, Callable[[], None], object]]:
        """An agent that has found the new coordinator."""
        if not self.is_down and not host.connected:
            yield True, lambda: self._present(host), host.name

    def joined(self) -> frozenset[int]:
        """Ranks that have joined, as far as any coordinator knows."""
        epoch = self._world.coordinator.epoch
        return self._joined if self.is_down or epoch is None else frozenset(epoch.joined)

    def _is_unheard_of(self) -> bool:
        """No agent was told of the job: its launcher asks for it again."""
        world = self._world
        nothing = world.coordinator.adoption is None and world.coordinator.job is None and world.ended is None
        return (
            nothing and world.steps > 0 and not self.is_down and world.coordinator.agents.keys() == world.agents.keys()
        )

    def _kill(self) -> None:
        self._joined = self.joined()
        self._count -= 1
        self.is_down = True
        steps = self._world.steps
        self._start_at = steps + self._chance.randrange(LONGEST_ABSENCE)
        self._kill_at = self._start_at + self._chance.randrange(MOST_PAUSE)
        for host in self._world.agents.values():
            host.connected = False
            host.to_coordinator.clear()
            received = self._chance.randrange(len(host.from_coordinator) + 1)
            while len(host.from_coordinator) > received:
                host.from_coordinator.pop()

    def _start(self) -> None:
        self.is_down = False
        self._world.new_coordinator()

    def _present(self, host: AgentHost) -> None:
        host.from_coordinator.clear()
        host.connected = True
        info = host.core.info
        presented: Any = host.core.presented(self._world.now)
        host.to_coordinator.append((0, v.Register(info.name, info.host, info.slots, presents=True)))
        host.to_coordinator.append((0, presented))
