"""What our own code costs, layer by layer, with nobody to wait for: rank 0 reduces in a process set of its own, others rest.

The layers of a small ``allreduce_``: the call itself, the client below it, the engine below that, and a C function that
does nothing.  Gradients: hooks and copies of ``DistributedOptimizer``, against a plain copy of the same bytes and the same
reductions.
"""

from __future__ import annotations

import ctypes
from typing import Any

import horovod.torch as hvd
import torch
from horovod import native
from horovod.common import basics
from horovod.common.calls import wait_all

from benchmarks.cases import Case
from benchmarks.drivers import Task

API: Any = hvd
_own_set: Any = None


def own_set() -> Any:
    """The process set of this rank alone."""
    global _own_set
    if _own_set is None:
        _own_set = [API.add_process_set([rank]) for rank in range(API.size())][API.rank()]
    return _own_set


class Rest:
    """What the other ranks do: cores and memory belong to the one that is measured."""

    def check(self) -> None:
        """Nothing to check."""

    def run(self, count: int) -> None:
        """Nothing to run."""


def make_overhead(case: Case, rank: int) -> Task:
    """The task of a case of these kinds."""
    own_set()  # all ranks make all sets
    if rank != 0:
        return Rest()
    if case.kind == "layer":
        return LAYERS[case.place](case)
    return (Hooks if case.kind == "hooks" else HooksFloor)(case)


# ---- a small call


class Call:
    """``allreduce_``, as users call it."""

    def __init__(self, case: Case) -> None:
        self.tensor = torch.ones(case.shapes[0])
        self.name, self.set = f"layer.{case.place}", own_set()

    def check(self) -> None:
        """A sum over one rank changes nothing."""
        self.run(2)
        assert bool((self.tensor == 1).all())

    def run(self, count: int) -> None:
        """Back to back."""
        tensor, name, chosen, allreduce, total = self.tensor, self.name, self.set, API.allreduce_, API.Sum
        for _ in range(count):
            allreduce(tensor, name=name, op=total, process_set=chosen)


class ClientCall(Call):
    """The client's part of it."""

    def run(self, count: int) -> None:
        """A signature and a buffer are at hand, as after the look-up of the call above."""
        super().run(1)
        client: Any = basics.client()
        pointer = self.tensor.data_ptr()
        plan = client._live[self.set.process_set_id, f"allreduce.{self.name}"]
        for _ in range(count):
            buffers = ((pointer, pointer, self.tensor.nbytes),)
            client.reduce(plan.signature, buffers, blocking=True, keep=self.tensor, name=None).wait()


class EngineCall(Call):
    """The engine's part of it: submit and wait."""

    def run(self, count: int) -> None:
        """Rounds that the client does not see are counted for it."""
        super().run(1)
        client: Any = basics.client()
        plan, engine = client._live[self.set.process_set_id, f"allreduce.{self.name}"], client._engine
        pointer, nbytes = self.tensor.data_ptr(), self.tensor.nbytes
        for _ in range(count):
            assert engine.reduce_bound(plan.offset, (pointer, pointer, nbytes), True, plan.id) >= 0
            assert engine.wait(engine.handle, 1000) == 0
        plan.next_round += count


class ForeignCall(Call):
    """Two calls of a C function that looks a number up: the engine's part can't cost less."""

    def run(self, count: int) -> None:
        """There is no operation 0."""
        poll, engine = native.lib.hvd_op_poll, basics.client()._engine._engine  # type: ignore[attr-defined]
        for _ in range(2 * count):
            poll(engine, 0)


LAYERS: dict[str, type[Call]] = {
    "allreduce_": Call,
    "client": ClientCall,
    "engine": EngineCall,
    "foreign call": ForeignCall,
}


# ---- gradients


class _Give(torch.autograd.Function):
    """A loss whose gradients are at hand: the backward pass costs nothing but what autograd does with them."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return (None, *[gradient.view_as(gradient) for gradient in ctx.gradients])


class Hooks:
    """Backward passes whose gradients are handed over, reduced and taken back."""

    def __init__(self, case: Case) -> None:
        self.parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in case.shapes]
        self.gradients = [torch.ones(shape) for shape in case.shapes]
        names = [(f"{case.kind}.{index}", parameter) for index, parameter in enumerate(self.parameters)]
        self.optimizer: Any = API.DistributedOptimizer(
            torch.optim.SGD(self.parameters, lr=1.0), named_parameters=names, op=API.Sum, process_set=own_set()
        )
        self.pass_over()
        self.optimizer.synchronize()  # the first step agrees on buckets

    def pass_over(self) -> None:
        """A backward pass."""
        give: Any = _Give.apply
        give(self.gradients, *self.parameters).backward()

    def check(self) -> None:
        """A sum over one rank changes nothing, and the gradients lie in the arena."""
        self.run(1)
        start, end = basics.client()._arena_start, basics.client()._arena_end  # type: ignore[attr-defined]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradient)
            assert start <= parameter.grad.data_ptr() < end

    def run(self, count: int) -> None:
        """That many passes."""
        for _ in range(count):
            self.optimizer.zero_grad()
            self.pass_over()
            self.optimizer.synchronize()


class HooksFloor(Hooks):
    """The same passes without hooks, the same bytes copied as they lie, the same reductions."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.buckets = self.optimizer._reducer._buckets
        for hook in self.optimizer._hooks:
            hook.remove()
        self.copies = [
            (bucket.memory.addresses[slot.index], slot.parameter, slot.nbytes)
            for bucket in self.buckets
            for slot in bucket.slots
        ]

    def check(self) -> None:
        """The bytes arrive."""
        self.run(1)
        for target, parameter, nbytes in self.copies:
            assert parameter.grad is not None
            assert ctypes.string_at(target, nbytes) == ctypes.string_at(parameter.grad.data_ptr(), nbytes)

    def run(self, count: int) -> None:
        """That many passes."""
        client = basics.client()
        for _ in range(count):
            for parameter in self.parameters:
                parameter.grad = None
            self.pass_over()
            for target, parameter, nbytes in self.copies:
                assert parameter.grad is not None
                ctypes.memmove(target, parameter.grad.data_ptr(), nbytes)
            wait_all(
                [
                    client.reduce(bucket.signature, bucket.memory.buffers, blocking=False, keep=bucket.memory.buffer)
                    for bucket in self.buckets
                ]
            )
