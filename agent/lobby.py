"""Where processes come in that others have started: one shell that outlives jobs, as their connections do.

The coordinator takes from those that wait and forms a job; the daemon hands that job's orders to this shell, as it does with
the shell of a job that it has started itself.
"""

from __future__ import annotations

import logging

from horovod.agent.core.guests import GuestCore
from horovod.agent.shell import AgentShell
from horovod.proto import control_pb2

__all__ = ["Lobby"]

log = logging.getLogger("horovod.agent")


class Lobby:
    """Not thread-safe: it belongs to the running loop."""

    ORDERS = ("registered", "gathering", "guest_rejected")  # whatever job runs

    def __init__(self, shell: AgentShell, warning: str) -> None:
        self.shell = shell
        self.number = 0
        self.abandoned = False
        self.unconfirmed_bytes = 0  # there is no output: it goes wherever their starter has it go
        shell.start(registered=True)
        log.info("Processes that others start come in at HOROVOD_AGENT=%s.", shell.address)
        if warning:
            log.warning(warning)

    @property
    def waiting(self) -> int:
        """How many wait for a rank."""
        core = self.shell.core
        return len(core.waiting) if isinstance(core, GuestCore) else 0

    def start(self, order: control_pb2.Order) -> None:
        """Some of them are a job's ranks now."""
        self.number, self.abandoned = order.start_ranks.job, False
        self.shell.order(order)

    def abandon(self) -> None:
        """The session with the coordinator is over; its last orders come first."""
        self.abandoned = True

    def lost(self, reason: str) -> None:
        """Nobody coordinates the ranks any more."""
        self.shell.abandon(reason)

    async def end(self, _drain_s: float | None) -> None:
        """The job is over: its processes may be ranks of the next one."""

    async def close(self, reason: str) -> None:
        """The ranks are told why it ends, then their connections end."""
        self.shell.abandon(reason)
        await self.shell.close(0.0)
