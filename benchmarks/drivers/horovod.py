"""Ranks that use ``horovod.torch``: ours, or the original under another interpreter.  Only public calls are made."""

from __future__ import annotations

import argparse
from typing import Any

import horovod
import horovod.torch as hvd
import torch

from benchmarks.cases import Case, Unsupported
from benchmarks.drivers import Idle, Task
from benchmarks.drivers.tensors import (
    StepTask,
    Tensors,
    build_training,
    check_sum,
    make_optimizer,
    plain_tensors,
    step_alone,
)

API: Any = hvd


class Blocking:
    """One tensor, reduced in place under one name."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.name = f"one.{tensors[0].numel()}.{tensors[0].dtype}"

    def check(self) -> None:
        """The sum is exact."""
        check_sum(self.tensors, API.rank(), API.size(), lambda: self.run(1))

    def run(self, count: int) -> None:
        """Back to back."""
        tensor, name, allreduce, total = self.tensors[0], self.name, API.allreduce_, API.Sum
        for _ in range(count):
            allreduce(tensor, name=name, op=total)


class NewNames(Blocking):
    """One tensor, a name that was never used before each time."""

    step = 0

    def run(self, count: int) -> None:
        """Each repetition is negotiated."""
        for _ in range(count):
            self.step += 1
            API.allreduce_(self.tensors[0], name=f"loss.{self.step}", op=API.Sum)


class Async(Blocking):
    """Many tensors: submit all, then wait for all."""

    def run(self, count: int) -> None:
        """As a hand-written training loop does it."""
        for _ in range(count):
            handles = [
                API.allreduce_async_(tensor, name=f"gradient.{index}", op=API.Sum)
                for index, tensor in enumerate(self.tensors)
            ]
            for handle in handles:
                API.synchronize(handle)


class HorovodDriver:
    """One rank."""

    def __init__(self, is_ours: bool) -> None:
        API.init()
        self.is_ours = is_ours
        self.rank: int = API.rank()
        self.size: int = API.size()

    def make(self, case: Case) -> Task:
        """Prepares a case."""
        if case.kind in ("step-alone", "step-single"):
            return Idle() if case.kind == "step-single" and self.rank else step_alone(case, self.rank)
        if case.kind in ("step", "train"):
            return self._make_step(case)
        if case.kind in ("layer", "hooks", "hooks-floor"):
            from benchmarks.drivers.overhead import make_overhead

            return make_overhead(case, self.rank)
        if case.kind == "floor":
            from benchmarks.drivers.floor import Floor

            return Floor(case)
        kinds = {"blocking": Blocking, "async": Async, "names": NewNames}
        return kinds[case.kind](self._tensors(case))

    def _tensors(self, case: Case) -> Tensors:
        if case.place == "plain":
            return plain_tensors(case)
        if not self.is_ours:
            raise Unsupported("the original has no arena")
        from benchmarks.drivers.floor import arena_tensor

        return [arena_tensor(shape, case.dtype) for shape in case.shapes]

    def _make_step(self, case: Case) -> StepTask:
        model, inputs, targets, loss = build_training(case, self.rank)
        optimizer = API.DistributedOptimizer(make_optimizer(model), named_parameters=model.named_parameters())
        return StepTask(model, optimizer, inputs, targets, loss)

    def settle(self) -> None:
        """Nothing to do: nobody needs a rank whose operations are over."""

    def versions(self) -> dict[str, str]:
        """Of the package, of torch, and of the kernels."""
        found = {"horovod": str(getattr(horovod, "__version__", "?")), "torch": torch.__version__}
        if self.is_ours:
            from horovod import native

            found["kernels"] = native.kernel_name()
        return found

    def close(self) -> None:
        """Leaves the job."""
        API.shutdown()


def connect(arguments: argparse.Namespace) -> HorovodDriver:
    """Joins the job; the launcher has said which."""
    torch.set_num_threads(arguments.threads)
    return HorovodDriver(is_ours=arguments.peer == "hvd")
