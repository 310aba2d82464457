"""The order of hosts in the ring, as the agents of a real cluster have measured it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Forwarder, LoopbackCluster
from tests.hosts.site import READY_S, Options, Site, result
from tests.runner.launcher import until

pytestmark = pytest.mark.timeout(150)
PORT = "29990"
SLOW_S = 0.03


@pytest.fixture
def cluster() -> Iterator[LoopbackCluster]:
    with LoopbackCluster(4) as made:
        yield made


def epoch(site: Site) -> dict[str, Any]:
    """What the coordinator shows of the present epoch."""
    where = site.coordinator.wait_for(r"metrics on (\S+)", READY_S)[1]
    with urllib.request.urlopen(f"http://{where}/api/state", timeout=READY_S) as answer:
        return dict(json.load(answer)["epoch"] or {})


def test_the_way_over_a_slow_link_is_known_and_shown(cluster: LoopbackCluster, tmp_path: Path) -> None:
    """The last host is reached through a slow forwarder: whoever is its neighbour is told to be far."""
    last = cluster.hosts[-1]
    elsewhere = last.address.rpartition(".")[0] + ".200"
    with ExitStack() as stack:
        slow = Forwarder([(elsewhere, int(PORT))], lambda _client: (last.address, int(PORT)))
        stack.callback(slow.close)
        slow.delay_s = SLOW_S
        fixed = Options(agent=("--data-ports", PORT))
        through = Options(agent=("--data-ports", PORT, "--advertise", elsewhere))
        shown = Options(coordinator=("--metrics-port", "0"))
        site = Site(cluster.hosts, (1,) * 4, shown, each=[fixed, fixed, fixed, through])
        launcher = site.launch("tests.hosts.programs", "stream_until", str(tmp_path / "over"), "1")
        until(lambda: epoch(site).get("state") == "open")
        seen = epoch(site)
        (tmp_path / "over").touch()
        result(launcher, 60, 4)
    assert seen["ring_reason"] == "by round trips (6 of 6 pairs measured), then by name"
    trips = seen["ring_round_trips_s"]
    slow_at = seen["ring"].index(last.name)
    assert sorted(seen["ring"]) == sorted(host.name for host in cluster.hosts)
    for place, trip in enumerate(trips):
        is_slow = slow_at in (place, (place + 1) % 4)
        assert (trip >= 2 * SLOW_S) == is_slow, trips
