"""A coordinator that is killed while a job runs, and started again on the same address."""

from __future__ import annotations

import signal
import socket
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.cluster_local.processes import WAIT_S, Cluster, Process
from tests.runner.launcher import MARK, marked, until

TRAIN = """
import hashlib, pathlib, sys, time
import torch
import horovod.torch as hvd
hvd.init()
progress = pathlib.Path(sys.argv[1])

def train(run):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    named = [(f"{run}.{name}", p) for name, p in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=named)
    data = torch.Generator().manual_seed(hvd.rank())
    total = 0.0
    for step in range(120):
        if step == 80:  # names that no coordinator has seen, several at once and in another order on each rank
            order = list(range(4)) if hvd.rank() else list(reversed(range(4)))
            values = {i: torch.full((4,), float(i + hvd.rank())) for i in order}
            handles = {i: hvd.allreduce_async(values[i], name=f"{run}.new.{i}") for i in order}
            progress.with_name(f"{run}.{hvd.rank()}").write_text("")
            total = float(sum(hvd.synchronize(handles[i]).sum() for i in range(4)))
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=data)).square().mean().backward()
        optimizer.step()
        if hvd.rank() == 0 and run == "disturbed":
            progress.with_suffix(".new").write_text(str(step))
            progress.with_suffix(".new").replace(progress)
            time.sleep(0.01)
        print("step", step, flush=True)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print("result", digest, total, flush=True)

train("calm")
train("disturbed")
hvd.shutdown()
"""
LINES = [f"step {step}" for step in range(120)]


def lines(launcher: Process, rank: int) -> list[str]:
    """What a rank has printed."""
    mark = f"[{rank}]<stdout>:"
    return [line[len(mark) :] for line in launcher.out.text.splitlines() if line.startswith(mark)]


@pytest.fixture
def pair(fresh: Cluster) -> Cluster:
    """Two agents of a coordinator that has little patience."""
    fresh.serve("--peer-timeout", "4")
    fresh.agent("a", slots=1)
    fresh.agent("b", slots=1)
    return fresh


def kill(cluster: Cluster) -> None:
    assert cluster.coordinator is not None
    cluster.coordinator.end(signal.SIGKILL)


def serve_again(cluster: Cluster, *arguments: str) -> None:
    cluster.serve("--peer-timeout", "4", *arguments, listen=cluster.address)


def reached(progress: Path, step: int) -> bool:
    return until(lambda: progress.exists() and int(progress.read_text()) >= step, WAIT_S)


@pytest.mark.timeout(150)
def test_training_goes_on_and_ends_with_the_same_bits(pair: Cluster, tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    launcher = pair.launch("-np", "2", sys.executable, "-c", TRAIN, str(progress))
    launcher.out.wait_for("result", 2)
    assert reached(progress, 10)
    kill(pair)
    at_kill = int(progress.read_text())
    assert reached(progress, 79), "steps go on while there is no coordinator"
    assert at_kill < 70
    assert until(lambda: all((tmp_path / f"disturbed.{rank}").exists() for rank in range(2)))
    serve_again(pair)
    assert launcher.wait() == 0, pair.story() + launcher.err.text
    results = {line for rank in range(2) for line in lines(launcher, rank) if line.startswith("result")}
    assert len(results) == 1  # of both ranks, with and without the restart
    for rank in range(2):
        assert lines(launcher, rank) == [*LINES, *results, *LINES, *results]  # nothing lost, nothing doubled
    assert "trying again" in launcher.err.text
    assert pair.run("-np", "2", "true")[0] == 0


WAITING = "import horovod.common.basics as b, time\nhvd = b.HorovodBasics()\nhvd.init()\nprint('ready', flush=True)\n"


def test_an_agent_that_is_lost_meanwhile_ends_the_job(pair: Cluster) -> None:
    mark = uuid.uuid4().hex
    launcher = pair.launch("-np", "2", sys.executable, "-c", WAITING + "time.sleep(300)", variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    kill(pair)
    pair.agents["b"].end(signal.SIGKILL)
    serve_again(pair)
    assert launcher.wait() == 1
    assert "(agent b) can't be reached any more" in launcher.err.text, launcher.err.text
    assert until(lambda: not marked(mark))
    pair.agent("b", slots=1)
    assert pair.run("-np", "2", "true")[0] == 0


def test_a_rank_that_ends_meanwhile_is_told_with_its_code(pair: Cluster, tmp_path: Path) -> None:
    code = (
        WAITING + "import os, sys, pathlib\nrank = int(os.environ['HOROVOD_RANK'])\ngo = pathlib.Path(sys.argv[1])\n"
        "while not go.exists(): time.sleep(0.02)\n"
        "print('last words', rank, flush=True)\n"
        "if rank == 1: os._exit(7)\ntime.sleep(300)"
    )
    go = tmp_path / "go"
    launcher = pair.launch("-np", "2", sys.executable, "-c", code, str(go))
    launcher.out.wait_for("ready", 2)
    kill(pair)
    go.write_text("")
    pair.agents["b"].err.wait_for("Rank 1 has ended with code 7")
    serve_again(pair)
    assert launcher.wait() == 7, pair.story()
    assert "First failure: Rank 1 (host " in launcher.err.text
    assert [line for rank in range(2) for line in lines(launcher, rank)] == [
        "ready",
        "last words 0",
        "ready",
        "last words 1",
    ]


def test_other_jobs_wait_or_are_refused_and_a_launcher_that_does_not_come_back_ends_its_job(pair: Cluster) -> None:
    mark = uuid.uuid4().hex
    launcher = pair.launch("-np", "2", "sh", "-c", "echo ready; sleep 300", variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    waiting = pair.launch("-np", "2", "--wait", "echo", "hello")
    waiting.err.wait_for("Waiting: a job runs already")
    kill(pair)
    serve_again(pair)
    assert pair.coordinator is not None
    pair.coordinator.err.wait_for("Job 1 of an earlier coordinator goes on here")
    code, _, said = pair.run("-np", "1", "true")
    assert code == 2
    assert "A job runs already: 2 ranks of sh -c" in said
    waiting.err.wait_for("Waiting: ", 2)  # for that job, or, if it was there before the agents, for slots
    launcher.send(signal.SIGINT)
    assert launcher.wait() == 130
    assert until(lambda: not marked(mark))
    assert waiting.wait() == 0, waiting.err.text
    assert waiting.out.text.count("hello") == 2


def test_ctrl_c_without_a_coordinator_is_carried_out_by_the_next_one(pair: Cluster) -> None:
    mark = uuid.uuid4().hex
    launcher = pair.launch("-np", "2", "sh", "-c", "echo ready; sleep 300", variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    kill(pair)
    launcher.err.wait_for("trying again")
    launcher.send(signal.SIGINT)
    serve_again(pair)
    assert launcher.wait() == 130
    assert until(lambda: not marked(mark))


def test_a_second_ctrl_c_does_not_wait_for_a_coordinator_that_is_away(pair: Cluster) -> None:
    mark = uuid.uuid4().hex
    launcher = pair.launch("-np", "2", "sh", "-c", "echo ready; sleep 300", variables={MARK: mark})
    launcher.out.wait_for("ready", 2)
    kill(pair)
    launcher.err.wait_for("trying again")
    launcher.send(signal.SIGINT)
    launcher.send(signal.SIGINT)
    since = time.monotonic()
    while launcher.process.poll() is None:  # two signals may be heard as one
        assert time.monotonic() - since < 15
        launcher.send(signal.SIGINT)
        time.sleep(0.1)
    assert launcher.wait() == 130
    assert (
        "The launcher was ended by SIGINT. The coordinator did not confirm the end of the ranks." in launcher.err.text
    )
    serve_again(pair)  # which waits a while for the launcher, or hears of the job's end from nobody: its agents end it
    for agent in pair.agents.values():
        agent.end()
    assert until(lambda: not marked(mark))


def test_a_launcher_may_wait_for_its_coordinator(fresh: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    impatient = fresh.launch("--wait", "-np", "1", "true", address=address)
    impatient.err.wait_for(
        f"horovodrun: Waiting: the coordinator {address} can't be reached: .*is hvd-coordinator running?"
    )
    impatient.send(signal.SIGINT)
    assert impatient.wait() == 130
    assert impatient.err.text.endswith("horovodrun: The launcher was ended by SIGINT.\n")
    launcher = fresh.launch("--wait", "-np", "1", "echo", "hello", address=address)
    launcher.err.wait_for("Waiting: the coordinator")
    fresh.serve(listen=address)
    launcher.err.wait_for("Waiting: 1 ranks were asked for, but the agents have 0 slots.")
    fresh.agent("a")
    assert launcher.wait() == 0, launcher.err.text
    assert launcher.out.text == "[0]<stdout>:hello\n"


def test_a_coordinator_that_does_not_come_is_not_waited_for_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ("--coordinator", address, "--coordinator-timeout", "1", "--wait", "-np", "1", "true")
    process = Process("horovod.runner", *arguments, variables={})
    assert process.wait() == 1
    assert f"The coordinator {address} was not there within 1 s, see --coordinator-timeout" in process.err.text


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_kills_at_any_moment_of_many_negotiations(pair: Cluster) -> None:
    code = (
        "import horovod.torch as hvd, torch\nhvd.init()\nfor i in range(801):\n"
        " mean = hvd.allreduce(torch.full((3,), float(i * (hvd.rank() + 1))), name=f'n.{i}')\n"
        " assert mean.tolist() == [1.5 * i] * 3, (i, mean)\n"
        " if i % 100 == 0: print('step', i, flush=True)"
    )
    launcher = pair.launch("-np", "2", sys.executable, "-c", code)
    for step in range(0, 700, 100):
        launcher.out.wait_for(f"step {step}$", 2)
        time.sleep(0.013 * (step // 100))  # somewhere in the next negotiations
        kill(pair)
        serve_again(pair)
    assert launcher.wait() == 0, pair.story() + launcher.err.text
    for rank in range(2):
        assert lines(launcher, rank) == [f"step {step}" for step in range(0, 801, 100)]
