"""Times small sums between agents by the way they travel: ``python -m benchmarks.algorithms --agents 4,8,12,16``.

An agent is a process with a net and one rank; all are connected with each other over loopback.  ``--rounds`` sums of each size are
timed, one after the other, by each algorithm; a round counts as long as its slowest rank took.  The processes share this machine's
cores, so what is measured is mostly the work of all agents together.  Where each has a machine of its own, steps that wait for each
other count instead: what the alpha-beta model says of that (``--latency-us``, ``--message-us``, ``--gbit``) is printed beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from horovod import native
from horovod.common.engine import OK, PENDING, NativeEngine
from horovod.native import NetAlgorithm

from benchmarks.machine import describe_machine
from benchmarks.report import format_s
from benchmarks.stats import Summary, slowest, summarize

__all__ = ["ALGORITHMS", "Link", "Timing", "build_parser", "main", "measure", "model_s"]

ALGORITHMS = (NetAlgorithm.DIRECT, NetAlgorithm.DOUBLING, NetAlgorithm.RING)
SIZES = (8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10)
_WARM_UP = 5
_ARENA_BYTES = 1 << 26
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Link:
    """Between agents on machines of their own: a message's way, what it costs its sender and its receiver, and the speed."""

    latency_s: float
    message_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one algorithm: seconds of a round, and seconds of processor time that all agents spent in one."""

    agents: int
    algorithm: str
    nbytes: int
    wall: Summary
    cpu_s: float
    model_s: float


def model_s(algorithm: NetAlgorithm, agents: int, nbytes: int, link: Link) -> float:
    """The alpha-beta model of a round; what adding costs is left out."""
    bytes_s = nbytes / link.bytes_per_s
    if algorithm is NetAlgorithm.DIRECT:
        return link.latency_s + (agents - 1) * (link.message_s + bytes_s)
    if algorithm is NetAlgorithm.DOUBLING:
        power = agents.bit_length() - 1
        steps = power if agents == 1 << power else power + 2
        return steps * (link.latency_s + link.message_s + bytes_s)
    return 2 * (agents - 1) * (link.latency_s + link.message_s + bytes_s / agents)


class _Agent:
    """In a process of its own."""

    def __init__(self, place: int, agents: int, algorithm: NetAlgorithm, links: dict[int, socket.socket]) -> None:
        self._board, self._agents = native.Board(1, 0), agents
        self._rank, own = native.Arena(_ARENA_BYTES), native.Arena(_ARENA_BYTES)
        spec = native.NetSpec(agents, place, lanes=1, algorithm=algorithm)
        self._net = native.Net(self._board, [self._rank.fd], own, spec)
        for other, link in links.items():
            self._net.add_peer(other, 0, link.detach())
        self._net.start()
        self._engine = NativeEngine(self._board.fd, self._rank.pointer, 0, [self._rank.fd, own.fd])

    def plan(self, number: int, nbytes: int) -> int:
        """Of one rank on each host."""
        spec = native.PlanSpec(
            number,
            native.PlanKind.COOPERATIVE,
            native.DType.UINT8,
            native.ReduceOp.SUM,
            1,
            1,
            nbytes,
            2,
            (0,),
            native.PlanFlag.REMOTE,
        )
        offset = self._board.plan_add(spec)
        self._net.plan_add(offset, range(self._agents))
        return offset

    def time(self, plan: int, nbytes: int, rounds: int) -> tuple[list[float], float]:
        """Seconds of each round, and of processor time in all."""
        data = ctypes.create_string_buffer(nbytes)
        buffer = (ctypes.addressof(data), ctypes.addressof(data), nbytes)
        for _ in range(_WARM_UP):
            self._sum(plan, buffer)
        cpu_s, found = time.process_time(), []
        for _ in range(rounds):
            start = time.perf_counter()
            self._sum(plan, buffer)
            found.append(time.perf_counter() - start)
        return found, time.process_time() - cpu_s

    def _sum(self, plan: int, buffer: tuple[int, int, int]) -> None:
        status = self._engine.reduce_bound(plan, buffer, True, 0)
        while status == OK and (status := self._engine.wait(self._engine.handle, 100)) == PENDING:
            status = OK
        if status != OK:
            raise RuntimeError(f"a sum ended with status {status}")

    def close(self) -> None:
        """Says goodbye."""
        self._engine.close()
        self._net.close()


def _run_agent(
    place: int,
    agents: int,
    algorithm: NetAlgorithm,
    links: dict[tuple[int, int], socket.socket],
    work: Sequence[tuple[int, int]],
    pipe: Connection,
) -> None:
    mine = {other: link for (here, other), link in links.items() if here == place}
    for (here, _), link in links.items():
        if here != place:
            link.close()
    agent = _Agent(place, agents, algorithm, mine)
    plans = [agent.plan(number, nbytes) for number, (nbytes, _) in enumerate(work, 1)]
    pipe.send([agent.time(plan, nbytes, rounds) for plan, (nbytes, rounds) in zip(plans, work, strict=True)])
    pipe.recv()  # nobody leaves before all are through
    agent.close()


def _links(agents: int) -> dict[tuple[int, int], socket.socket]:
    """By (here, other); both ends of each connection."""
    found = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for a in range(agents):
            for b in range(a + 1, agents):
                found[a, b] = socket.create_connection(listener.getsockname())
                found[b, a] = listener.accept()[0]
    return found


@contextmanager
def _agents(agents: int, algorithm: NetAlgorithm, work: Sequence[tuple[int, int]]) -> Iterator[list[Connection]]:
    links, context, pipes, processes = _links(agents), multiprocessing.get_context("fork"), [], []
    try:
        for place in range(agents):
            pipe, theirs = context.Pipe()
            process = context.Process(target=_run_agent, args=(place, agents, algorithm, links, work, theirs))
            process.start()
            theirs.close()
            pipes.append(pipe)
            processes.append(process)
        for link in links.values():
            link.close()
        yield pipes
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(_LIMIT_S)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.kill()
            process.join()


def measure(agents: int, sizes: Sequence[int], rounds: int, link: Link) -> list[Timing]:
    """Each algorithm with each size."""
    work = [(nbytes, rounds) for nbytes in sizes]
    found = []
    for algorithm in ALGORITHMS:
        with _agents(agents, algorithm, work) as pipes:
            answers = [_answer(pipe) for pipe in pipes]
        for number, nbytes in enumerate(sizes):
            wall = summarize(slowest([answer[number][0] for answer in answers]))
            cpu_s = sum(answer[number][1] for answer in answers) / rounds
            modelled = model_s(algorithm, agents, nbytes, link)
            found.append(Timing(agents, algorithm.name.lower(), nbytes, wall, cpu_s, modelled))
    return found


def _answer(pipe: Connection) -> list[tuple[list[float], float]]:
    if not pipe.poll(_LIMIT_S):
        raise RuntimeError(f"an agent gave no answer for {_LIMIT_S:g} s")
    answer: list[tuple[list[float], float]] = pipe.recv()
    return answer


def _lines(timings: Sequence[Timing]) -> Iterator[str]:
    for agents, nbytes in dict.fromkeys((timing.agents, timing.nbytes) for timing in timings):
        cells = [
            f"{each.algorithm} {format_s(each.wall.median_s)} (cpu {format_s(each.cpu_s)}, model {format_s(each.model_s)})"
            for each in timings
            if (each.agents, each.nbytes) == (agents, nbytes)
        ]
        yield f"{agents:3} agents {nbytes:7} bytes  " + "  ".join(f"{cell:52}" for cell in cells)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.algorithms", description=__doc__)
    parser.add_argument("--agents", type=_numbers, default=[4, 8, 12, 16], help="how many, in turn")
    parser.add_argument("--sizes", type=_numbers, default=list(SIZES), help="bytes")
    parser.add_argument("--rounds", type=int, default=100, help="of each size")
    parser.add_argument("--latency-us", type=float, default=25.0, help="of the model: a message's way")
    parser.add_argument("--message-us", type=float, default=5.0, help="of the model: what each message costs an agent")
    parser.add_argument("--gbit", type=float, default=10.0, help="of the model: speed of each agent's link")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results go")
    return parser


def main() -> int:
    """Reads the command line and measures."""
    arguments = build_parser().parse_args()
    link = Link(arguments.latency_us / 1e6, arguments.message_us / 1e6, arguments.gbit * 1e9 / 8)
    timings = []
    for agents in arguments.agents:
        some = measure(agents, arguments.sizes, arguments.rounds, link)
        print("\n".join(_lines(some)), flush=True)
        timings += some
    if arguments.json:
        content = {"command": sys.argv, "machine": describe_machine(), "timings": [asdict(each) for each in timings]}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
