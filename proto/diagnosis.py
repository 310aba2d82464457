"""Why a coordinator can't be reached, where certificates are the reason: the library's words name neither side's mistake.

One more connection is made and its handshake tried with the TLS of Python, which tells what it does not like.  Only services and
launchers import this module, and only when a connection has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl

from horovod.proto.security import Address, Security

__all__ = ["explain"]

_PATIENCE_S = 2.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # with empty settings
_OF_SERVER = "hvd-coordinator must have --tls-cert and --tls-key, or this program no --tls-ca"


async def explain(address: Address, security: Security) -> str:
    """What is wrong with the TLS of either side, and what to do; empty where that is not the reason, or nobody answers.

    Takes as long as two connections do, a few seconds at most.
    """
    find = _of_tls if security.uses_tls else _of_plain
    try:
        return await asyncio.to_thread(find, address, security)
    except OSError:
        return ""


def _of_plain(address: Address, _security: Security) -> str:
    """This side speaks no TLS: whether the other one does."""
    context = _context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with _connect(address) as sock, context.wrap_socket(sock):
        return "it wants TLS: give the certificate of its authority with --tls-ca"


def _of_tls(address: Address, security: Security) -> str:
    try:
        context = _context(security.ca)
    except ssl.SSLError:
        return "what --tls-ca names is no certificate in PEM form"
    try:
        _show_certificate(context, security)
    except ssl.SSLError as error:
        return f"--tls-cert and --tls-key can't be used together: {_reason(error)}"
    with _connect(address) as sock:
        try:
            with context.wrap_socket(sock, server_hostname=address.host) as conversation:
                return _refusal(security, _first_word(conversation))
        except ssl.SSLCertVerificationError as error:
            return (
                f"its certificate is not accepted ({error.verify_message}): --tls-ca must be the authority that has signed it, "
                f"and it must be made out to {address.host}, as --coordinator says"
            )
        except (ssl.SSLError, ConnectionError):
            return f"it does not speak TLS: {_OF_SERVER}"


def _refusal(security: Security, reason: str) -> str:
    if not reason:
        return ""
    if security.cert:
        return f"it does not accept the certificate of --tls-cert ({reason}): the authority in its own --tls-ca must have signed it"
    return (
        f"it wants a certificate ({reason}): give --tls-cert and --tls-key, signed by the authority in its own --tls-ca"
    )


def _connect(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), _PATIENCE_S)


def _first_word(conversation: ssl.SSLSocket) -> str:
    """A server of HTTP/2 answers a client's preface; one that refuses a certificate, or its lack, does so now: why, else empty."""
    try:
        conversation.sendall(_PREFACE)
        return "" if conversation.recv(1) else "it closed the connection"
    except TimeoutError:
        return ""
    except (ssl.SSLError, ConnectionError) as error:
        return _reason(error)


def _context(ca: bytes = b"") -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.decode(errors="replace") if ca else None)
    context.set_alpn_protocols(["h2"])
    return context


def _reason(error: OSError) -> str:
    words = error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror or str(error)
    return words.replace("_", " ").lower()


def _show_certificate(context: ssl.SSLContext, security: Security) -> None:
    """The library takes files only: they are in memory, and have no name that outlives this call."""
    if not security.cert:
        return
    with contextlib.ExitStack() as stack:
        paths = []
        for content in (security.cert, security.key):
            descriptor = os.memfd_create("hvd-certificate", os.MFD_CLOEXEC)
            stack.callback(os.close, descriptor)
            os.write(descriptor, content)
            paths.append(f"/proc/self/fd/{descriptor}")
        context.load_cert_chain(paths[0], paths[1], password=lambda: "")
