"""Read-only HTTP in the loop of a daemon: /metrics, /healthz, /readyz and /api/state.  No thread, no other page, no other verb.

Anybody may ask, so nothing secret is shown, and nobody can make the process hold much: see visits.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from horovod.observe.loop import LoopWatch
from horovod.observe.state import Json
from horovod.observe.visits import Limits, Visit, Visits
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

__all__ = ["HttpServer", "Pages"]

log = logging.getLogger("horovod.observe")
# What strangers send is not worth a line each; errors of the pages are logged below.
_strangers = logging.getLogger("horovod.observe.strangers")
_strangers.setLevel(logging.CRITICAL + 1)

_BACKLOG = 32
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Pages:
    """What is shown.  ``reason_not_ready`` is empty when the service is ready."""

    registry: CollectorRegistry
    reason_not_ready: Callable[[], str]
    state: Callable[[], Json]


class HttpServer:
    """Binds at once (OSError when it can't), answers from ``start`` on.  Port 0 takes a free one; ``port`` says which.

    ``watch`` is closed with it.
    """

    def __init__(
        self, pages: Pages, host: str, port: int, limits: Limits | None = None, watch: LoopWatch | None = None
    ) -> None:
        self._pages, self._watch = pages, watch
        self._socket = _listen(host, port)
        self._visits = Visits(limits or Limits())
        self._routes: Mapping[str, Callable[[web.BaseRequest], web.Response]] = {
            "/metrics": self._metrics,
            "/healthz": lambda request: _text("ok"),
            "/readyz": self._readyz,
            "/api/state": self._state,
        }
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    @property
    def visits(self) -> int:
        """Open connections."""
        return len(self._visits)

    async def start(self) -> None:
        """Answers from now on."""
        web_server = web.Server(self._answer, access_log=None, logger=_strangers, lingering_time=0)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Visit(web_server(), self._visits), sock=self._socket, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Cuts everybody off; nothing is left when this returns."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        if self._watch is not None:
            self._watch.close()
        await self._visits.end_all()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = self._page(request)
        except Exception:
            log.exception("%s can't be shown.", request.path)
            response = _text("error: see the log", 500)
        response.headers.update(_HEADERS)
        response.force_close()
        return response

    def _page(self, request: web.BaseRequest) -> web.Response:
        page = self._routes.get(request.path)
        if page is None:
            return _text(f"not found; there are {', '.join(self._routes)}", 404)
        if request.method not in ("GET", "HEAD"):
            response = _text("only GET and HEAD", 405)
            response.headers["Allow"] = "GET, HEAD"
            return response
        return page(request)

    def _metrics(self, request: web.BaseRequest) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._pages.registry), headers={"Content-Type": content_type})

    def _readyz(self, request: web.BaseRequest) -> web.Response:
        reason = self._pages.reason_not_ready()
        return _text(reason, 503) if reason else _text("ready")

    def _state(self, request: web.BaseRequest) -> web.Response:
        return web.json_response(text=json.dumps(self._pages.state(), indent=1))


def _text(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text + "\n", status=status)


def _listen(host: str, port: int) -> socket.socket:
    """At the host, "" for all addresses of both families.  Looks a name up at once: the loop would use a thread for it."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    family, _, _, _, where = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((str(where[0]), int(where[1])), family=family, backlog=_BACKLOG)
