"""The plane gloo: how it is asked for, and that its process never outlives the agent."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from horovod.agent.cli import _plane_name, run_commandline
from horovod.agent.core import events as ev
from horovod.agent.core.values import Host
from horovod.agent.planes.gloo import MOST_HOSTS, GlooCarrier, GlooServer
from horovod.agent.planes.links import Link, LinkFailed
from horovod.proto.security import SecurityProblem

from tests.aio import in_loop

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(60)]
RING = (Host("a", "ha"), Host("b", "hb"))


@pytest.mark.parametrize(
    ("argument", "operations", "allreduce", "name"),
    [
        ("", "", "", "tcp"),
        ("gloo", "", "", "gloo"),
        ("tcp", "GLOO", "GLOO", "tcp"),
        ("", "GLOO", "", "gloo"),
        ("", "", "Gloo", "gloo"),
        ("", "TCP", "GLOO", "tcp"),
    ],
)
def test_arguments_win_over_variables(argument: str, operations: str, allreduce: str, name: str) -> None:
    environment = {"HOROVOD_CPU_OPERATIONS": operations, "HOROVOD_CPU_ALLREDUCE": allreduce}
    assert _plane_name(argument, environment) == name


def test_an_unknown_plane_is_an_error_that_lists_the_choices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOROVOD_CPU_ALLREDUCE", "MPI")
    assert run_commandline(["--coordinator", "127.0.0.1:1"]) == 2
    assert "HOROVOD_CPU_ALLREDUCE 'MPI'" in (said := capsys.readouterr().err)
    assert "choose tcp or gloo" in said


def test_a_host_without_torch_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SecurityProblem, match=r"\(--plane\) needs the package torch.*pip install torch"):
        _plane_name("gloo", {})


@pytest.fixture
def server() -> Iterator[GlooServer]:
    """Closed at the end, and waited for: a machine with much to do may need long to load torch, after which it ends."""
    made = GlooServer(os.environ)
    yield made
    process = made._process
    made.close()
    if process is not None:
        process.wait()


def carrier(server: GlooServer) -> tuple[GlooCarrier, socket.socket]:
    """Of host a; the link to host b, on which nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return GlooCarrier(server, ev.PlaneOpen(1, RING, 0, b""), [Link(1, 0, mine.detach())]), other


@pytest.mark.slow
@in_loop
async def test_gloo_that_can_not_connect_is_a_loss_of_this_host_and_ends(server: GlooServer) -> None:
    made, other = carrier(server)
    with pytest.raises(LinkFailed, match=r"Gloo did not connect with all hosts within 0\.1 s") as failed:
        await made.ready(0.1)
    assert failed.value.place == 0
    made.end()
    other.close()


@pytest.mark.slow
@in_loop
async def test_torch_that_can_not_be_loaded_is_a_loss_of_this_host(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    server = GlooServer({**os.environ, "PYTHONPATH": str(tmp_path)})
    made, other = carrier(server)
    with pytest.raises(LinkFailed, match="is gone; its last words are in the log of this agent"):
        await made.ready(50)
    made.end()
    server.close()
    other.close()


@pytest.mark.slow
@in_loop
async def test_processes_end_with_the_agent_even_while_they_connect(server: GlooServer) -> None:
    made, other = carrier(server)
    other.settimeout(50)
    assert b"[" in other.recv(1 << 16)  # it tells where Gloo listens, and waits for host b
    process = server._process
    assert process is not None
    made._control.close()  # as when the agent is killed
    server.close()
    assert await asyncio.to_thread(process.wait, 10) == 0
    assert other.recv(1) == b""
    made.end()
    other.close()


@pytest.mark.slow
@in_loop
async def test_a_server_that_is_gone_is_started_again(server: GlooServer) -> None:
    server.start()
    process = server._process
    assert process is not None
    process.kill()
    await asyncio.to_thread(process.wait, 10)
    made, other = carrier(server)
    other.settimeout(50)
    assert b"[" in other.recv(1 << 16)
    made.end()
    other.close()


def test_more_hosts_than_gloo_can_join(server: GlooServer) -> None:
    links = [Link(place, 0, os.dup(0)) for place in range(1, MOST_HOSTS + 1)]
    with pytest.raises(LinkFailed, match="at most 127 hosts: use --plane tcp"):
        GlooCarrier(server, ev.PlaneOpen(1, RING, 0, b""), links)
    assert links == []
