"""How many operations between hosts a step takes whose gradients are one giant and hundreds of small ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cluster_local.processes import Cluster
from tests.cluster_local.test_metrics import scrape, scrape_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SMALL = 300
ELEMENTS = 1024
GIANT_BYTES = 64 << 20
MOST = 20
# The giant's gradient comes first, since it is the last parameter.  Ranks wait at gates until somebody has looked.
PROGRAM = f"""
import sys, time
import horovod.torch as hvd, torch
hvd.init()
mine, total = hvd.rank() + 1.0, hvd.size() * (hvd.size() + 1) / 2
def gate(name):
    print("at", name, flush=True)
    open(f"{{sys.argv[1]}}.{{name}}.{{hvd.rank()}}").read()
small = [torch.nn.Parameter(torch.zeros({ELEMENTS})) for _ in range({SMALL})]
giant = torch.nn.Parameter(torch.zeros({GIANT_BYTES} // 4))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*small, giant], lr=1.0), op=hvd.Sum)
for step in range(2):
    optimizer.zero_grad()
    giant.mul(mine).sum().backward()
    for i, w in enumerate(small):
        if step:
            if i == {SMALL} - 1:
                gate("last")
            time.sleep(0.005)  # the spacing that is tested
        w.mul(mine * i).sum().backward()
    optimizer.step()
    assert torch.all(giant.grad == total)
    assert all(torch.all(w.grad == total * i) for i, w in enumerate(small))
    gate(f"end{{step}}")
handles = hvd.grouped_allreduce_async([torch.full(({ELEMENTS},), mine * i) for i in range({SMALL})], op=hvd.Sum)
assert all(torch.all(x == total * i) for i, x in enumerate(hvd.synchronize(handles)))
gate("group")
hvd.shutdown()
"""


def _rounds(seen: dict[str, float]) -> float:
    """Operations that went over the net."""
    return sum(value for name, value in seen.items() if name.startswith("hvd_agent_net_rounds_total"))


def test_small_gradients_behind_a_giant(fresh: Cluster, tmp_path: Path) -> None:
    """P44: the giant is under way before the last small one is there; the small ones take few operations; sums are exact."""
    gates = {
        name: [tmp_path / f"gate.{name}.{rank}" for rank in range(2)] for name in ("end0", "last", "end1", "group")
    }
    for paths in gates.values():
        for path in paths:
            os.mkfifo(path)
    fresh.serve()
    agent, _ = (fresh.agent(name, "--metrics-port", "0", slots=1) for name in "ab")
    python = {"PYTHONPATH": str(Path(__file__).parents[2])}
    launcher = fresh.launch("-np", "2", sys.executable, "-c", PROGRAM, str(tmp_path / "gate"), variables=python)

    def go_on(name: str) -> None:
        for path in gates[name]:
            path.write_text("go")

    launcher.out.wait_for("at end0", 2)
    sent = 'hvd_agent_link_sent_bytes_total{neighbour="b"}'
    first = scrape(agent)
    go_on("end0")
    launcher.out.wait_for("at last", 2)
    # The last small gradient is not there yet, and the giant is on its way.
    scrape_until(agent, lambda seen: seen[sent] - first[sent] >= GIANT_BYTES // 4)
    go_on("last")
    launcher.out.wait_for("at end1", 2)
    second = scrape_until(agent, lambda seen: _rounds(seen) >= _rounds(first) + 2)
    assert _rounds(second) - _rounds(first) <= 1 + MOST
    go_on("end1")
    launcher.out.wait_for("at group", 2)
    third = scrape_until(agent, lambda seen: _rounds(seen) > _rounds(second))
    assert _rounds(third) - _rounds(second) <= MOST
    go_on("group")
    assert launcher.wait() == 0
