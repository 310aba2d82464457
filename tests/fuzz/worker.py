"""Runs one random program as one rank, through the public torch API, and compares every result with the twin.

Started by ``horovodrun -np N python -m tests.fuzz.worker --seed S``.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable

import horovod.torch as hvd
import numpy as np
import torch

from tests.fuzz.program import SUM, Call, Program, Step, make_program
from tests.fuzz.twin import Array, expected, input_of, splits_of

Waiter = Callable[[], list[torch.Tensor]]


class Runner:
    """One rank's run of a program; ``failures`` collects what differed."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.rank = hvd.rank()
        self.failures: list[str] = []
        self.sets: dict[tuple[int, ...], hvd.ProcessSet] = {tuple(range(program.size)): hvd.global_process_set}

    def run(self) -> None:
        """All steps, then the tail in which ranks join one after another."""
        for number, step in enumerate(self.program.steps):
            self._step(number, step)
            hvd.barrier()
        self._tail()

    def _step(self, number: int, step: Step) -> None:
        mine = [step.calls[i] for i in step.orders[self.rank] if self.rank in step.calls[i].members]
        if step.blocking:
            for call in mine:
                self._check(number, call, self._submit(number, call))
            return
        threads = [
            threading.Thread(target=self._guarded, args=(number, mine[t :: step.threads])) for t in range(step.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, number: int, calls: list[Call]) -> None:
        try:
            waiters = [(call, self._submit(number, call)) for call in calls]
            for call, waiter in waiters:
                self._check(number, call, waiter)
        except Exception as error:  # a thread's exception must fail the run, not vanish
            self.failures.append(f"step {number}: {type(error).__name__}: {error}")

    def _submit(self, number: int, call: Call) -> Waiter:
        seed, group = self.program.seed, self.sets[call.members]
        parts = [torch.from_numpy(input_of(seed, number, call, self.rank, p)) for p in range(call.parts)]
        scales = {"op": call.op, "prescale_factor": call.prescale, "postscale_factor": call.postscale}
        if call.kind == "allreduce":
            submit = hvd.allreduce_async_ if call.in_place else hvd.allreduce_async
            handle = submit(parts[0], name=call.name, process_set=group, **scales)
        elif call.kind == "grouped":
            grouped = hvd.grouped_allreduce_async_ if call.in_place else hvd.grouped_allreduce_async
            handle = grouped(parts, name=call.name, process_set=group, **scales)
        elif call.kind == "allgather":
            handle = hvd.allgather_async(parts[0], name=call.name, process_set=group)
        elif call.kind == "broadcast":
            cast = hvd.broadcast_async_ if call.in_place else hvd.broadcast_async
            handle = cast(parts[0], call.root, name=call.name, process_set=group)
        elif call.kind == "alltoall":
            splits = splits_of(seed, number, call, self.rank)
            handle = hvd.alltoall_async(parts[0], splits, name=call.name, process_set=group)
        else:
            handle = hvd.reducescatter_async(parts[0], name=call.name, process_set=group, **scales)
        return lambda: _outputs(call, hvd.synchronize(handle))

    def _check(self, number: int, call: Call, waiter: Waiter) -> None:
        where = f"step {number} {call}"
        try:
            got = [tensor.numpy() for tensor in waiter()]
        except hvd.HorovodInternalError as error:
            if call.odd_rank < 0 or "ismatched" not in str(error):
                self.failures.append(f"{where}: {error}")
            return
        if call.odd_rank >= 0:
            self.failures.append(f"{where}: should have been refused")
            return
        for mine, wanted in zip(got, expected(self.program.seed, number, call, self.rank), strict=True):
            if not np.array_equal(mine, wanted):
                self.failures.append(f"{where}: {_difference(mine, wanted)}")

    def _tail(self) -> None:
        tail = self.program.tail
        if not tail:
            return
        for turn in range(tail[self.rank]):
            value = torch.full((100 + turn,), float(self.rank + 1))
            hvd.allreduce_(value, name=f"tail.{turn}", op=SUM)
            wanted = float(sum(r + 1 for r in range(self.program.size) if tail[r] > turn))
            if not torch.all(value == wanted):
                self.failures.append(f"tail {turn}: {value[0].item()} is not {wanted}")
        last = hvd.join()
        if tail[last] != max(tail):
            self.failures.append(f"join returned {last}, the longest tails are {tail}")


def _outputs(call: Call, result: object) -> list[torch.Tensor]:
    if call.kind == "alltoall":
        assert isinstance(result, tuple)
        return [result[0]]
    return list(result) if isinstance(result, (tuple, list)) else [result]  # type: ignore[list-item]


def _difference(mine: Array, wanted: Array) -> str:
    if mine.shape != wanted.shape:
        return f"shape {mine.shape} is not {wanted.shape}"
    at = np.argwhere(mine != wanted)[0]
    return f"at {at}: {mine[tuple(at)]} is not {wanted[tuple(at)]}"


def main() -> int:
    """Runs the seed's program; prints ``ok`` or what differed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--programs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        failures = _run_one(seed, arguments.steps)
        if failures:
            print(f"seed {seed}: " + "\n".join(failures[:5]), file=sys.stderr)
            return 1
    print("fuzz ok")
    return 0


def _run_one(seed: int, steps: int) -> list[str]:
    hvd.init()
    size = hvd.size()
    hvd.shutdown()
    program = make_program(seed, size, steps)
    groups = [hvd.ProcessSet(list(ranks)) for ranks in program.sets]
    hvd.init(process_sets=groups)
    runner = Runner(program)
    runner.sets.update(zip(program.sets, groups, strict=True))
    runner.run()
    hvd.shutdown()
    return runner.failures


if __name__ == "__main__":
    sys.exit(main())
