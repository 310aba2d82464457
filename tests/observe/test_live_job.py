"""Coordinator and agent of a real job, scraped over HTTP while its ranks run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from horovod.agent.http import agent_pages
from horovod.agent.metrics import AgentView, Facts
from horovod.agent.output import OutputOptions, TextTarget
from horovod.coordinator.http import coordinator_pages
from horovod.observe.http import HttpServer
from horovod.observe.loop import LoopWatch
from horovod.runner.job import Job, JobSpec
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.aio import in_loop
from tests.observe.client import get, serving

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.timeout(60)]

LIMIT_S = 30.0
ROUNDS = 20
# Both ranks run some rounds; then rank 1 reads its gate while rank 0 waits for it in one more.
PROGRAM = f"""
import sys
from tests.common.rank_programs import allreduce, barrier, hvd, mine
hvd.init()
for _ in range({ROUNDS}):
    allreduce(mine(1000), "x")
print("a line of output", flush=True)
if hvd.rank() == 1:
    open(sys.argv[1]).read()
allreduce(mine(1000), "x")
barrier()
hvd.shutdown()
"""


class Scene:
    """A job with the HTTP of its coordinator and of its agent."""

    def __init__(self, job: Job, coordinator: HttpServer, agent: HttpServer) -> None:
        self.job, self.coordinator, self.agent = job, coordinator, agent

    async def until(self, server: HttpServer, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Scrapes until the values are as they should be."""
        end = time.monotonic() + LIMIT_S
        while not holds(values := await scrape(server)):
            assert time.monotonic() < end, values
            await asyncio.sleep(0.02)
        return values


async def scrape(server: HttpServer) -> dict[str, float]:
    """All samples by name and labels."""
    families = parse((await get(server, "/metrics")).text)
    samples = [sample for family in families for sample in family.samples]
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


@asynccontextmanager
async def running(gate: Path) -> AsyncIterator[Scene]:
    """The job, up to its end."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    quiet = TextTarget(lambda text: len(text))
    command = (sys.executable, "-c", PROGRAM, str(gate))
    job = Job(JobSpec(2, command, environment, output=OutputOptions(quiet, quiet)))
    watch = LoopWatch()
    shell, core = job._agent, job._coordinator.core
    view = AgentView("local", "host", 2, shell.tally, lambda: shell)
    async with (
        serving(coordinator_pages(core, time.monotonic, lambda: True, lag_s=lambda: watch.lag_s)) as coordinator,
        serving(agent_pages(view, Facts())) as agent,
    ):
        running = asyncio.ensure_future(job.run())
        yield Scene(job, coordinator, agent)
        assert (await running).code == 0
        watch.close()


@in_loop
async def test_metrics_follow_a_job(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    async with running(gate) as scene:
        name = "hvd_agent_rounds_total allreduce local"
        values = await scene.until(
            scene.agent, lambda v: v.get(name) == ROUNDS and v["hvd_agent_open_rounds missing"] == 1
        )
        assert values["hvd_agent_round_payload_bytes_total allreduce local"] == ROUNDS * 4000
        assert values["hvd_agent_ranks ready"] == 2
        assert values["hvd_agent_rank_blocked_threads 0"] == 1
        assert values["hvd_agent_arena_bytes 0"] >= 4000
        assert values["hvd_agent_announcements_total"] == 2
        values = await scene.until(scene.agent, lambda v: v.get("hvd_agent_rank_awaited_seconds_total 1", 0) > 0)
        assert values["hvd_agent_rank_awaited_seconds_total 1"] > values.get(
            "hvd_agent_rank_awaited_seconds_total 0", 0
        )
        assert values["hvd_agent_submissions_total"] == 2 * ROUNDS + 1
        assert values["hvd_agent_oldest_round_seconds"] > 0
        assert values["hvd_agent_output_bytes_total stdout"] == 2 * len("a line of output\n")
        values = await scene.until(scene.coordinator, lambda v: v.get("hvd_rank_awaited_reports_total 1", 0) > 0)
        assert (values["hvd_ranks ready"], values["hvd_epoch"], values["hvd_plans live"]) == (2, 1, 1)
        assert values["hvd_oldest_wait_seconds"] > 0
        (opened,) = json.loads((await get(scene.agent, "/api/state")).body)["job"]["rounds"]
        assert (opened["name"], opened["round"], opened["arrived"]) == ("allreduce.x", ROUNDS, 1)
        (wait,) = json.loads((await get(scene.coordinator, "/api/state")).body)["epoch"]["waits"]
        assert wait["missing"] == [1]
        await asyncio.to_thread(gate.write_text, "go")
        values = await scene.until(scene.coordinator, lambda v: v["hvd_jobs_total succeeded"] == 1)
        assert (values["hvd_epoch"], values["hvd_epoch_ends_total shut_down"]) == (0, 1)
        values = await scene.until(scene.agent, lambda v: v["hvd_agent_epoch"] == 0)
        assert values["hvd_agent_rounds_total allreduce local"] == ROUNDS + 1
        assert values["hvd_agent_rounds_total barrier local"] == 1
        assert values["hvd_agent_submissions_total"] == 2 * (ROUNDS + 2)
