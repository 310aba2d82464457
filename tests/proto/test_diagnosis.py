"""What is said of connections that fail for their certificates, and of those that fail for another reason."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from horovod.proto.diagnosis import explain
from horovod.proto.security import Address, Security, TlsFiles, load_security
from horovod.proto.services import admit, handlers, server_options

FOLDER = Path(__file__).parent.parent / "cluster_local" / "certificates"
WANTS_TLS = "it wants TLS: give the certificate of its authority with --tls-ca"
NO_TLS = "it does not speak TLS: hvd-coordinator must have --tls-cert and --tls-key, or this program no --tls-ca"
NOT_ACCEPTED = (
    "its certificate is not accepted (unable to get local issuer certificate): --tls-ca must be the authority"
)
WANTS_ONE = "it wants a certificate ("


def files(cert: str = "", authority: str = "") -> Security:
    paths = (f"{cert}.pem", f"{cert}.key") if cert else ("", "")
    found = [str(FOLDER / path) if path else "" for path in (*paths, f"{authority}.pem" if authority else "")]
    return load_security("", TlsFiles(*found))


PLAIN = files()
CALLERS = {
    "plain": PLAIN,
    "tls": files("", "authority"),
    "wrong": files("", "stranger"),
    "both": files("client", "authority"),
}


@asynccontextmanager
async def serving(security: Security) -> AsyncIterator[Address]:
    async def call(context: Any) -> None:
        await admit(context)

    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((handlers({"Session": call}),))
    if security.uses_tls:
        pair = [(security.key, security.cert)]
        ca = security.ca or None
        credentials = grpc.ssl_server_credentials(pair, root_certificates=ca, require_client_auth=ca is not None)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Address("127.0.0.1", port)
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (PLAIN, {"plain": "", "tls": NO_TLS, "wrong": NO_TLS, "both": NO_TLS}),
        (files("server"), {"plain": WANTS_TLS, "tls": "", "wrong": NOT_ACCEPTED, "both": ""}),
        (files("server", "authority"), {"plain": WANTS_TLS, "tls": WANTS_ONE, "wrong": NOT_ACCEPTED, "both": ""}),
        (files("server", "stranger"), {"both": "it does not accept the certificate of --tls-cert ("}),
    ],
    ids=["plain", "tls", "mutual", "other authority"],
)
def test_either_side_s_mistake_is_named(server: Security, said: dict[str, str]) -> None:
    async def story() -> dict[str, str]:
        async with serving(server) as address:
            return {name: await explain(address, CALLERS[name]) for name in said}

    found = asyncio.run(asyncio.wait_for(story(), 30))
    assert {name: text[: len(said[name]) or None] for name, text in found.items()} == said


def test_a_certificate_for_another_name_is_told() -> None:
    async def story() -> str:
        async with serving(files("server")) as address:
            return await explain(Address("127.0.0.2", address.port), CALLERS["tls"])

    found = asyncio.run(asyncio.wait_for(story(), 30))
    assert found == "" or "it must be made out to 127.0.0.2, as --coordinator says" in found


def test_where_nobody_answers_certificates_are_not_blamed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = Address("127.0.0.1", taken.getsockname()[1])
    for caller in CALLERS.values():
        assert asyncio.run(explain(nobody, caller)) == ""


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_no_coordinator_does_not_want_tls(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert asyncio.run(explain(Address("127.0.0.1", listener.getsockname()[1]), PLAIN)) == ""
        thread.join()
