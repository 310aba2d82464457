"""Names, joins, process sets and epochs whose ranks live on different hosts; stalls and deadlocks between them."""

from __future__ import annotations

import re
import socket

import pytest

from tests.hosts.conftest import Slots
from tests.hosts.site import Site

slow = pytest.mark.slow
PROGRAMS = "tests.hosts.programs"
PAIR: list[Slots] = [(1, 1)]
UNEVEN: list[Slots] = [(2, 1)]
over_two = pytest.mark.parametrize("site", PAIR, indirect=True, ids=str)
over_three = pytest.mark.parametrize("site", UNEVEN, indirect=True, ids=str)
HOST = re.escape(socket.gethostname())


@over_two
def test_fifty_epochs_in_a_job(site: Site) -> None:
    site.run(PROGRAMS, "many_epochs", "50")


@pytest.mark.parametrize("site", [(1, 1, 1)], indirect=True, ids=str)
def test_epochs_with_nothing_in_them(site: Site) -> None:
    site.run(PROGRAMS, "short_epochs", "50")


@over_three
@pytest.mark.parametrize("odd", ["0", "2"])
def test_a_name_that_one_rank_uses_otherwise_while_others_wait_in_it(site: Site, odd: str) -> None:
    site.run(PROGRAMS, "late_contest", odd)


@over_three
@pytest.mark.parametrize("memory", ["plain", "arena"])
def test_a_rank_without_room_while_others_are_in_later_rounds(site: Site, memory: str) -> None:
    site.run(PROGRAMS, "no_room", memory, HVD_ARENA_BYTES=str(1 << 20))


@over_three
@pytest.mark.parametrize("name", ["", pytest.param("x", marks=slow)])
def test_a_rank_whose_want_of_room_shows_late(site: Site, name: str) -> None:
    run = site.run(PROGRAMS, "no_room_for_the_whole", name, HVD_ARENA_BYTES=str(16 << 20))
    for rank in range(3):
        assert re.search(rf"error: .*rank 2 \(host {HOST}", run.said(rank)), run.output


@over_three
@pytest.mark.parametrize("joined", ["2", "0,1", pytest.param("1,2", marks=slow), pytest.param("0", marks=slow)])
def test_ranks_of_a_host_join_early(site: Site, joined: str) -> None:
    site.run(PROGRAMS, "joined_host", joined)


@over_three
@pytest.mark.parametrize("members", ["1,2", "0,1", *(pytest.param(ranks, marks=slow) for ranks in ("0,2", "2", "2,0"))])
def test_sets_of_some_ranks_of_some_hosts(site: Site, members: str) -> None:
    site.run(PROGRAMS, "set_over", members)


@over_two
@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [1500, pytest.param(8192, marks=slow)])
def test_thousands_of_names_at_once(site: Site, count: int) -> None:
    site.run(PROGRAMS, "many_names", str(count), timeout_s=100, HOROVOD_CACHE_CAPACITY="10000")


@over_two
def test_a_deadlock_over_hosts_is_reported_and_ended(site: Site) -> None:
    run = site.run(PROGRAMS, "wait_for_each_other", HVD_DEADLOCK_GRACE_SECONDS="1")
    for rank in (0, 1):
        said = run.said(rank)
        assert "StalledError" in said, run.output
        for other in (0, 1):
            assert re.search(rf"[Rr]ank {other} \(host {HOST}.*waits for 'allreduce.only.{other}'", said), run.output


@over_three
@pytest.mark.parametrize("name", ["late", "warm"])
def test_a_rank_that_stalls_the_others_is_named(site: Site, name: str) -> None:
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    run = site.run(PROGRAMS, "stall", "2", name, **limits)
    for rank in (0, 1):
        assert re.search(rf"StalledError: .*allreduce.{name}.*2 \(host {HOST}", run.said(rank)), run.output
    assert f"allreduce.{name}" in run.output
