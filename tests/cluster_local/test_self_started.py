"""Ranks that one starts oneself, as a sidecar's neighbour or a debugger does: places, generations, refusals, losses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from tests.cluster_local.guests import Guest, Site, site, together
from tests.cluster_local.processes import Cluster, Process

root = pytest.mark.skipif(os.getuid() != 0, reason="needs root: other users, other namespaces")


@pytest.fixture
def here(fresh: Cluster) -> Iterator[Site]:
    """Nothing is started yet."""
    with site(fresh) as made:
        yield made


def test_two_terminals_on_one_agent_and_one_process_too_many(here: Site) -> None:
    here.serve("--np", "2")
    address = here.agent("a", slots=3)
    first, second = here.start(address), here.start(address)
    first.tell("init")
    assert second.ask("init").startswith("rank ")
    answers = sorted([first.hear(), second.hear()])
    assert answers == ["rank 0/2 local 0/2 cross 0/1 True", "rank 1/2 local 1/2 cross 0/1 True"]
    assert together([first, second], "sum") == ["sum 3", "sum 3"]
    refused = here.start(address).ask("init")
    assert refused.startswith(
        "StartError: This process can't be a rank: the job has 2 ranks, and all have come: rank 0 (host "
    )
    assert f"pid {first.said_pid})" in refused
    assert f"pid {second.said_pid})" in refused
    assert together([first, second], "shutdown") == ["left", "left"]
    # The same processes again: whoever comes first, each is what it was.
    assert second.tell("init") is None
    first.tell("init")
    assert sorted([first.hear(), second.hear()]) == answers
    assert first.end() == second.end() == 0


@pytest.mark.parametrize("slots", [pytest.param((1, 1), marks=pytest.mark.slow), (2, 1)])
def test_ranks_on_two_agents(here: Site, slots: tuple[int, int]) -> None:
    size = sum(slots)
    here.serve("--np", str(size))
    addresses = [here.agent("a", slots=2), here.agent("b", slots=2, socket=f"@hvd-{uuid.uuid4().hex}")]
    guests = [here.start(addresses[0]) for _ in range(slots[0])] + [here.start(addresses[1])]
    places = sorted(together(guests, "init"))
    same = str(slots[0] == slots[1])
    last = f"rank {size - 1}/{size} local 0/1 cross 1/2 {same}"
    assert places[-1] == last == guests[-1].hear()
    assert places[0] == f"rank 0/{size} local 0/{slots[0]} cross 0/2 {same}"
    assert slots[0] == 1 or places[1] == f"rank 1/3 local 1/2 cross 0/1 {same}"
    assert together(guests, "gather") == [f"gathered {list(range(size))}"] * size
    # One dies: the others hear which, and a new process takes its place in the next job.
    guests[-1].process.kill()
    heard = together(guests[:-1], "sum")
    assert all(text.startswith("RankLostError: ") and f"Rank {size - 1} (host " in text for text in heard), heard
    assert "is gone: its process has ended" in heard[0]
    again = [*guests[:-1], here.start(addresses[1])]
    together(guests[:-1], "shutdown")
    assert sorted(together(again, "init")) == places
    assert together(again, "sum") == [f"sum {size * (size + 1) // 2}"] * size


@pytest.mark.slow
def test_a_rank_that_was_chosen_is_given_if_it_is_free(here: Site) -> None:
    here.serve("--np", "3")
    a, b = here.agent("a"), here.agent("b")
    guests = [here.start(a, HOROVOD_RANK="2", HOROVOD_SIZE="3"), here.start(b, HOROVOD_RANK="1"), here.start(a)]
    for guest in guests[:2]:
        guest.tell("init")
    wrong = here.start(b, HOROVOD_RANK="3").ask("init")
    assert "HOROVOD_RANK=3, but the job has ranks 0 to 2" in wrong
    assert "HOROVOD_SIZE=4, but the job has 3 ranks" in here.start(b, HOROVOD_SIZE="4").ask("init")
    guests[2].tell("init")
    assert [guest.hear() for guest in guests] == [
        "rank 2/3 local 1/2 cross 0/1 False",
        "rank 1/3 local 0/1 cross 1/2 False",
        "rank 0/3 local 0/2 cross 0/2 False",
    ]
    assert together(guests, "gather") == ["gathered [0, 1, 2]"] * 3


@pytest.mark.slow
def test_who_is_missing_is_told_at_the_end_of_the_patience(here: Site) -> None:
    here.serve("--np", "2")
    address = here.agent("a", slots=1)
    b = here.agent("b", slots=1)
    first = here.start(address, HOROVOD_START_TIMEOUT="1")
    said = first.ask("init")
    assert said.startswith("StartError: hvd.init() has waited for 1 s. 1 of 2 ranks have come: agent a (process ")
    assert "Missing: 1. Free slots: agent b (1). The start timeout of 1 s (HOROVOD_START_TIMEOUT) is over." in said
    pair = [here.start(address), here.start(b)]
    together(pair, "init")
    full = here.start(address).ask("init")
    assert f"agent a has 1 slot(s), and they are taken by rank 0 (pid {pair[0].said_pid})." in full


@pytest.mark.slow
def test_a_late_agent_is_waited_for_and_a_missing_one_is_named(here: Site) -> None:
    here.serve("--np", "1")
    path = f"unix:{here.folder}/a/agent.sock"
    early = here.start(path)
    early.tell("init")
    missing = here.start(f"unix:{here.folder}/none.sock", HOROVOD_START_TIMEOUT="0.5").ask("init")
    assert missing.startswith(
        f"StartError: The agent at unix:{here.folder}/none.sock can't be reached (No such file or directory"
    )
    assert here.agent("a") == path
    assert early.hear() == "rank 0/1 local 0/1 cross 0/1 True"
    assert early.ask("sum") == "sum 1"
    assert early.ask("shutdown") == "left"
    assert "init(comm=[0, 1]) names some ranks of 1 only" in early.ask("init 0 1")
    assert early.ask("init") == "rank 0/1 local 0/1 cross 0/1 True"


def test_a_launcher_attaches_to_ranks_that_others_start(here: Site) -> None:
    here.serve()
    address = here.agent("a")
    first = here.start(address)
    first.tell("init")
    launcher = here.cluster.launch("--attach", "-np", "2")
    launcher.err.wait_for(r"1 of 2 ranks have come: agent a")
    code, _, refused = here.cluster.run("-np", "1", "true")
    assert code == 2
    assert "A job runs already: 2 ranks of processes that others have started" in refused
    second = here.start(address)
    second.tell("init")
    assert {first.hear(), second.hear()} == {"rank 0/2 local 0/2 cross 0/1 True", "rank 1/2 local 1/2 cross 0/1 True"}
    launcher.err.wait_for("All ranks have come: rank 0 on host .*, rank 1 on host")
    assert together([first, second], "shutdown") == ["left", "left"]
    assert set(together([first, second], "init")) == {
        "rank 0/2 local 0/2 cross 0/1 True",
        "rank 1/2 local 1/2 cross 0/1 True",
    }
    assert first.end() == second.end() == 0
    assert launcher.wait() == 0
    assert here.cluster.run("-np", "2", "true")[0] == 0


def attached_pair(here: Site) -> tuple[list[Guest], Process]:
    """Two ranks of one agent, and the launcher that has attached for them."""
    here.serve()
    address = here.agent("a")
    pair = [here.start(address), here.start(address)]
    launcher = here.cluster.launch("--attach", "-np", "2")
    together(pair, "init")
    launcher.err.wait_for("All ranks have come")
    return pair, launcher


@pytest.mark.slow
def test_an_attached_launcher_tells_of_a_loss_and_ctrl_c_ends_what_it_waits_for(here: Site) -> None:
    here.serve()
    address = here.agent("a")
    launcher = here.cluster.launch("--attach", "-np", "2")
    pair = [here.start(address), here.start(address)]
    together(pair, "init")
    pair[0].process.kill()
    assert pair[1].ask("sum").startswith("RankLostError: ")
    assert pair[1].end() == 0
    assert launcher.wait() == 1
    assert "is gone: its process has ended, or closed its connection, without hvd.shutdown()." in launcher.err.text
    launcher = here.cluster.launch("--attach", "-np", "2")
    waiting = here.start(address)
    waiting.tell("init")
    launcher.err.wait_for("1 of 2 ranks have come")
    launcher.send(signal.SIGINT)
    assert waiting.hear() == "StartError: The job was cancelled: The launcher was ended by SIGINT."
    assert launcher.wait() == 130


def test_ctrl_c_of_an_attached_launcher_whose_coordinator_is_away(here: Site) -> None:
    pair, launcher = attached_pair(here)
    assert here.cluster.coordinator is not None
    here.cluster.coordinator.end(signal.SIGKILL)
    launcher.err.wait_for("trying again")
    launcher.send(signal.SIGINT)
    here.cluster.serve(listen=here.cluster.address)
    assert "The job was cancelled: " in pair[0].ask("sum")  # of which the next coordinator hears
    assert together(pair, "shutdown") == ["left"] * 2
    assert launcher.wait() == 130
    assert "The launcher was ended by SIGINT." in launcher.err.text


def restart(cluster: Cluster, *arguments: str) -> None:
    """Kills the coordinator and starts another one at the same address."""
    assert cluster.coordinator is not None
    cluster.coordinator.end(signal.SIGKILL)
    cluster.serve(*arguments, listen=cluster.address)


def test_a_coordinator_that_is_started_again_goes_on_with_the_ranks(here: Site) -> None:
    here.serve("--np", "2")
    guests = [here.start(here.agent("a")), here.start(here.agent("b"))]
    places = together(guests, "init")
    assert together(guests, "sum") == ["sum 3"] * 2
    assert here.cluster.coordinator is not None
    here.cluster.coordinator.end(signal.SIGKILL)
    assert together(guests, "sum") == ["sum 3"] * 2  # rounds need no coordinator
    for guest in guests:
        guest.tell("gather")  # what nobody has seen before does
    here.cluster.serve("--np", "2", listen=here.cluster.address)
    assert [guest.hear() for guest in guests] == ["gathered [0, 1]"] * 2
    assert here.start(f"unix:{here.folder}/a/agent.sock").ask("init").startswith("StartError: This process can't be")
    assert together(guests, "shutdown") == ["left"] * 2
    assert together(guests, "init") == places
    # It was the next one's own job by now, and so it is once more.
    restart(here.cluster, "--np", "2")
    guests[1].process.kill()
    heard = guests[0].ask("sum")
    assert heard.startswith("RankLostError: "), heard
    assert "Rank 1 (host " in heard


@pytest.mark.slow
def test_an_attached_launcher_comes_back_to_its_ranks(here: Site) -> None:
    pair, launcher = attached_pair(here)
    restart(here.cluster)
    assert together(pair, "gather") == ["gathered [0, 1]"] * 2
    assert together(pair, "shutdown") == ["left"] * 2
    together(pair, "init")
    launcher.err.wait_for("All ranks have come", 2)
    assert [guest.end() for guest in pair] == [0, 0]
    assert launcher.wait() == 0
    assert "trying again" in launcher.err.text


@pytest.mark.slow
def test_an_agent_that_ends_fails_its_ranks_and_leaves_them_alone(here: Site) -> None:
    here.serve("--np", "2")
    a, b = here.agent("a"), here.agent("b")
    guests = [here.start(a), here.start(b)]
    places = together(guests, "init")
    assert here.cluster.agents["b"].end() == 0
    assert not os.path.exists(b.removeprefix("unix:"))
    heard = together(guests, "sum")
    assert all(text.startswith("RankLostError: ") for text in heard), heard
    assert "agent b on host" in heard[0]
    assert all(guest.process.poll() is None for guest in guests)
    together(guests, "shutdown")
    assert here.agent("b") == b
    assert together(guests, "init") == places


def test_an_agent_that_is_killed_leaves_no_rank_waiting_in_a_round(here: Site) -> None:
    here.serve("--np", "2")
    guests = [here.start(here.agent("a")), here.start(here.agent("b"))]
    together(guests, "init")
    for guest in guests:
        guest.tell("rounds")
    for guest in guests:
        guest.err.wait_for("rounds pass")
    here.cluster.agents["b"].end(signal.SIGKILL)
    heard = [guest.hear() for guest in guests]
    assert all("LostError: " in text for text in heard), heard


@pytest.mark.slow
def test_launched_jobs_and_self_started_ones_take_turns(here: Site) -> None:
    here.serve("--np", "1")
    address = here.agent("a", slots=1)
    launched = here.cluster.launch("-np", "1", sys.executable, "-c", "print('here', flush=True); input()")
    guest = here.start(address)
    assert launched.wait() == 1  # there is no input: it has ended
    assert guest.ask("init") == "rank 0/1 local 0/1 cross 0/1 True"
    waits = here.cluster.launch("--wait", "-np", "1", "true")
    waits.err.wait_for("Waiting: a job runs already: 1 rank of processes that others have started")
    assert guest.ask("shutdown") == "left"
    assert waits.wait() == 0


# ---- other users, other namespaces


@root
@pytest.mark.parametrize("kind", ["path", pytest.param("abstract", marks=pytest.mark.slow)])
def test_other_users_need_leave(here: Site, kind: str) -> None:
    here.serve("--np", "1")
    closed = here.agent("a", socket="" if kind == "path" else f"@hvd-{uuid.uuid4().hex}")
    opened = here.agent("b", "--allow-uid", "1234", socket="" if kind == "path" else f"@hvd-{uuid.uuid4().hex}")
    stranger = here.start(closed)
    assert stranger.ask("become 1234") == "user 1234"
    refused = stranger.ask("init")
    assert refused.startswith("StartError: ")
    assert "hvd-agent with --allow-uid 1234" in refused
    friend = here.start(opened)
    assert friend.ask("become 1234") == "user 1234"
    assert friend.ask("init") == "rank 0/1 local 0/1 cross 0/1 True"
    assert friend.ask("sum") == "sum 1"


UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def _can_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"], check=False).returncode == 0


@root
@pytest.mark.slow
def test_ranks_in_pid_namespaces_of_their_own(here: Site) -> None:
    if not _can_unshare():
        pytest.skip("unshare --pid does not work here")
    here.serve("--np", "2")
    address = here.agent("a")
    guests = [here.start(address, UNSHARE), here.start(address, UNSHARE)]
    assert [guest.said_pid for guest in guests] == [1, 1]
    assert len(set(together(guests, "init"))) == 2
    assert together(guests, "sum") == ["sum 3", "sum 3"]
    guests[0].process.kill()  # unshare takes its child along
    assert "is gone: its process has ended" in guests[1].ask("sum")


@root
def test_an_agent_that_does_not_see_the_processes_of_its_ranks(here: Site) -> None:
    """Two containers of a pod: each has its own processes, and they share the folder."""
    if not _can_unshare():
        pytest.skip("unshare --pid does not work here")
    here.serve("--np", "2")
    where = ("--coordinator", here.cluster.address, "--name", "a", "--socket", f"{here.folder}/agent.sock")
    with subprocess.Popen(
        [*UNSHARE, sys.executable, "-m", "horovod.agent", *where], stderr=subprocess.DEVNULL
    ) as agent:
        try:
            guests = [
                here.start(f"unix:{here.folder}/agent.sock", UNSHARE),
                here.start(f"unix:{here.folder}/agent.sock"),
            ]
            assert len(set(together(guests, "init"))) == 2
            assert together(guests, "sum") == ["sum 3", "sum 3"]
            guests[0].process.kill()
            assert "is gone: its process has ended" in guests[1].ask("sum")
            together(guests[1:], "shutdown")
        finally:
            agent.kill()  # unshare, which takes its child along


def test_a_socket_in_a_shared_folder_is_refused() -> None:
    where = ("--coordinator", "127.0.0.1:1", "--socket", f"/tmp/{uuid.uuid4().hex}.sock")
    command = [sys.executable, "-m", "horovod.agent", *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("hvd-agent: error: --socket /tmp/")
    assert "is a shared folder for temporary files" in done.stderr
