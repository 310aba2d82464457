"""Tokens, addresses and files, as arguments and variables name them."""

from __future__ import annotations

from pathlib import Path

import pytest
from horovod.proto.security import (
    Address,
    Security,
    SecurityProblem,
    TlsFiles,
    is_loopback,
    load_security,
    load_token,
    parse_address,
)

CERTIFICATES = Path(__file__).parent.parent / "cluster_local" / "certificates"


def test_a_token_comes_from_the_first_place_that_was_named(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(" one\n")
    second.write_text("two")
    environment = {"HVD_TOKEN_FILE": str(second), "HVD_TOKEN": "three"}
    assert load_token(str(first), environment) == "one"
    assert load_token("", environment) == "two"
    assert load_token("", {"HVD_TOKEN": "three"}) == "three"
    assert load_token("", {}) == ""


@pytest.mark.parametrize("text", ["two words", "né", "x" * 5000, "a\nb"])
def test_a_token_is_one_word(text: str) -> None:
    with pytest.raises(SecurityProblem, match="HVD_TOKEN must be one word of at most 4096 visible ASCII characters"):
        load_token("", {"HVD_TOKEN": text})


def test_only_the_same_token_is_admitted() -> None:
    assert Security("secret").admits("secret")
    assert not Security("secret").admits("Secret")
    assert not Security("secret").admits("")
    assert not Security("secret").admits("é")
    assert Security().admits("")
    assert Security().admits("whatever")


def test_secrets_are_not_shown() -> None:
    assert "se" + "cret" not in repr(Security("secret", key=b"secret"))


def test_files_are_read_and_belong_together(tmp_path: Path) -> None:
    file = CERTIFICATES / "authority.pem"
    assert load_security("t", TlsFiles(ca=str(file))) == Security("t", ca=file.read_bytes())
    assert load_security("t", TlsFiles()).uses_tls is False
    with pytest.raises(SecurityProblem, match="must be given together"):
        load_security("", TlsFiles(key=str(file)))
    with pytest.raises(SecurityProblem, match=r"the key .*missing can't be read: No such file"):
        load_security("", TlsFiles(cert=str(file), key=str(tmp_path / "missing")))


def test_files_that_hold_something_else_are_refused() -> None:
    server, key = str(CERTIFICATES / "server.pem"), str(CERTIFICATES / "server.key")
    assert load_security("", TlsFiles(cert=server, key=key)).uses_tls
    with pytest.raises(SecurityProblem, match=r"server\.key holds no certificate in PEM form"):
        load_security("", TlsFiles(ca=key))
    for cert, other in ((server, str(CERTIFICATES / "client.key")), (key, key), (server, server)):
        with pytest.raises(SecurityProblem, match="can't be used together: both must be in PEM form, belong to"):
            load_security("", TlsFiles(cert=cert, key=other))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:1", Address("host", 1)),
        ("127.0.0.1:50051", Address("127.0.0.1", 50051)),
        ("[::1]:0", Address("::1", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text, "--listen") == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:70000", "[]:1"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(SecurityProblem, match=r"--listen .* must be written HOST:PORT"):
        parse_address(text, "--listen")


def test_what_only_this_machine_reaches() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("127.1.2.3")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("10.0.0.1")
