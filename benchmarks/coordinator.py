"""Loads a coordinator: ``python -m benchmarks.coordinator --agents 1024 --tensors 300 --json out.json``.

One real ``hvd-coordinator`` over loopback, all agents in this process (benchmarks/fleet.py), a job with one rank on each.  Both
compete for the machine, so every time includes what the load costs.  ``loss`` is an agent that takes leave: a silent one is
noticed after the time-out, which is not counted.  A static job ends with it; its next epoch is the first one of the next job,
submitted when the launcher has heard of the end.  With ``--model`` the decisions alone in virtual time, see benchmarks/model.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median

import psutil
from horovod.proto import control_pb2, worker_pb2
from horovod.proto.security import Address, parse_address

from benchmarks.fleet import Fleet, Launch
from benchmarks.machine import describe_machine
from benchmarks.model import model_values
from benchmarks.report import exit_code
from benchmarks.targets import COORDINATOR, judge_all

__all__ = ["build_parser", "main", "signatures"]

_LIMIT_S = 300.0  # for each step: a coordinator that needs more has failed
_MORE = 5  # single tensors that are negotiated one after the other
_START_S = 30.0


def signatures(count: int, prefix: str = "grad") -> list[control_pb2.Announcement]:
    """Announcements of a model's gradients, without ranks."""
    return [
        control_pb2.Announcement(
            request=number + 1,
            signature=worker_pb2.Signature(
                kind=worker_pb2.ALLREDUCE,
                name=f"allreduce.{prefix}.layer{number}.weight",
                dtype=7,
                shapes=[worker_pb2.Shape(dims=[256, 1 + number % 512])],
                op=1,
                prescale=1.0,
                postscale=1.0,
                root=-1,
            ),
        )
        for number in range(count)
    ]


@contextmanager
def _coordinator() -> Iterator[tuple[Address, psutil.Process]]:
    """A real one, of this installation, as long as the block lasts."""
    command = [sys.executable, "-m", "horovod.coordinator", "--listen", "127.0.0.1:0", "--log-level", "ERROR"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = re.search(r"listening on (\S+)", process.stdout.readline())
            assert said is not None, "the coordinator did not start"
            yield parse_address(said[1], "--listen"), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(_START_S)


class _Run:
    """One coordinator and its fleet, step by step; ``values`` are what was found."""

    def __init__(self, arguments: argparse.Namespace, address: Address, process: psutil.Process) -> None:
        self._arguments, self._address, self._process = arguments, address, process
        self._fleet = Fleet(address, arguments.agents, arguments.per_channel)
        self.values: dict[str, float] = {}

    async def run(self) -> None:
        """All steps."""
        launch = Launch(self._address, self._arguments.agents)
        try:
            await self._timed("sessions_up_s", self._fleet.connect())
            await self._timed("epoch_known_s", self._begin(launch))
            await self._negotiate(signatures(self._arguments.tensors), "model_negotiated_s")
            await self._one_more()
            await self._idle()
            await self._lose(launch)
            self._count_memory()
        finally:
            await launch.close()
            await self._fleet.close()

    async def _timed(self, name: str, step: Awaitable[None]) -> float:
        start, cpu_s = time.monotonic(), self._cpu_s()
        await asyncio.wait_for(step, _LIMIT_S)
        took_s = time.monotonic() - start
        self._note(name, took_s)
        self._note(f"{name.removesuffix('_s')}_cpu_s", self._cpu_s() - cpu_s)
        return took_s

    def _note(self, name: str, value: float) -> None:
        self.values[name] = value
        print(f"{name:28}{value:12.4g}", flush=True)

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    async def _begin(self, launch: Launch) -> None:
        known = self._fleet.seen_by_all("epoch_start")
        await launch.submit()
        await known

    async def _negotiate(self, items: list[control_pb2.Announcement], name: str) -> float:
        made = self._fleet.announcements(items, self._arguments.per_frame)

        async def announce() -> None:
            known = self._fleet.seen_by_all("plan_made", len(items))
            self._fleet.announce(made)
            await known

        return await self._timed(name, announce())

    async def _one_more(self) -> None:
        times = [await self._negotiate(signatures(1, f"more{n}"), f"more_{n}_s") for n in range(_MORE)]
        self._note("one_more_tensor_s", median(times))
        self._note("one_more_tensor_worst_s", max(times))

    async def _idle(self) -> None:
        await asyncio.sleep(2)  # what the steps before have left to do
        start, cpu_s = time.monotonic(), self._cpu_s()
        await asyncio.sleep(self._arguments.idle_s)
        self._note("idle_cores", (self._cpu_s() - cpu_s) / max(time.monotonic() - start, 1e-9))

    async def _lose(self, launch: Launch) -> None:
        lost = self._fleet.agents[-1]
        lost.leave()
        start, cpu_s = time.monotonic(), self._cpu_s()
        ended, finished = self._fleet.seen_by_all("end_epoch"), self._fleet.seen_by_all("job_finished")
        await asyncio.wait_for(ended, _LIMIT_S)
        self._note("loss_to_epoch_end_s", time.monotonic() - start)
        await asyncio.wait_for(finished, _LIMIT_S)
        self._note("loss_to_job_finished_s", time.monotonic() - start)
        await asyncio.wait_for(launch.ended(), _LIMIT_S)
        self._note("loss_to_launcher_told_s", time.monotonic() - start)
        following = Launch(self._address, self._arguments.agents - 1)
        try:
            await asyncio.wait_for(self._begin(following), _LIMIT_S)
            self._note("loss_to_next_epoch_s", time.monotonic() - start)
            self._note("loss_to_next_epoch_cpu_s", self._cpu_s() - cpu_s)
        finally:
            await following.close()

    def _count_memory(self) -> None:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        self._note("peak_rss_bytes", int(peak[1]) * 1024 if peak else float("nan"))


def _measure(arguments: argparse.Namespace) -> dict[str, float]:
    with _coordinator() as (address, process):

        async def story() -> dict[str, float]:
            run = _Run(arguments, address, process)
            await run.run()
            return run.values

        return asyncio.run(story())


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordinator", description=__doc__)
    parser.add_argument("--agents", type=int, default=1024, help="one rank on each")
    parser.add_argument("--tensors", type=int, default=300, help="of the model")
    parser.add_argument("--per-frame", type=int, default=100, help="announcements that an agent sends in one frame")
    parser.add_argument("--per-channel", type=int, default=16, help="agents that share a connection")
    parser.add_argument("--idle-s", type=float, default=30.0, help="seconds over which heartbeats are measured")
    parser.add_argument("--model", action="store_true", help="only the core's decisions, in virtual time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser


def main() -> int:
    """Reads the command line and measures."""
    arguments = build_parser().parse_args()
    content: dict[str, object] = {"command": sys.argv, "machine": describe_machine()}
    verdicts = []
    if arguments.model:
        content["model"] = model_values(arguments.agents)
    else:
        values = _measure(arguments)
        verdicts = judge_all(COORDINATOR, {"coordinator": values})
        content |= {"agents": arguments.agents, "tensors": arguments.tensors, "values": values}
        content["targets"] = [asdict(verdict) for verdict in verdicts]
        print("\n".join(verdict.line() for verdict in verdicts))
    if arguments.json:
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    return exit_code(verdicts) if arguments.strict else 0


if __name__ == "__main__":
    sys.exit(main())
