"""Who may speak with whom: the cluster's token, TLS, and addresses that only this machine reaches.

Whoever starts a process hands over its arguments and its environment: nothing is read here that was not named.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "TOKEN_VARIABLES",
    "Address",
    "Security",
    "SecurityProblem",
    "TlsFiles",
    "coordinator_timeout",
    "is_loopback",
    "load_security",
    "load_token",
    "parse_address",
]

TOKEN_VARIABLES = ("HVD_TOKEN", "HVD_TOKEN_FILE")
_MOST_TOKEN_BYTES = 4096


class SecurityProblem(ValueError):
    """Something that was given can't be used; the text says what to change."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths in PEM form; empty where not given."""

    cert: str = ""
    key: str = ""
    ca: str = ""


@dataclass(frozen=True, slots=True)
class Security:
    """Contents, not paths.  ``secret`` is empty without a token.  They are shown to nobody."""

    secret: str = field(default="", repr=False)
    cert: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    ca: bytes = field(default=b"", repr=False)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.cert or self.ca)

    def admits(self, secret: str) -> bool:
        """Whether a caller with this token may come in; takes equally long for every wrong one."""
        return not self.secret or hmac.compare_digest(secret.encode(), self.secret.encode())


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, what: str) -> Address:
    """``host:port`` or ``[ipv6]:port``; SecurityProblem for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host.strip("[]"):
        raise SecurityProblem(f"{what} {text!r} must be written HOST:PORT, for example 10.0.0.1:50051")
    return Address(host.strip("[]"), int(port))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; SecurityProblem for a name that nobody knows."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SecurityProblem(f"the host name {host} can't be resolved: {error.strerror or error}") from error
    addresses = [str(item[4][0]) for item in found]
    return all(address.startswith("127.") or address == "::1" for address in addresses)


def load_token(path: str, environment: Mapping[str, str]) -> str:
    """From the file that was named, else HVD_TOKEN_FILE, else HVD_TOKEN; empty without any."""
    path = path or environment.get("HVD_TOKEN_FILE", "")
    text = _read(path, "token file").decode(errors="replace") if path else environment.get("HVD_TOKEN", "")
    secret = text.strip()
    where = f"the token in {path}" if path else "HVD_TOKEN"
    if path and not secret:
        raise SecurityProblem(f"the token file {path} is empty: write a long random word into it")
    if len(secret) > _MOST_TOKEN_BYTES or not all("!" <= character <= "~" for character in secret):
        raise SecurityProblem(f"{where} must be one word of at most {_MOST_TOKEN_BYTES} visible ASCII characters")
    return secret


def load_security(secret: str, files: TlsFiles) -> Security:
    """The token with the contents of the TLS files."""
    if bool(files.cert) != bool(files.key):
        raise SecurityProblem("--tls-cert and --tls-key must be given together")
    cert, key, ca = (
        _read(path, what) if path else b""
        for path, what in ((files.cert, "certificate"), (files.key, "key"), (files.ca, "CA certificate"))
    )
    _check_files(files)
    return Security(secret, cert, key, ca)


def _check_files(files: TlsFiles) -> None:
    """Says in time, and which file it is, what the library would not."""
    import ssl  # is not needed without certificates

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if files.ca:
            context.load_verify_locations(files.ca)
    except ssl.SSLError as error:
        raise SecurityProblem(f"the CA certificate {files.ca} holds no certificate in PEM form") from error
    try:
        if files.cert:
            context.load_cert_chain(files.cert, files.key, password=lambda: "")
    except ssl.SSLError as error:
        raise SecurityProblem(
            f"the certificate {files.cert} and the key {files.key} can't be used together: both must be in PEM form, belong to "
            f"each other, and have no pass phrase ({(error.reason or str(error)).replace('_', ' ').lower()})"
        ) from error


def _read(path: str, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SecurityProblem(f"the {what} {path} can't be read: {error.strerror or error}") from error


_COORDINATOR_TIMEOUT = "HVD_COORDINATOR_TIMEOUT_SECONDS"
_COORDINATOR_TIMEOUT_S = 300.0


def coordinator_timeout(given: float | None, environment: Mapping[str, str]) -> float:
    """How long agents and launchers do without a coordinator that is gone; SecurityProblem where that makes no sense."""
    text = environment.get(_COORDINATOR_TIMEOUT, "").strip()
    if given is None and not text:
        return _COORDINATOR_TIMEOUT_S
    try:
        seconds = float(text) if given is None else given
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        name = _COORDINATOR_TIMEOUT if given is None else "--coordinator-timeout"
        raise SecurityProblem(f"{name} is {text if given is None else given}, but it must be a number of seconds >= 0")
    return seconds
