"""Compiled models train as others do; operations inside compiled functions run between the compiled parts."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from tests.torch.checks_training import data_of, expect_equal, joined_loss, loss_of, model_of


def _train_compiled(backend: str) -> None:
    model, plain_model = model_of(), model_of()
    compiled = torch.compile(model, backend=backend)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    plain = torch.optim.Adam(plain_model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(compiled, hvd.rank(), step).backward()
        optimizer.step()
        plain.zero_grad()
        joined_loss(plain_model, step).backward()
        plain.step()
    expect_equal(model, plain_model, backend)


def check_models_that_are_traced() -> None:
    _train_compiled("aot_eager")


def check_models_that_are_compiled() -> None:
    _train_compiled("inductor")


def check_operations_inside() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = hvd.allreduce(x * 2, op=hvd.Sum, name="inside")
        gathered = hvd.allgather(x, name="inside")
        return y.sin() + gathered.sum()

    compiled = torch.compile(step, backend="aot_eager")
    for _ in range(3):
        x = torch.full((3,), hvd.rank() + 1.0, requires_grad=True)
        z = x.detach().clone().requires_grad_()
        got, wanted = compiled(x), step(z)
        torch.testing.assert_close(got, wanted)
        got.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(x.grad, z.grad)


def check_normalization_inside() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)).double()
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(3 + hvd.rank(), 4, generator=torch.Generator().manual_seed(hvd.rank())).double()
    for _ in range(2):
        (compiled(x) ** 2).mean().backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        (model(x) ** 2).mean().backward()
        for a, p in zip(got, model.parameters(), strict=True):
            torch.testing.assert_close(a, p.grad)
        model.zero_grad()


def _train_with_compiled_steps(make: Any, op: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    """One model whose optimizer steps in a compiled function, one whose does not."""
    models = []
    for compiles in (True, False):
        model = model_of(torch.float32)
        optimizer = hvd.DistributedOptimizer(make(model.parameters(), lr=0.01), model.named_parameters(), op=op)
        step = torch.compile(lambda o=optimizer: o.step(), backend="aot_eager") if compiles else optimizer.step
        for number in range(4):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), number).backward()
            step()
        models.append(model)
    return models[0], models[1]


def check_steps_that_are_compiled() -> None:
    """``torch.compile`` of a function that calls ``step``: what is reduced runs as it is, the rest is compiled."""
    for make in (torch.optim.SGD, torch.optim.Adam):
        for op in (hvd.Average, hvd.Adasum):
            expect_equal(*_train_with_compiled_steps(make, op), (make, op))


def _train_whole_steps(usage: str, compiles: bool, op: int = hvd.Average) -> torch.nn.Module:
    """Forward, backward and step in one function; a scaler finds the last rank's gradients infinite in the second one."""
    model = model_of(torch.float32)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), op=op)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x: torch.Tensor, factor: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = ((model(x) - 1) ** 2).mean() * factor
        if usage == "scaler":
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return
        loss.backward()
        if usage == "clip":
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()

    run = torch.compile(step, backend="aot_eager") if compiles else step
    for number in range(4):
        is_bad = usage == "scaler" and number == 1 and hvd.rank() == hvd.size() - 1
        run(data_of(hvd.rank(), number, torch.float32), torch.tensor(float("inf") if is_bad else 1.0))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    if usage == "scaler":
        assert scaler.get_scale() == 4.0
    return model


def check_whole_steps_that_are_compiled() -> None:
    for usage in ("plain", "clip", "scaler"):
        expect_equal(_train_whole_steps(usage, True), _train_whole_steps(usage, False), usage)
    for usage in ("plain", "scaler"):
        runs = [_train_whole_steps(usage, compiles, hvd.Adasum) for compiles in (True, False)]
        expect_equal(*runs, ("Adasum", usage))
