"""The network side of a coordinator: the port, who is let in, and the three calls."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from horovod.coordinator.feeds import serve_output
from horovod.coordinator.service import Service
from horovod.proto.security import Address, Security, SecurityProblem, is_loopback
from horovod.proto.services import admit, handlers, server_options, shown_secret

__all__ = ["Server", "until_free"]

log = logging.getLogger("horovod.coordinator")

_ANSWER_S = 1.0
_LOOK_S = 0.1
_WRONG_TOKEN = "The coordinator wants a token, this one is {}: give the same to all with --token-file, HVD_TOKEN_FILE or HVD_TOKEN."


class Server:
    """Serves a Service on one port.  ``address`` is the one that is really used, also where port 0 was asked for."""

    def __init__(self, service: Service, listen: Address, security: Security) -> None:
        _check(listen, security)
        self._service, self._security = service, security
        self._server = grpc.aio.server(options=server_options())
        behaviours = {"Session": service.agents.serve, "Output": self._output, "Run": service.desk.serve}
        guarded = {name: self._guard(behaviour) for name, behaviour in behaviours.items()}
        self._server.add_generic_rpc_handlers((handlers(guarded),))
        self.address = Address(listen.host, self._bind(listen))

    async def start(self) -> None:
        """Takes calls from now on."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls; those that last longer than the grace are ended."""
        await self._server.stop(grace_s)

    def _bind(self, listen: Address) -> int:
        try:
            if not self._security.uses_tls:
                return int(self._server.add_insecure_port(str(listen)))
            credentials = grpc.ssl_server_credentials(
                [(self._security.key, self._security.cert)],
                root_certificates=self._security.ca or None,
                require_client_auth=bool(self._security.ca),
            )
            return int(self._server.add_secure_port(str(listen), credentials))
        except RuntimeError as error:
            raise SecurityProblem(f"can't listen on {listen}: {error}") from error

    async def _output(self, context: Any) -> None:
        service = self._service
        await serve_output(context, service.desk.feeds, time.monotonic, service.knows_jobs)

    def _guard(self, behaviour: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """Only callers with the token get in."""

        async def serve(context: Any) -> None:
            secret = shown_secret(context)
            if self._security.admits(secret):
                await admit(context)
                await behaviour(context)
                return
            log.warning("Refused a call of %s: its token is %s.", context.peer(), "wrong" if secret else "missing")
            text = _WRONG_TOKEN.format("another" if secret else "missing")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

        return serve


def _check(listen: Address, security: Security) -> None:
    """Says in one line what the library would not."""
    if not security.secret and not is_loopback(listen.host):
        raise SecurityProblem(
            f"listening on {listen} without a token would let everybody start processes here: give one with --token-file, "
            "HVD_TOKEN_FILE or HVD_TOKEN, or listen on 127.0.0.1"
        )
    if security.ca and not security.cert:
        raise SecurityProblem("--tls-ca needs --tls-cert and --tls-key: a server shows a certificate of its own")
    try:
        _with_socket(listen, socket.socket.bind)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SecurityProblem(f"can't listen on {listen}: {reason}; choose another port with --listen") from error


def _with_socket(address: Address, action: Callable[[socket.socket, Any], None]) -> None:
    family, kind, protocol, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.settimeout(_ANSWER_S)
        action(probe, where)


def _is_held(listen: Address) -> bool:
    """Whether the port is taken, but not by a program that listens there."""
    try:
        _with_socket(listen, socket.socket.bind)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return False
    else:
        return False
    try:
        _with_socket(listen, socket.socket.connect)
    except OSError:
        return True
    return False


async def until_free(listen: Address, patience_s: float = 30.0) -> None:
    """Waits while a connection holds the port at which nobody listens.

    Whoever dials a port of the own host while nobody listens there may be given that very port for its own end: agents do
    that while their coordinator is away.  Their libraries give it up after a while.
    """
    deadline = time.monotonic() + patience_s
    is_first = True
    while _is_held(listen) and time.monotonic() < deadline:
        if is_first:
            log.warning("A connection holds port %d: waiting up to %g s for its end.", listen.port, patience_s)
        is_first = False
        await asyncio.sleep(_LOOK_S)
