"""The calls of the control plane, for both ends: names, messages, limits, connections.

There is no generated service code: all calls are streams in both directions, served by generic handlers.  Only services
import this module; a training process must not, as it loads grpc.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message
from horovod.proto import control_pb2
from horovod.proto.security import Address, Security

__all__ = [
    "OUTPUT",
    "RUN",
    "SESSION",
    "Method",
    "admission",
    "admit",
    "handlers",
    "open_channel",
    "open_stream",
    "server_options",
    "shown_secret",
]

_SERVICE = "hvd.control.Coordinator"
_TOKEN_KEY = "hvd-token"
_ADMITTED_KEY = "hvd-admitted"
_MOST_MESSAGE_BYTES = 64 << 20
_MOST_STREAMS = 64  # of one connection; an agent and a launcher need one each
_COMMON = (
    ("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MOST_MESSAGE_BYTES),
    # A host that vanished is noticed in half a minute, also on streams that say nothing.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True)
class Method:
    """A call: what the client's frames and the server's are."""

    name: str
    request: type[Message]
    reply: type[Message]


SESSION = Method("Session", control_pb2.AgentFrame, control_pb2.CoordinatorFrame)
OUTPUT = Method("Output", control_pb2.OutputFrame, control_pb2.OutputWord)
RUN = Method("Run", control_pb2.JobFrame, control_pb2.JobUpdate)

Behaviour = Callable[[Any], Awaitable[None]]


def handlers(behaviours: Mapping[str, Behaviour]) -> grpc.GenericRpcHandler:
    """The service; each behaviour reads from and writes to its context."""
    methods = {method.name: method for method in (SESSION, OUTPUT, RUN)}

    def serve(method: Method, behaviour: Behaviour) -> Any:
        async def call(_requests: Any, context: Any) -> None:
            await behaviour(context)

        return grpc.stream_stream_rpc_method_handler(
            call, request_deserializer=method.request.FromString, response_serializer=_serialize
        )

    return grpc.method_handlers_generic_handler(
        _SERVICE, {name: serve(methods[name], behaviour) for name, behaviour in behaviours.items()}
    )


def _serialize(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def server_options() -> list[tuple[str, int]]:
    """Limits of the server; its port is nobody else's."""
    return [
        *_COMMON,
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", _MOST_STREAMS),
        # Who connects and says nothing, or nothing that leads to a call, does not stay.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 30_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def open_channel(address: Address, security: Security) -> grpc.aio.Channel:
    """A connection of its own: what fills one does not hold up the others.  The caller closes it."""
    options = [*_COMMON, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    if not security.uses_tls:
        return grpc.aio.insecure_channel(str(address), options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=security.ca or None,
        private_key=security.key or None,
        certificate_chain=security.cert or None,
    )
    return grpc.aio.secure_channel(str(address), credentials, options)


def open_stream(channel: grpc.aio.Channel, method: Method, security: Security) -> Any:
    """A call on the channel; the token goes with it."""
    call = channel.stream_stream(
        f"/{_SERVICE}/{method.name}",
        request_serializer=_serialize,
        response_deserializer=method.reply.FromString,
    )
    return call(metadata=((_TOKEN_KEY, security.secret),) if security.secret else ())


async def admission(call: Any) -> None:
    """Waits until the server lets the call in; raises its refusal, an AioRpcError.

    A client must not write before: where a write meets the end of the call, the library forgets the server's reason.
    """
    if any(key == _ADMITTED_KEY for key, _ in await call.initial_metadata() or ()):
        return
    await call.read()
    details = "What answers there is no hvd-coordinator."
    raise grpc.aio.AioRpcError(grpc.StatusCode.UNIMPLEMENTED, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


async def admit(context: Any) -> None:
    """The server's part of ``admission``."""
    await context.send_initial_metadata(((_ADMITTED_KEY, "1"),))


def shown_secret(context: Any) -> str:
    """The token that a caller has sent, empty without."""
    for key, value in context.invocation_metadata() or ():
        if key == _TOKEN_KEY:
            return str(value)
    return ""
