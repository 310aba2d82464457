"""What training scripts do with an optimizer beside stepping: schedule, clip, measure, cast, and look at memory.

Against one process on all ranks' data, as in ``checks_training``.
"""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common import process
from horovod.common.basics import client

from tests.torch.checks_training import expect_equal, expect_same_bits, loss_of, model_of, ranks

lr_scheduler = torch.optim.lr_scheduler
STEPS = 6

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=STEPS + 1),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, 3),
}


def both(make: Callable[[torch.nn.Module], Any], step: Callable[[Any, torch.nn.Module, int, bool], None]) -> None:
    """Trains wrapped on the rank's own data, and alone on everybody's; both must end alike.

    ``step(optimizer, model, number, is_wrapped)`` does everything of one step.
    """
    models = []
    for is_wrapped in (True, False):
        model = model_of()
        optimizer = make(model)
        if is_wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        for number in range(STEPS):
            step(optimizer, model, number, is_wrapped)
        models.append(model)
    expect_equal(*models)


def backward(model: torch.nn.Module, number: int, is_wrapped: bool) -> float:
    """One backward pass over the own data, or over everybody's; the loss of all."""
    shares = [loss_of(model, rank, number) / hvd.size() for rank in ranks()]
    if is_wrapped:
        loss_of(model, hvd.rank(), number).backward()
    else:
        sum(shares).backward()  # type: ignore[union-attr]
    return sum(share.item() for share in shares)


def check_every_scheduler() -> None:
    """Made after the optimizer was wrapped: rates and momentum change as in one process, and torch warns of nothing."""
    found = [name for name, value in vars(lr_scheduler).items() if isinstance(value, type) and name.endswith("LR")]
    assert set(found) - set(SCHEDULERS) <= {"SequentialLR"}
    for name, make_scheduler in SCHEDULERS.items():
        schedulers: dict[int, Any] = {}

        def step(
            optimizer: Any,
            model: Any,
            number: int,
            is_wrapped: bool,
            make: Any = make_scheduler,
            made: Any = schedulers,
        ) -> None:
            scheduler = made.setdefault(id(optimizer), None) or make(optimizer)
            made[id(optimizer)] = scheduler
            optimizer.zero_grad()
            loss = backward(model, number, is_wrapped)
            optimizer.step()
            scheduler.step(*([round(loss, 6)] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            both(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), step)
        rates = {s.optimizer.param_groups[0]["lr"] for s in schedulers.values()}
        assert len(rates) == 1, name


def check_chained_schedulers() -> None:
    def make(optimizer: Any) -> Any:
        warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        after = lr_scheduler.ExponentialLR(optimizer, 0.9)
        return lr_scheduler.SequentialLR(optimizer, [warm, after], milestones=[2])

    schedulers: dict[int, Any] = {}

    def step(optimizer: Any, model: Any, number: int, is_wrapped: bool) -> None:
        if id(optimizer) not in schedulers:
            schedulers[id(optimizer)] = make(optimizer)
        optimizer.zero_grad()
        backward(model, number, is_wrapped)
        optimizer.step()
        schedulers[id(optimizer)].step()

    both(lambda m: torch.optim.SGD(m.parameters(), lr=0.2), step)


def check_a_scheduler_made_before_wrapping() -> None:
    """It changes the rate that is used, also after a state was loaded, and does not warn that nobody steps."""
    for op in (hvd.Average, hvd.Adasum):
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = lr_scheduler.StepLR(plain, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), op=op)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(3):
                optimizer.zero_grad()
                loss_of(model, hvd.rank(), number).backward()
                optimizer.step()
                scheduler.step()
                optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer.param_groups[0]["lr"] == 0.125, op


def check_clipping_as_in_one_process() -> None:
    """S37: norms and values are clipped after the average."""
    for clip in (
        lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.05),
        lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.02),
    ):

        def step(optimizer: Any, model: Any, number: int, is_wrapped: bool, clip: Any = clip) -> None:
            optimizer.zero_grad()
            backward(model, number, is_wrapped)
            if not is_wrapped:
                clip(model.parameters())
                optimizer.step()
                return
            optimizer.synchronize()
            clip(model.parameters())
            with optimizer.skip_synchronize():
                optimizer.step()

        both(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), step)


def _train_with_clipping_closures(op: int, is_wrapped: bool) -> torch.nn.Module:
    model = model_of()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if is_wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, op=op)
    for number in range(3):

        def closure(number: int = number) -> float:
            optimizer.zero_grad()
            loss = backward(model, number, is_wrapped)
            if is_wrapped:
                optimizer.synchronize()
            elif op == hvd.Sum:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad *= hvd.size()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            return loss

        optimizer.step(closure)
    return model


def check_closures_that_synchronize() -> None:
    """S37: a closure may clip (as Lightning's does), so it synchronizes itself; nothing is reduced twice, whatever ``op``."""
    for op in (hvd.Average, hvd.Sum):
        expect_equal(_train_with_clipping_closures(op, True), _train_with_clipping_closures(op, False), op)


def check_closures_that_only_tell_the_loss() -> None:
    """The backward pass came before the step: it is reduced once."""
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
    for number in range(2):
        optimizer.zero_grad()
        w.sum().backward()
        assert optimizer.step(lambda: 0.5) == 0.5
        assert torch.all(w == -hvd.size() * (number + 1.0))


def check_gradient_penalties() -> None:
    """Gradients that are part of the loss: a graph over the first backward pass, none of it handed over."""

    def step(optimizer: Any, model: Any, number: int, is_wrapped: bool) -> None:
        optimizer.zero_grad()
        for rank in [hvd.rank()] if is_wrapped else ranks():
            loss = loss_of(model, rank, number)
            gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            penalty = sum((gradient**2).sum() for gradient in gradients)
            ((loss + 0.1 * penalty) / (1 if is_wrapped else hvd.size())).backward()
        optimizer.step()

    both(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), step)


def check_recorded_backward_passes() -> None:
    """``backward(create_graph=True)`` runs hooks while autograd records; what is handed over is no part of the graph."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Sum)
    for number in range(3):
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's: such gradients may refer to themselves
            loss_of(model, 0, number).backward(create_graph=True)
        optimizer.synchronize()
        if hvd.size() > 1 and number:
            assert not any(p.grad is None or p.grad.requires_grad for p in model.parameters())
        with optimizer.skip_synchronize():
            optimizer.step()
    expect_same_bits(model)


def check_models_cast_after_wrapping() -> None:
    """Before the first step and between steps; all ranks must do so."""
    for at in (0, 2):
        model, reference = model_of(torch.float32), model_of(torch.float32)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        for number in range(4):
            if number == at:
                model.half()
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), number).backward()
            optimizer.step()
            plain.zero_grad()
            (sum(loss_of(reference, rank, number) for rank in ranks()) / hvd.size()).backward()
            plain.step()
        expect_same_bits(model)
        for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
            assert mine.dtype is torch.float16
            assert torch.allclose(mine.float(), other, atol=0.05), at


def check_zeroing_by_the_model() -> None:
    """``model.zero_grad()`` in both forms, and gradients set to None by hand."""
    for zero in (
        lambda model: model.zero_grad(),
        lambda model: model.zero_grad(set_to_none=False),
        lambda model: [setattr(p, "grad", None) for p in model.parameters()],
    ):

        def step(optimizer: Any, model: Any, number: int, is_wrapped: bool, zero: Any = zero) -> None:
            zero(model)
            backward(model, number, is_wrapped)
            optimizer.step()

        both(lambda m: torch.optim.Adam(m.parameters(), lr=0.01), step)


def check_options_together() -> None:
    """Groups, predivision, compression, accumulation and process set, each with each, as one process trains."""
    for groups, predivide, compression, passes in itertools.product(
        (None, 2), (1.0, 4.0), (hvd.Compression.none, hvd.Compression.bf16), (1, 2)
    ):
        model, reference = model_of(torch.float32), model_of(torch.float32)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(), compression, passes, hvd.Average, predivide, groups=groups,
            process_set=hvd.global_process_set,
        )  # fmt: skip
        for number in range(2):
            optimizer.zero_grad()
            plain.zero_grad()
            for turn in range(passes):
                backward(model, 2 * number + turn, True)
                backward(reference, 2 * number + turn, False)
            optimizer.step()
            plain.step()
        expect_same_bits(model)
        tolerance = 1e-5 if compression is hvd.Compression.none else 0.01
        for mine, other in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=tolerance, rtol=tolerance), (groups, predivide, compression, passes)


def check_averaged_models() -> None:
    """``swa_utils.AveragedModel`` copies a model whose gradients live in the arena."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    averaged: Any = None
    for number in range(3):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), number).backward()
        optimizer.step()
        averaged = averaged or torch.optim.swa_utils.AveragedModel(model)
        averaged.update_parameters(model)
    expect_same_bits(averaged.module)


# ---- memory


def arena_bytes() -> int:
    """Bytes of the arena that exist: in use, or freed and not yet given back, so that peaks count."""
    used, free_but_touched, _ = process._process.arena.stat()  # type: ignore[union-attr]
    return int(used + free_but_touched)


def _train_wide(**options: Any) -> tuple[int, int]:
    """Bytes that an optimizer took from the arena, at its peak, and bytes of all gradients."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(24)])
    gc.collect()
    process._process.arena.trim(0)  # type: ignore[union-attr]
    before = arena_bytes()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), **options)
    for number in range(4):
        optimizer.zero_grad(set_to_none=number != 2)
        model(torch.ones(2, 512) * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
    return arena_bytes() - before, sum(p.numel() * p.element_size() for p in model.parameters())


def check_memory_of_gradients() -> None:
    """The gradients themselves, and a tenth at most: counted to the byte, not by what happens to be resident."""
    if client().size == 1:
        return  # alone, gradients stay where torch puts them
    taken, gradients = _train_wide()
    assert gradients <= taken <= 1.1 * gradients, (taken, gradients)
    taken, gradients = _train_wide(compression=hvd.Compression.fp16)
    assert gradients / 2 <= taken <= 1.1 * gradients / 2, (taken, gradients)
    taken, gradients = _train_wide(backward_passes_per_step=1, groups=3)
    assert gradients <= taken <= 1.1 * gradients, (taken, gradients)
