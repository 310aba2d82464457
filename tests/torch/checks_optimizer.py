"""DistributedOptimizer on real ranks, against the same training in one process over all ranks' data."""

from __future__ import annotations

import copy
import io
import os
import pickle
import warnings
from collections.abc import Callable

import horovod.torch as hvd
import pytest
import torch
from horovod.common import basics
from horovod.native import OutOfMemory
from torch.utils.checkpoint import checkpoint


def ranks() -> range:
    return range(hvd.size())


def model_of(seed: int = 3) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3), torch.nn.Linear(3, 1))


def data_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * rank + step))


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    return (model(data_of(rank, step)) ** 2).mean()


def same(mine: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(mine.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def reference(make: Callable[..., torch.optim.Optimizer], steps: int, **options: float) -> torch.nn.Module:
    """Training in one process: the mean of all ranks' losses."""
    model = model_of()
    optimizer = make(model.parameters(), **options)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, rank, step) for rank in ranks()) / hvd.size()).backward()
        optimizer.step()
    return model


def check_equals_one_process() -> None:
    """C01: with gradients set to None or to zeros."""
    for make, options in [(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}), (torch.optim.AdamW, {"lr": 0.01})]:
        for set_to_none in [True, False]:
            model = model_of()
            optimizer = hvd.DistributedOptimizer(
                make(model.parameters(), **options), named_parameters=model.named_parameters()
            )
            assert type(optimizer).__name__ == make.__name__
            assert isinstance(optimizer, make)
            for step in range(5):
                optimizer.zero_grad(set_to_none=set_to_none)
                loss_of(model, hvd.rank(), step).backward()
                optimizer.step()
            assert same(model, reference(make, 5, **options)), (make, set_to_none)


def check_gradients_live_in_their_slots() -> None:
    model = model_of().to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    addresses = []
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
        addresses.append([p.grad.data_ptr() for p in model.parameters()])
        for p in model.parameters():
            assert p.grad.untyped_storage().nbytes() == p.numel() * 4
            assert p.grad.stride() == p.stride()
    if hvd.size() > 1:
        assert addresses[0] == addresses[1] == addresses[3]
    payload = io.BytesIO()
    torch.save(model[0].weight.grad, payload)
    assert payload.tell() < 4000
    assert len(pickle.dumps(model[0].bias.grad)) < 2000
    copied = copy.deepcopy(model[0].weight.grad)
    assert copied.untyped_storage().nbytes() == copied.numel() * 4
    assert torch.equal(copied, model[0].weight.grad)


def check_kept_gradients_stay() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    kept, values = [], []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
        kept.append([p.grad for p in model.parameters()])
        values.append([p.grad.clone() for p in model.parameters()])
    for gradients, expected in zip(kept, values, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def check_channels_last() -> None:
    """S06: a model in channels_last trains as a contiguous one."""

    def train(wrap: bool, layout: torch.memory_format) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=layout)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if wrap:
            hvd.broadcast_parameters(model.state_dict(), 0)
            optimizer = hvd.DistributedOptimizer(optimizer)
        for step in range(2):
            optimizer.zero_grad()
            for rank in [hvd.rank()] if wrap else ranks():
                x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(rank + 10 * step))
                (model(x.to(memory_format=layout)).pow(2).mean() / (1 if wrap else hvd.size())).backward()
            optimizer.step()
        return model.weight.detach().contiguous()

    plain = train(False, torch.contiguous_format)
    assert torch.allclose(train(True, torch.channels_last), plain, atol=1e-6)
    assert torch.allclose(train(True, torch.contiguous_format), plain, atol=1e-6)


def check_accumulation() -> None:
    """S26: averages over ranks of sums over passes."""
    # Two ranks, gradients 1, 2 and 3, 4: the average over ranks of local sums.
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), backward_passes_per_step=2)
    for _ in range(2):
        before = w.item()
        optimizer.zero_grad()
        for turn in range(2):
            (w * (1 + turn + 2 * hvd.rank())).sum().backward()
        optimizer.step()
        assert w.item() == pytest.approx(before - sum(3 + 4 * r for r in ranks()) / hvd.size())
    if hvd.size() > 1:
        for _ in range(2):
            w.sum().backward()
        with pytest.raises(AssertionError, match="backward_passes_per_step"):
            w.sum().backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        with pytest.raises(ValueError, match="changed"):
            optimizer.synchronize()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    w.sum().backward()
    before = w.item()
    optimizer.step()
    assert w.item() == pytest.approx(before - 1)


def check_missing_gradients() -> None:
    """S28: used on one rank, used nowhere."""
    used, once, never = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.AdamW([used, once, never], lr=0.1, weight_decay=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        (used.sum() + (once.sum() * 4 if hvd.rank() == 0 else 0)).backward()
        optimizer.synchronize()
        assert torch.equal(once.grad, torch.full((2,), 4.0 / hvd.size()))
        with optimizer.skip_synchronize():
            optimizer.step()
        assert never.grad is None
        assert torch.equal(never.data, torch.ones(2))
    everywhere = hvd.allgather(once.detach().reshape(1, 2))
    assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))


def check_unused_parameters_are_named_once() -> None:
    """S28: those that no rank used, on one rank, once each, and only where it was asked for."""
    weights = {name: torch.nn.Parameter(torch.ones(2)) for name in ("used", "sometimes", "never")}
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights.values(), lr=0.1), named_parameters=weights.items())
    said = []
    for step in range(4):
        os.environ["HVD_REPORT_UNUSED"] = str(int(step > 0))
        optimizer.zero_grad()
        (weights["used"].sum() + (weights["sometimes"].sum() if step < 2 else 0)).backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        said.append([str(each.message).partition(" for ")[2].partition(" in ")[0] for each in caught])
    del os.environ["HVD_REPORT_UNUSED"]
    first = hvd.rank() == 0 and hvd.size() > 1  # alone nothing is reduced
    assert said == [[], ["never"] if first else [], ["sometimes"] if first else [], []], said


def check_synchronize_then_step() -> None:
    """S38: reduced once, warned once."""
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before = w.item()
            optimizer.step()
        seen += [str(entry.message) for entry in caught]
        assert w.item() == before - hvd.size()
    assert len(seen) == 1
    assert "optimizer.step() called without optimizer.skip_synchronize()" in seen[0]


def check_clipping_after_average() -> None:
    """S37: clipping comes after averaging."""
    if hvd.size() != 2:
        return
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0))
    (w * torch.tensor([[3.0, 0.0], [0.0, 3.0]][hvd.rank()])).sum().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_([w], 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert torch.allclose(w.data, torch.tensor([-0.7071, -0.7071]), atol=1e-3)


def check_changed_gradient_is_an_error() -> None:
    if hvd.size() == 1:
        return
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        if step:
            model[0].weight.grad.mul_(2)
            with pytest.raises(ValueError, match="synchronize"):
                optimizer.step()
        else:
            optimizer.step()
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), 2).backward()
    optimizer.step()


def check_late_parameters() -> None:
    """S15: two groups without names, and a group added after wrapping."""
    first, frozen, late = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([{"params": [first]}, {"params": [frozen], "lr": 2.0}], lr=1.0)
    )
    assert list(optimizer._parameter_names.values()) == ["allreduce.noname.0.0", "allreduce.noname.1.0"]
    (first.sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    optimizer.add_param_group({"params": [late], "lr": 1.0})
    frozen.requires_grad_(True)
    mean = sum(r + 1 for r in ranks()) / hvd.size()
    for step in range(2):
        optimizer.zero_grad()
        ((first + frozen + late).sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
        assert torch.allclose(late.data, torch.full((2,), -mean * (step + 1)))
        assert torch.allclose(frozen.data, torch.full((2,), -2 * mean * (step + 1)))


def check_groups() -> None:
    """S33: gradients of equal shape stay with their parameters, whatever the groups."""
    for groups in [None, 1, 2, 4, "lists"]:
        weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(5)]
        weights.append(torch.nn.Parameter(torch.zeros(3, dtype=torch.float16)))
        chosen = [[weights[4], weights[0], weights[5]], [weights[1]]] if groups == "lists" else groups
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), groups=chosen)
        for _ in range(2):
            optimizer.zero_grad()
            sum((w * (i * (hvd.rank() + 1))).sum().float() for i, w in enumerate(weights)).backward()
            optimizer.step()
        mean = sum(r + 1 for r in ranks()) / hvd.size()
        for i, w in enumerate(weights):
            assert torch.allclose(w.data.float(), torch.full((3,), -2.0 * i * mean)), (groups, i)


def check_options() -> None:
    for options in [
        {"compression": hvd.Compression.fp16}, {"compression": hvd.Compression.bf16},
        {"gradient_predivide_factor": 2.0}, {"op": hvd.Sum},
    ]:  # fmt: skip
        w = torch.nn.Parameter(torch.zeros(4, 3).T)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), **options)
        for _ in range(2):
            optimizer.zero_grad()
            (w.sum() * 2 * (hvd.rank() + 1)).backward()
            optimizer.step()
        total = sum(2.0 * (r + 1) for r in ranks()) / (1 if "op" in options else hvd.size())
        assert torch.allclose(w.data, torch.full((3, 4), -2 * total)), options


def check_sparse_gradients() -> None:
    """S28: sparse on one rank, none on the others."""
    for sparse_as_dense in [False, True]:
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(6, 3, sparse=True)
        start = embedding.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(embedding.parameters(), lr=1.0), sparse_as_dense=sparse_as_dense
        )
        for step in range(3):
            optimizer.zero_grad()
            if step or hvd.rank() == 0:  # in the first step most ranks have no gradient
                embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
            optimizer.step()
        expected = start.clone()
        for step in range(3):
            for r in ranks():
                if step or r == 0:
                    expected[r] -= 1.0 / hvd.size()
                    expected[5] -= 1.0 / hvd.size()
        assert torch.allclose(embedding.weight, expected), sparse_as_dense


def check_tied_weights_and_checkpointing() -> None:
    """S16, S54: tied weights are reduced once, checkpointed ones are reduced."""
    for reentrant in [None, True, False]:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(2):
            optimizer.zero_grad()
            x = data_of(hvd.rank(), step).requires_grad_()
            y = model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)
            (y**2).mean().backward()
            optimizer.step()
        assert same(model, reference(torch.optim.SGD, 2, lr=0.1)), reentrant
    tied = torch.nn.Linear(4, 4)
    names = [("a", tied.weight), ("b", tied.weight), ("c", tied.bias)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(tied.parameters(), lr=1.0), named_parameters=names)
    before = tied.weight.detach().clone()
    (tied.weight.sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    assert torch.allclose(tied.weight, before - sum(r + 1 for r in ranks()) / hvd.size())


def check_two_optimizers() -> None:
    """S13: two networks that train in turns."""
    torch.manual_seed(0)
    generator, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    of_generator = hvd.DistributedOptimizer(torch.optim.SGD(generator.parameters(), lr=0.1))
    of_critic = hvd.DistributedOptimizer(torch.optim.SGD(critic.parameters(), lr=0.1))
    for step in range(4):
        trains_generator = step % 2 == 0
        for p in generator.parameters():
            p.requires_grad_(trains_generator)
        for p in critic.parameters():
            p.requires_grad_(not trains_generator)
        of_generator.zero_grad()
        of_critic.zero_grad()
        critic(generator(torch.ones(1, 2) * (hvd.rank() + 1))).sum().backward()
        (of_generator if trains_generator else of_critic).step()
    for p in [*generator.parameters(), *critic.parameters()]:
        everywhere = hvd.allgather(p.detach().reshape(1, -1))
        assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))


def check_closure_and_scheduler() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for step in range(3):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, hvd.rank(), step)
            loss.backward()
            return loss

        optimizer.step(closure)
        scheduler.step()
    assert same(model, reference(torch.optim.SGD, 3, lr=0.1))


def check_state_dict() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    loss_of(model, hvd.rank(), 0).backward()
    optimizer.step()
    payload = io.BytesIO()
    torch.save(optimizer.state_dict(), payload)
    payload.seek(0)
    plain = torch.optim.Adam(model_of().parameters(), lr=0.5)
    plain.load_state_dict(torch.load(payload))
    assert plain.param_groups[0]["lr"] == 0.1
    optimizer.load_state_dict(plain.state_dict())
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), 1).backward()
    optimizer.step()
    assert same(model, reference(torch.optim.Adam, 2, lr=0.1))


def check_old_optimizer_lets_go() -> None:
    model = model_of()
    for _ in range(3):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            optimizer.step()


def check_different_models_are_told_apart() -> None:
    if hvd.size() == 1:
        return
    w = torch.nn.Parameter(torch.zeros(2 + (hvd.rank() == 1)))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), named_parameters=[("w", w)])
    w.sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 has w: float32 \[3\]"):
        optimizer.step()


def check_adasum() -> None:
    if hvd.size() not in (1, 2):
        return
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Adasum)
    (w * torch.tensor([[2.0, 0.0], [0.0, 2.0]][hvd.rank()])).sum().backward()
    optimizer.step()
    # Orthogonal updates are added.
    assert torch.allclose(w.data, torch.tensor([-2.0, -2.0 if hvd.size() == 2 else 0.0]))


def check_many_sizes_match() -> None:
    generator = torch.Generator().manual_seed(5)
    sizes = [int(n) for n in torch.randint(1, 300_000, (30,), generator=generator)]
    weights = [torch.nn.Parameter(torch.zeros(n)) for n in sizes]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), op=hvd.Sum)
    for _ in range(3):
        optimizer.zero_grad()
        sum((w * (i + hvd.rank())).sum() for i, w in enumerate(weights)).backward()
        optimizer.step()
    for i, w in enumerate(weights):
        assert torch.all(w.data == -3.0 * sum(i + r for r in ranks()))


def check_no_room_for_a_bucket_on_one_rank() -> None:
    """A rank without room in its shared memory goes on in its own memory: it must not leave the others waiting."""
    full = hvd.rank() == hvd.size() - 1
    w = torch.nn.Parameter(torch.zeros(3000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)

    def alloc(nbytes: int) -> object:
        raise OutOfMemory(f"no room for {nbytes} bytes")

    with pytest.MonkeyPatch.context() as patch:
        if full and hvd.size() > 1:
            patch.setattr(basics.client(), "alloc", alloc)
        for step in range(3):
            optimizer.zero_grad()
            (w.sum() * (hvd.rank() + 1)).backward()
            optimizer.step()
            assert torch.equal(w.detach(), torch.full((3000,), -float(sum(range(1, hvd.size() + 1)) * (step + 1))))
