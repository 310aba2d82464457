"""The plane gloo: how it is asked for, and that its process never outlives the agent."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket

import pytest
from horovod.agent.cli import _plane_name, run_commandline
from horovod.agent.core import events as ev
from horovod.agent.core.values import Host
from horovod.agent.planes.gloo import GlooCarrier
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


def carrier() -> tuple[GlooCarrier, socket.socket]:
    """Of host a; the link to host b, on which nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return GlooCarrier(ev.PlaneOpen(1, RING, 0, b""), [Link(1, 0, mine.detach())]), other


@pytest.mark.slow
@in_loop
async def test_gloo_that_can_not_connect_is_a_loss_of_this_host_and_ends() -> None:
    made, other = carrier()
    with pytest.raises(LinkFailed, match=r"Gloo did not connect with all hosts within 0\.1 s") as failed:
        await made.ready(0.1)
    assert failed.value.place == 0
    made.end()
    other.close()


@pytest.mark.slow
@in_loop
async def test_a_process_that_dies_before_it_is_ready_is_reported() -> None:
    made, other = carrier()
    os.kill(made.pid, 9)
    with pytest.raises(LinkFailed, match="was killed by signal 9"):
        await asyncio.wait_for(made.ready(30), 30)
    made.end()
    other.close()


@pytest.mark.slow
@in_loop
async def test_the_process_ends_with_its_agent_even_while_it_connects() -> None:
    made, other = carrier()
    other.settimeout(50)
    assert b"[" in other.recv(1 << 16)  # it tells where Gloo listens, and waits for host b
    made._control.close()  # as when the agent is killed
    assert await asyncio.to_thread(made._process.wait, 10) == 0
    made.end()
    other.close()
