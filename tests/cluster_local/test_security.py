"""Tokens, certificates, and calls that can't work."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.cluster_local.processes import Cluster, Process

CERTIFICATES = Path(__file__).parent / "certificates"
TOKEN = {"HVD_TOKEN": "open-sesame"}
WANTED = "The coordinator wants a token, this one is {}: give the same to all with --token-file, HVD_TOKEN_FILE or HVD_TOKEN."


def certificate(name: str) -> str:
    return str(CERTIFICATES / name)


def fails(module: str, *arguments: str, variables: dict[str, str] | None = None) -> str:
    """What a program says that ends with code 2: one line."""
    process = Process(module, *arguments, variables=variables or {})
    assert process.wait() == 2
    assert process.err.text.count("\n") == 1, process.err.text
    return process.err.text


# ---- tokens


def test_only_who_has_the_token_gets_in(fresh: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("open-sesame\n")
    fresh.serve("--token-file", str(file))
    where = ("--coordinator", fresh.address)
    assert fails("horovod.agent", *where) == f"hvd-agent: error: {WANTED.format('missing')}\n"
    other = {"HVD_TOKEN": "open-poppy"}
    assert fails("horovod.agent", *where, variables=other) == f"hvd-agent: error: {WANTED.format('another')}\n"
    launch = ("horovod.runner", *where, "-np", "1", "true")
    assert fails(*launch) == f"horovodrun: error: {WANTED.format('missing')}\n"
    assert fails(*launch, variables=other) == f"horovodrun: error: {WANTED.format('another')}\n"
    assert "Refused a call of ipv4:127.0.0.1:" in fresh.story()
    assert "open" not in fresh.story()


def test_the_token_comes_from_a_file_or_the_environment_and_never_reaches_ranks(fresh: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("open-sesame\n")
    fresh.serve(variables={"HVD_TOKEN_FILE": str(file)})
    fresh.agent("a", "--token-file", str(file), slots=1)
    fresh.agent("b", slots=1, variables=TOKEN)
    code = "import os; print(sorted(name for name in os.environ if name.startswith('HVD_TOKEN')))"
    variables = {"HVD_TOKEN": "of no use", "HVD_TOKEN_FILE": str(file)}
    done, out, err = fresh.run("-np", "2", sys.executable, "-c", code, variables=variables)
    assert (done, sorted(out.splitlines())) == (0, ["[0]<stdout>:[]", "[1]<stdout>:[]"]), err


def test_without_a_token_only_this_machine_is_served() -> None:
    said = fails("horovod.coordinator", "--listen", "0.0.0.0:0")
    assert said.startswith("hvd-coordinator: error: listening on 0.0.0.0:0 without a token would let everybody start")
    assert "--token-file" in said


@pytest.mark.parametrize("module", ["horovod.coordinator", "horovod.agent", "horovod.runner"])
def test_token_files_that_can_not_be_used(module: str, tmp_path: Path) -> None:
    arguments = {"horovod.agent": ("--coordinator", "127.0.0.1:1")}.get(module, ())
    if module == "horovod.runner":
        arguments = ("--coordinator", "127.0.0.1:1", "-np", "1", "true")
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text("\n")
    said = fails(module, "--token-file", str(missing), *arguments)
    assert f"error: the token file {missing} can't be read: No such file or directory" in said
    assert f"error: the token file {empty} is empty" in fails(
        module, *arguments, variables={"HVD_TOKEN_FILE": str(empty)}
    )
    assert "error: HVD_TOKEN must be one word" in fails(module, *arguments, variables={"HVD_TOKEN": "two words"})


# ---- certificates


def test_tls(fresh: Cluster) -> None:
    fresh.serve("--tls-cert", certificate("server.pem"), "--tls-key", certificate("server.key"))
    assert fresh.coordinator is not None
    fresh.coordinator.err.wait_for("Agents and launchers need --tls-ca with the authority of this certificate")
    fresh.arguments = ("--tls-ca", certificate("authority.pem"))
    fresh.agent("a")
    assert fresh.run("-np", "2", "true")[0] == 0
    where = ("--coordinator", fresh.address, "-np", "1", "true")
    said = fails("horovod.runner", "--tls-ca", certificate("stranger.pem"), *where)
    assert (
        "can't be reached: its certificate is not accepted (unable to get local issuer certificate): --tls-ca must"
        in said
    )
    said = fails("horovod.runner", *where)
    assert said.endswith("can't be reached: it wants TLS: give the certificate of its authority with --tls-ca\n")
    fresh.arguments = ()
    fresh.agent("plain", wait=False).err.wait_for(
        "can't be reached: it wants TLS: give the certificate of its authority"
    )


def test_both_sides_show_certificates(fresh: Cluster) -> None:
    server = ("--tls-cert", certificate("server.pem"), "--tls-key", certificate("server.key"))
    fresh.serve(*server, "--tls-ca", certificate("authority.pem"))
    authority = ("--tls-ca", certificate("authority.pem"))
    fresh.arguments = (*authority, "--tls-cert", certificate("client.pem"), "--tls-key", certificate("client.key"))
    fresh.agent("a")
    assert fresh.run("-np", "2", "true")[0] == 0
    said = fails("horovod.runner", *authority, "--coordinator", fresh.address, "-np", "1", "true")
    assert "can't be reached: it wants a certificate (" in said
    assert said.endswith("): give --tls-cert and --tls-key, signed by the authority in its own --tls-ca\n")


def test_tls_where_the_coordinator_has_none(fresh: Cluster) -> None:
    fresh.serve()
    assert fresh.coordinator is not None
    fresh.coordinator.err.wait_for("Agents and launchers need neither a token nor certificates")
    authority = ("--tls-ca", certificate("authority.pem"))
    said = fails("horovod.runner", *authority, "--coordinator", fresh.address, "-np", "1", "true")
    assert (
        "can't be reached: it does not speak TLS: hvd-coordinator must have --tls-cert and --tls-key, or this" in said
    )
    fresh.agent("a", *authority, wait=False).err.wait_for(
        "can't be reached: it does not speak TLS: hvd-coordinator must have"
    )


def test_certificates_that_can_not_be_used() -> None:
    said = fails("horovod.coordinator", "--tls-cert", certificate("server.pem"))
    assert "--tls-cert and --tls-key must be given together" in said
    said = fails("horovod.coordinator", "--tls-ca", certificate("authority.pem"))
    assert "--tls-ca needs --tls-cert and --tls-key" in said
    said = fails("horovod.agent", "--coordinator", "127.0.0.1:1", "--tls-ca", "/no/such.pem")
    assert "the CA certificate /no/such.pem can't be read: No such file" in said
    said = fails("horovod.agent", "--coordinator", "127.0.0.1:1", "--tls-ca", certificate("server.key"))
    assert "server.key holds no certificate in PEM form" in said
    said = fails("horovod.coordinator", "--tls-cert", certificate("server.pem"), "--tls-key", certificate("client.key"))
    assert "client.key can't be used together: both must be in PEM form, belong to" in said


# ---- other calls that can't work


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = fails("horovod.coordinator", "--listen", address)
    assert said == (
        f"hvd-coordinator: error: can't listen on {address}: Address already in use; choose another port with --listen\n"
    )


def test_a_name_that_nobody_knows() -> None:
    for module, rest in (("horovod.agent", ()), ("horovod.runner", ("-np", "1", "true"))):
        said = fails(module, "--coordinator", "no-such-host.invalid:50051", *rest)
        assert "error: the host name no-such-host.invalid can't be resolved" in said


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":50051", "host:99999"])
def test_addresses_that_make_no_sense(address: str) -> None:
    said = fails("horovod.agent", "--coordinator", address)
    assert f"error: --coordinator {address!r} must be written HOST:PORT, for example 10.0.0.1:50051" in said


def test_a_launcher_without_a_coordinator_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    said = fails("horovod.runner", "--coordinator", address, "-np", "1", "true")
    assert said.startswith(f"horovodrun: error: the coordinator {address} can't be reached: ")
    assert said.endswith("; is hvd-coordinator running?\n")


def test_options_that_do_not_go_together() -> None:
    assert "--wait needs --coordinator" in fails("horovod.runner", "-np", "1", "--wait", "true")
    said = fails("horovod.runner", "--coordinator", "127.0.0.1:1", "-H", "localhost:1", "-np", "1", "true")
    assert "-H and --hostfile can't be used with --coordinator" in said


def test_a_name_in_use_is_refused(fresh: Cluster) -> None:
    fresh.serve()
    fresh.agent("a")
    said = fails("horovod.agent", "--coordinator", fresh.address, "--name", "a")
    assert said.startswith(f"hvd-agent: error: An agent named a on host {socket.gethostname()} is there already.")
    assert fresh.run("-np", "2", "true")[0] == 0
