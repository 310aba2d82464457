"""Copies of optimizers, models and gradients: ``copy.deepcopy``, pickles, shared memory."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import horovod.torch as hvd
import pytest
import torch

from tests.torch.checks_training import data_of, expect_equal, expect_same_bits, joined_loss, loss_of, model_of

STEPS = 3


def wrapped(model: torch.nn.Module, make: Any = torch.optim.Adam, **options: Any) -> Any:
    plain = make(model.parameters(), lr=0.05)
    return hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), **options)


def train(model: torch.nn.Module, optimizer: Any, first: int = 0, steps: int = STEPS) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()


def train_plain(model: torch.nn.Module, optimizer: Any, first: int = 0, steps: int = STEPS) -> None:
    for step in range(first, first + steps):
        optimizer.zero_grad()
        joined_loss(model, step).backward()
        optimizer.step()


def parameters_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def check_an_optimizer_copied_with_its_model_goes_on_from_there() -> None:
    """State, options and reduction are copied; the two train independently, as plain ones do in one process."""
    model, reference = model_of(), model_of()
    optimizer = wrapped(model)
    plain = torch.optim.Adam(reference.parameters(), lr=0.05)
    train(model, optimizer)
    train_plain(reference, plain)
    other, of_other = copy.deepcopy((model, optimizer))
    other_reference, of_reference = copy.deepcopy((reference, plain))
    assert type(of_other) is type(optimizer)
    assert isinstance(of_other, torch.optim.Adam)
    assert of_other.param_groups[0]["params"][0] is next(other.parameters())
    of_other.param_groups[0]["lr"] = of_reference.param_groups[0]["lr"] = 0.01
    for first in (3, 5):  # in turns
        train(other, of_other, first, 2)
        train_plain(other_reference, of_reference, first, 2)
        train(model, optimizer, 10 + first, 2)
        train_plain(reference, plain, 10 + first, 2)
    expect_equal(other, other_reference)
    expect_equal(model, reference)


def check_options_are_copied() -> None:
    """Groups hold the copied parameters; compression, accumulation and the op are those of the original."""
    model = model_of(torch.float32)
    groups = [list(model.parameters())[:2], list(model.parameters())[2:]]
    optimizer = wrapped(
        model, torch.optim.SGD, groups=groups, op=hvd.Sum, compression=hvd.Compression.bf16, backward_passes_per_step=2
    )
    other, of_other = copy.deepcopy((model, optimizer))
    for step in range(2):
        for chosen, chosen_optimizer in ((model, optimizer), (other, of_other)):
            chosen_optimizer.zero_grad()
            for _ in range(2):
                loss_of(chosen, hvd.rank(), step).backward()
            chosen_optimizer.step()
    expect_equal(other, model)
    if hvd.size() > 1:
        loss_of(other, hvd.rank(), 0).backward()
        loss_of(other, hvd.rank(), 0).backward()
        with pytest.raises(AssertionError, match="backward_passes_per_step=2"):
            loss_of(other, hvd.rank(), 0).backward()
        of_other.load_state_dict(of_other.state_dict())
    assert list(of_other._parameter_names.values()) == [name for name, _ in model.named_parameters()]


def check_a_copy_on_one_rank_disturbs_nobody() -> None:
    """Rank 0 alone keeps a copy, as for a checkpoint: optimizers that are wrapped afterwards meet all the same."""
    model = model_of()
    optimizer = wrapped(model)
    train(model, optimizer)
    kept = copy.deepcopy(optimizer) if hvd.rank() == 0 else None
    another = model_of()
    train(another, wrapped(another))
    train(model, optimizer, STEPS)
    expect_same_bits(another)
    expect_same_bits(model)
    if kept is not None:
        assert kept.state_dict()["state"][0]["step"] == STEPS


def check_an_optimizer_is_copied_in_the_middle_of_a_step() -> None:
    """As torch does, without the gradients; the original goes on with its step."""
    model, reference = model_of(), model_of()
    optimizer = wrapped(model)
    plain = torch.optim.Adam(reference.parameters(), lr=0.05)
    train(model, optimizer)
    loss = loss_of(model, hvd.rank(), 9)
    optimizer.zero_grad()
    loss.backward()
    other, of_other = copy.deepcopy((model, optimizer))
    assert all(p.grad is None for p in other.parameters())
    optimizer.step()
    train_plain(reference, plain)
    train_plain(reference, plain, 9, 1)
    expect_equal(model, reference)
    train(other, of_other, 9, 1)
    expect_equal(other, reference)


def check_schedulers_are_copied_along() -> None:
    """Made for the wrapper, or for the optimizer before it was wrapped: the copy changes the copy's rate."""
    for early in (False, True):
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5) if early else None
        optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        train(model, optimizer, 0, 1)
        scheduler.step()
        for order in (1, -1):
            copied = copy.deepcopy((scheduler, optimizer, model)[::order])[::order]
            train(copied[2], copied[1], 1, 1)
            copied[0].step()
            assert copied[1].param_groups[0]["lr"] == 0.25, (early, order)
            assert optimizer.param_groups[0]["lr"] == 0.5
            expect_same_bits(copied[2])


def check_adasum_is_copied() -> None:
    model = model_of()
    optimizer = wrapped(model, torch.optim.SGD, op=hvd.Adasum)
    train(model, optimizer)
    other, of_other = copy.deepcopy((model, optimizer))
    train(other, of_other, 3)
    train(model, optimizer, 3)
    expect_equal(other, model)


def check_what_can_not_be_copied_says_what_to_do() -> None:
    for op in (hvd.Average, hvd.Adasum):
        model = model_of()
        optimizer = wrapped(model, op=op)
        for attempt in (pickle.dumps, lambda o: torch.save(o, io.BytesIO())):
            with pytest.raises(TypeError, match=r"can't be pickled.*state_dict\(\)"):
                attempt(optimizer)
        with pytest.raises(TypeError, match=r"copy\.deepcopy"):
            copy.copy(optimizer)
        train(model, optimizer)
        expect_same_bits(model)


def check_a_copied_model_is_nobodys() -> None:
    """Its gradients are not handed to the original's optimizer, so ranks may train copies by themselves."""
    model = model_of()
    optimizer = wrapped(model)
    train(model, optimizer)
    before = parameters_of(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    )
    for other in copies:
        plain = torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(hvd.rank() + 1):  # another number of steps on each rank
            plain.zero_grad()
            (other(data_of(hvd.rank(), 0)) ** 2).mean().backward()
            plain.step()
        if hvd.size() > 1:
            assert not optimizer._reducer.is_started()
    assert all(torch.equal(p, kept) for p, kept in zip(model.parameters(), before, strict=True))
    train(model, optimizer)
    expect_same_bits(model)


def check_a_copied_model_can_be_wrapped() -> None:
    model, reference = model_of(), model_of()
    train(model, wrapped(model, torch.optim.SGD))
    train_plain(reference, torch.optim.SGD(reference.parameters(), lr=0.05))
    other = copy.deepcopy(model)
    train(other, wrapped(other, torch.optim.SGD), 3)
    train_plain(reference, torch.optim.SGD(reference.parameters(), lr=0.05), 3)
    expect_equal(other, reference)


def check_gradients_are_pickled_with_their_own_bytes() -> None:
    """Also where all of them lie in one bucket that is much larger, and before the reduction is over."""
    model = torch.nn.ModuleList([torch.nn.Linear(300, 300), torch.nn.Linear(3, 1)])
    optimizer = wrapped(model, torch.optim.SGD, op=hvd.Sum)
    for step in range(2):
        optimizer.zero_grad()
        (model[0](torch.ones(1, 300)).sum() + model[1](torch.ones(1, 3)).sum()).backward()
        if step:
            assert len(pickle.dumps(model[1].weight.grad)) < 2000
        optimizer.synchronize()
        small = model[1].weight.grad
        for form in (small, small.detach(), small.T, small[:, :2]):
            loaded = pickle.loads(pickle.dumps(form))
            assert torch.equal(loaded, form)
            assert len(pickle.dumps(form)) < 2000
        with optimizer.skip_synchronize():
            optimizer.step()
    payload = pickle.dumps([p.grad for p in model.parameters()])
    assert len(payload) < 300 * 301 * 4 + 4000
    assert all(torch.equal(a, p.grad) for a, p in zip(pickle.loads(payload), model.parameters(), strict=True))


def check_gradients_that_are_shared_with_other_processes() -> None:
    """``share_memory_`` gives a gradient other memory: training goes on."""
    model, reference = model_of(), model_of()
    optimizer = wrapped(model, torch.optim.SGD)
    for step in range(3):
        optimizer.zero_grad(set_to_none=step != 1)
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad.share_memory_()
    train_plain(reference, torch.optim.SGD(reference.parameters(), lr=0.05))
    expect_equal(model, reference)
