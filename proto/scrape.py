"""Serves a service's metrics for Prometheus: ``/metrics``, read-only, from the service's own loop.

Collectors read state when they are asked; nothing counts along.  As they run in the loop that owns the state, it holds still.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from aiohttp import web
from horovod.proto.security import Address, SecurityProblem
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

__all__ = ["MetricsServer", "Source"]


class Source(Protocol):
    """Whatever has metrics."""

    def collect(self) -> Iterable[Metric]: ...


class MetricsServer:
    """One port.  ``address`` is the one that is really used."""

    def __init__(self, source: Source) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(source)
        ProcessCollector(registry=self._registry)
        application = web.Application()
        application.router.add_get("/metrics", self._show)
        self._runner = web.AppRunner(application, access_log=None)
        self.address: Address | None = None

    async def _show(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def start(self, listen: Address, option: str) -> None:
        """Answers from now on; SecurityProblem when the port can't be had."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, listen.host, listen.port).start()
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or str(error)
            raise SecurityProblem(
                f"can't serve metrics on {listen}: {reason}; choose another port with {option}"
            ) from error
        self.address = Address(listen.host, self._runner.addresses[0][1])

    async def close(self) -> None:
        """Lets the port go."""
        await self._runner.cleanup()
