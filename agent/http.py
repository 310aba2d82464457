"""What an agent shows over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable

from horovod.agent.daemon import Daemon
from horovod.agent.metrics import AgentView, Facts, agent_collector
from horovod.agent.snapshot import agent_snapshot
from horovod.observe.http import HttpServer, Pages
from horovod.observe.loop import LoopWatch
from horovod.observe.metrics import registry
from horovod.observe.process import process_collector

__all__ = ["agent_pages", "agent_server"]


def agent_server(daemon: Daemon, host: str, port: int) -> HttpServer:
    """Shows a daemon; OSError when the port can't be had."""
    watch, options, uplink = LoopWatch(), daemon.options, daemon.uplink
    facts = Facts(lambda: uplink.is_up, lambda: uplink.sessions, daemon.unconfirmed_bytes)
    lobby = daemon.lobby
    look = (lambda: (lobby.shell.address, lobby.waiting)) if lobby is not None else None
    view = AgentView(
        options.name, options.host, options.slots, daemon.tally, lambda: daemon.shell, options.labels, look
    )
    return HttpServer(agent_pages(view, facts, lambda: watch.lag_s), host, port, watch=watch)


def agent_pages(view: AgentView, facts: Facts, lag_s: Callable[[], float] | None = None) -> Pages:
    """Ready means registered with the coordinator; an agent that knows nothing of a coordinator always is."""

    def reason_not_ready() -> str:
        there = facts.is_registered is None or facts.is_registered()
        return "" if there else "not registered: the coordinator can't be reached, or has not answered yet"

    process = process_collector("agent", time.monotonic, lag_s)
    return Pages(registry(agent_collector(view, facts), process), reason_not_ready, lambda: agent_snapshot(view))
