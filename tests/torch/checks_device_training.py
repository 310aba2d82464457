"""Optimizers of parameters on a device, step by step beside the same ones on the host.

Where the device computes with the CPU's bits, results must have the same bits; elsewhere they must be close, and the same
on all ranks.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch

from tests.torch.devices import DEVICE, is_exact

CPU = torch.device("cpu")


def model_of(seed: int = 3) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 5),
    )  # fmt: skip


def batch_of(step: int) -> torch.Tensor:
    return torch.randn(4 + hvd.rank(), 2, 6, 6, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))


def expect_alike(here: torch.nn.Module, host: torch.nn.Module) -> None:
    for name, wanted in host.state_dict().items():
        got = here.state_dict()[name]
        assert got.device == DEVICE, name
        expect_equal(got, wanted)


def expect_equal(got: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = 0.0 if is_exact() else 2e-3
    torch.testing.assert_close(got.detach().cpu(), wanted.detach(), atol=tolerance, rtol=tolerance)


def expect_same_everywhere(model: torch.nn.Module) -> None:
    mine = [p.detach().cpu() for p in model.parameters()]
    for theirs in hvd.allgather_object(mine):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def train(
    model: torch.nn.Module,
    make: Callable[[Any], torch.optim.Optimizer],
    device: torch.device,
    step_of: Callable[[Any, torch.nn.Module, int], None] | None = None,
    **options: Any,
) -> Any:
    """Three steps; ``step_of`` may do something else between forward and the next one."""
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    for step in range(3):
        if step_of is not None:
            step_of(optimizer, model, step)
            continue
        optimizer.zero_grad()
        model(batch_of(step).to(device)).square().mean().backward()
        optimizer.step()
    return optimizer


def both(make: Callable[[Any], torch.optim.Optimizer], step_of: Any = None, **options: Any) -> torch.nn.Module:
    """Trains on the device and on the host, and compares."""
    host = model_of()
    here = copy.deepcopy(host).to(DEVICE)
    train(here, make, DEVICE, step_of, **options)
    train(host, make, CPU, step_of, **options)
    expect_alike(here, host)
    expect_same_everywhere(here)
    assert all(p.grad is None or p.grad.device == DEVICE for p in here.parameters())
    return here


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def check_optimizers() -> None:
    both(sgd)
    both(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=False))
    both(lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3))
    both(lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, foreach=False))


def check_exact_arithmetic() -> None:
    """Small integers and powers of two: the same bits on every device."""
    w = torch.nn.Parameter(torch.zeros(4, 3, device=DEVICE))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.5), [("w", w)], op=hvd.Sum)
    for step in range(3):
        optimizer.zero_grad()
        (w * torch.full((4, 3), float(step + hvd.rank()), device=DEVICE)).sum().backward()
        optimizer.step()
    total = sum(step + rank for step in range(3) for rank in range(hvd.size()))
    assert torch.equal(w.detach().cpu(), torch.full((4, 3), -0.5 * total))


def check_options() -> None:
    both(sgd, compression=hvd.Compression.bf16)
    both(sgd, compression=hvd.Compression.fp16)
    both(sgd, gradient_predivide_factor=2.0)
    both(sgd, groups=2)
    both(sgd, op=hvd.Adasum)
    if is_exact():  # elsewhere the sum of passes is rounded differently
        both(sgd, op=hvd.Sum)


def check_several_passes() -> None:
    def step_of(optimizer: Any, model: torch.nn.Module, step: int) -> None:
        optimizer.zero_grad()
        device = next(model.parameters()).device
        for turn in range(2):
            model(batch_of(2 * step + turn).to(device)).square().mean().backward()
        optimizer.step()

    both(sgd, step_of, backward_passes_per_step=2)


def check_clipping() -> None:
    def step_of(optimizer: Any, model: torch.nn.Module, step: int) -> None:
        optimizer.zero_grad()
        device = next(model.parameters()).device
        model(batch_of(step).to(device)).square().mean().backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with optimizer.skip_synchronize():
            optimizer.step()

    both(sgd, step_of)


def check_closures() -> None:
    def step_of(optimizer: Any, model: torch.nn.Module, step: int) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch_of(step).to(next(model.parameters()).device)).square().mean()
            loss.backward()
            return loss

        assert optimizer.step(closure).device == next(model.parameters()).device

    both(sgd, step_of)


def check_kept_gradients() -> None:
    """``set_to_none=False`` accumulates into the same tensors of the device."""

    def step_of(optimizer: Any, model: torch.nn.Module, step: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        before = [p.grad for p in model.parameters()]
        model(batch_of(step).to(next(model.parameters()).device)).square().mean().backward()
        optimizer.step()
        if step and next(model.parameters()).device == DEVICE:
            assert all(p.grad is kept for p, kept in zip(model.parameters(), before, strict=True))

    both(sgd, step_of)


def check_recorded_backward_passes() -> None:
    """With ``create_graph=True`` gradients are part of a graph, which stays what it is; what is reduced is no part of it."""
    for compression in (hvd.Compression.none, hvd.Compression.bf16):
        for device in (DEVICE, CPU):
            w = torch.nn.Parameter(torch.full((3,), 2.0, device=device))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.5), [("w", w)], compression, op=hvd.Sum)
            for _ in range(2):
                optimizer.zero_grad()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch's: such gradients may refer to themselves
                    (w**3).sum().backward(create_graph=True)
                recorded = w.grad
                optimizer.synchronize()
                assert w.grad is not None
                assert recorded is not None
                assert not w.grad.requires_grad
                assert w.grad.device == device
                assert w.grad.tolist() == [hvd.size() * 3 * w.tolist()[0] ** 2] * 3
                (second,) = (
                    torch.autograd.grad((w.detach().clone() * recorded).sum(), w)
                    if recorded.requires_grad
                    else (6 * w.detach() ** 2,)
                )
                assert second.tolist() == [6 * w.tolist()[0] ** 2] * 3
                with optimizer.skip_synchronize():
                    optimizer.step()
                with torch.no_grad():
                    w.fill_(2.0)


def check_channels_last() -> None:
    host = model_of().to(memory_format=torch.channels_last)
    here = copy.deepcopy(host).to(DEVICE)
    train(here, sgd, DEVICE)
    train(host, sgd, CPU)
    expect_alike(here, host)
    assert here[0].weight.stride() == host[0].weight.stride()
    assert here[0].weight.grad is not None
    assert here[0].weight.grad.stride() == host[0].weight.stride()


def check_missing_and_unused_gradients() -> None:
    """One that only a rank has, and one that nobody has: on the device as on the host."""
    for device in (DEVICE, CPU):
        used, once, never = (torch.nn.Parameter(torch.ones(3, 2, device=device)) for _ in range(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, once, never], lr=1.0), op=hvd.Sum)
        for _ in range(2):
            optimizer.zero_grad()
            loss = used.sum() if hvd.rank() else (used * 2 + once).sum()
            loss.backward()
            optimizer.step()
        for parameter, wanted in ((used, 1 - 2 * (hvd.size() + 1)), (once, -1), (never, 1)):
            assert parameter.device == device
            assert torch.equal(parameter.detach().cpu(), torch.full((3, 2), float(wanted)))
        assert once.grad is not None
        assert once.grad.device == device
        assert never.grad is None


def _embedding(device: torch.device, **options: Any) -> torch.Tensor:
    torch.manual_seed(1)
    table = torch.nn.Embedding(8, 3, sparse=True).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.5), table.named_parameters(), **options
    )
    for step in range(4):
        optimizer.zero_grad()
        if step != 2 or hvd.rank():  # nothing from one rank in one step
            table(torch.tensor([hvd.rank(), step, step], device=device)).sum().backward()
        optimizer.step()
    assert table.weight.grad is not None
    assert table.weight.grad.device == device
    return table.weight


def check_sparse_gradients() -> None:
    for options in ({}, {"sparse_as_dense": True}):
        expect_equal(_embedding(DEVICE, **options), _embedding(CPU, **options))


def check_models_in_two_places() -> None:
    """Some parameters on the device, some on the host, and a backward pass in the threads of both."""

    def trained(devices: tuple[torch.device, torch.device]) -> list[torch.Tensor]:
        torch.manual_seed(5)
        first, second = torch.nn.Linear(6, 4), torch.nn.Linear(4, 2)
        first.to(devices[0])
        second.to(devices[1])
        named = [*first.named_parameters("first"), *second.named_parameters("second")]
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam([p for _, p in named], lr=0.01, eps=1e-3), named)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randn(3, 6, generator=torch.Generator().manual_seed(step + 10 * hvd.rank()))
            second(first(x.to(devices[0])).to(devices[1])).square().sum().backward()
            optimizer.step()
        assert [p.device for _, p in named] == [devices[0]] * 2 + [devices[1]] * 2
        return [p for _, p in named]

    wanted = trained((CPU, CPU))
    for devices in ((DEVICE, CPU), (CPU, DEVICE)):
        for p, q in zip(trained(devices), wanted, strict=True):
            expect_equal(p, q)


def check_ranks_with_and_without_a_device() -> None:
    """A rank on the host trains with others on a device."""
    where = CPU if hvd.rank() else DEVICE
    host = model_of()
    mine = copy.deepcopy(host).to(where)
    train(mine, sgd, where)
    train(host, sgd, CPU)
    for p, q in zip(mine.parameters(), host.parameters(), strict=True):
        assert p.device == where
        expect_equal(p, q)


def check_loss_scaling() -> None:
    """All ranks skip the step in which one has a gradient that is not finite, and step otherwise."""
    for fused in (False,) if is_exact() else (False, True):
        w = torch.nn.Parameter(torch.zeros(3, device=DEVICE))
        options = {"fused": True} if fused else {}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0, **options), [("w", w)])
        scaler = torch.amp.GradScaler(DEVICE.type, init_scale=4.0, growth_interval=100)
        for step in range(3):
            optimizer.zero_grad()
            factor = float("inf") if step == 1 and hvd.rank() == 0 else float(hvd.rank() + 1)
            scaler.scale((w * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        average = sum(r + 1 for r in range(hvd.size())) / hvd.size()
        assert torch.equal(w.detach().cpu(), torch.full((3,), -2 * average))
        assert scaler.get_scale() == 2.0


def check_changed_gradients_are_noticed() -> None:
    w = torch.nn.Parameter(torch.ones(3, device=DEVICE))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)])
    for step in range(2):
        optimizer.zero_grad()
        w.sum().backward()
        if step:
            assert w.grad is not None
            w.grad.mul_(2)
            with pytest.raises(ValueError, match="changed or replaced"):
                optimizer.step()
        else:
            optimizer.step()


def check_under_a_default_device() -> None:
    with torch.device(DEVICE):
        w, b = torch.nn.Parameter(torch.zeros(3, 2)), torch.nn.Parameter(torch.zeros(2, device="cpu"))
        table = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w, b, *table.parameters()], lr=1.0), op=hvd.Sum)
        for step in range(3):
            optimizer.zero_grad()
            ((w + 1).sum() + b.sum().to(DEVICE)).backward()
            if hvd.rank() or not step:
                table(torch.tensor([1])).sum().backward()
            optimizer.step()
        assert w.cpu().flatten().tolist() == [-3.0 * hvd.size()] * 6
        assert b.tolist() == [-3.0 * hvd.size()] * 2
        assert (w.device, b.device) == (DEVICE, CPU)
        adasum = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Adasum)
        w.sum().backward()
        adasum.step()
