"""Ranks that use torch.distributed with Gloo, and DistributedDataParallel for training steps."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cases import Case, Unsupported
from benchmarks.drivers import Task
from benchmarks.drivers.tensors import (
    StepTask,
    Tensors,
    build_training,
    check_sum,
    make_optimizer,
    plain_tensors,
    step_alone,
)

API: Any = dist


class Blocking:
    """One tensor, reduced in place."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def check(self) -> None:
        """The sum is exact."""
        check_sum(self.tensors, API.get_rank(), API.get_world_size(), lambda: self.run(1))

    def run(self, count: int) -> None:
        """Back to back."""
        tensor, all_reduce = self.tensors[0], API.all_reduce
        for _ in range(count):
            all_reduce(tensor)


class Async(Blocking):
    """Many tensors: submit all, then wait for all."""

    def run(self, count: int) -> None:
        """As a hand-written training loop does it."""
        for _ in range(count):
            works = [API.all_reduce(tensor, async_op=True) for tensor in self.tensors]
            for work in works:
                work.wait()


class GlooDriver:
    """One rank."""

    def __init__(self, rank: int, size: int, store: str) -> None:
        API.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        self.rank, self.size = rank, size

    def make(self, case: Case) -> Task:
        """Prepares a case."""
        if case.kind == "step-alone":
            return step_alone(case, self.rank)
        if case.kind in ("step", "train"):
            model, inputs, targets, loss = build_training(case, self.rank)
            wrapped = torch.nn.parallel.DistributedDataParallel(model)
            return StepTask(wrapped, make_optimizer(model), inputs, targets, loss)
        if case.kind not in ("blocking", "async") or case.place != "plain":
            raise Unsupported(f"Gloo has no {case.kind} in {case.place} memory")
        return (Blocking if case.kind == "blocking" else Async)(plain_tensors(case))

    def settle(self) -> None:
        """Nothing to do: Gloo's thread goes on by itself."""

    def versions(self) -> dict[str, str]:
        """Gloo comes with torch."""
        return {"torch": torch.__version__}

    def close(self) -> None:
        """Leaves the group."""
        API.destroy_process_group()


def connect(arguments: argparse.Namespace) -> GlooDriver:
    """Joins the group by a file that all ranks see."""
    torch.set_num_threads(arguments.threads)
    return GlooDriver(arguments.rank, arguments.size, arguments.store)
