"""Training with DistributedOptimizer ends with the parameters of one process on all ranks' data.

Tolerances: 1e-10 in fp64, 1e-5 in fp32; the ranks' parameters are equal to the last bit.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch

Make = Callable[[torch.nn.Module], torch.optim.Optimizer]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
STEPS = 4

# Options with which an optimizer takes steps that matter; those that are not named have their defaults.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [
        {"lr": 0.1, "foreach": True}, {"lr": 0.1, "fused": True},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ],
    "Adagrad": [{"lr": 0.01}, {"lr": 0.01, "fused": True}, {"lr": 0.01, "foreach": True}],
    "RMSprop": [{"lr": 0.01, "centered": True, "momentum": 0.5, "foreach": True}],
    "Adam": [{"lr": 0.01, "amsgrad": True}, {"lr": 0.01, "foreach": True}, {"lr": 0.01, "fused": True}],
    "AdamW": [{"lr": 0.01}, {"lr": 0.01, "fused": True}],
    "Adadelta": [{"lr": 1.0}],
    "Rprop": [{"lr": 0.001}],
}  # fmt: skip
ELSEWHERE = {"Optimizer", "LBFGS", "SparseAdam"}


def ranks() -> range:
    return range(hvd.size())


def model_of(dtype: torch.dtype = torch.float64, bias: bool = True) -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 7, bias=bias), torch.nn.Tanh(), torch.nn.Linear(7, 3, bias=bias),
        torch.nn.Linear(3, 1, bias=bias),
    ).to(dtype)  # fmt: skip


def data_of(rank: int, step: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * rank + step)).to(dtype)


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    dtype = next(model.parameters()).dtype
    return ((model(data_of(rank, step, dtype)) - 1) ** 2).mean()


def joined_loss(model: torch.nn.Module, step: int) -> torch.Tensor:
    return sum(loss_of(model, rank, step) for rank in ranks()) / hvd.size()  # type: ignore[return-value]


def expect_equal(mine: torch.nn.Module, other: torch.nn.Module, what: object = "") -> None:
    """As one process has it, and the same bits on all ranks."""
    for (name, a), b in zip(mine.named_parameters(), other.parameters(), strict=True):
        tolerance = TOLERANCE[a.dtype]
        assert torch.allclose(a, b, atol=tolerance, rtol=tolerance), (what, name, (a - b).abs().max())
    expect_same_bits(mine)


def expect_same_bits(model: torch.nn.Module) -> None:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    everywhere = hvd.allgather(flat.unsqueeze(0))
    assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))


def train(make: Make, dtype: torch.dtype, wrapped: bool, bias: bool = True) -> torch.nn.Module:
    model = model_of(dtype, bias)
    optimizer = make(model)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(model, hvd.rank(), step) if wrapped else joined_loss(model, step)).backward()
        optimizer.step()
    return model


def check_every_optimizer_of_torch() -> None:
    names = [name for name, found in vars(torch.optim).items() if inspect.isclass(found)]
    assert {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"} <= set(names)
    for name in sorted(set(names) - ELSEWHERE):
        made = getattr(torch.optim, name)
        bias = name != "Muon"  # it takes matrices alone
        for options in OPTIONS.get(name, [{}]):
            for dtype in TOLERANCE:

                def make(model: torch.nn.Module, made: Any = made, options: Any = options) -> torch.optim.Optimizer:
                    optimizer: torch.optim.Optimizer = made(model.parameters(), **options)
                    return optimizer

                expect_equal(train(make, dtype, True, bias), train(make, dtype, False, bias), (name, options, dtype))


def check_lbfgs() -> None:
    """Each evaluation of the closure is one reduction, so all ranks search the same line."""
    models = []
    for wrapped in (True, False):
        model = model_of()
        optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
        if wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer)

        def closure(
            model: torch.nn.Module = model, optimizer: Any = optimizer, wrapped: bool = wrapped
        ) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, hvd.rank(), 0) if wrapped else joined_loss(model, 0)
            loss.backward()
            return hvd.allreduce(loss.detach()) if wrapped else loss

        for _ in range(2):
            optimizer.step(closure)
        models.append(model)
    expect_equal(*models)


def check_sparse_adam() -> None:
    for sparse_as_dense in (False, True):
        models = []
        for wrapped in (True, False):
            torch.manual_seed(0)
            model = torch.nn.Embedding(10, 3, sparse=True, dtype=torch.float64)
            optimizer: Any = torch.optim.SparseAdam(model.parameters(), lr=0.1)
            if wrapped:
                optimizer = hvd.DistributedOptimizer(optimizer, sparse_as_dense=sparse_as_dense)
            for step in range(3):
                optimizer.zero_grad()
                for rank in [hvd.rank()] if wrapped else ranks():
                    rows = torch.tensor([rank, 5, 5, (rank + step) % 4])
                    (model(rows) ** 2).sum().div(1 if wrapped else hvd.size()).backward()
                optimizer.step()
            models.append(model)
        expect_equal(*models, sparse_as_dense)


# ---- loss scaling


def scaled_training(wrapped: bool, usage: str, fused: bool = False) -> tuple[torch.nn.Module, list[float], int]:
    """In step 1 the loss of the last rank is infinite: no rank takes that step."""
    model = model_of(torch.float32)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scaler, scales, taken = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2), [], 0
    optimizer.register_step_post_hook(lambda *_: scales.append(-1.0))
    for step in range(4):
        optimizer.zero_grad()
        for rank in [hvd.rank()] if wrapped else ranks():
            loss = loss_of(model, rank, step) / (1 if wrapped else hvd.size())
            loss = loss * float("inf") if step == 1 and rank == hvd.size() - 1 else loss
            scaler.scale(loss).backward()
        if usage == "clip":
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if usage == "synchronize" and wrapped:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    taken = scales.count(-1.0)
    return model, scales, taken


def check_grad_scaler() -> None:
    """S40 for torch: reduced once, before it is unscaled, clipped and judged; all ranks skip the same step."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for usage in ("plain", "clip", "synchronize"):
            for fused in (False, True):
                mine, scales, taken = scaled_training(True, usage, fused)
                other, expected, expected_taken = scaled_training(False, usage, fused)
                expect_equal(mine, other, (usage, fused))
                assert (scales, taken) == (expected, expected_taken), (usage, fused)
                if not fused:
                    assert taken == 3
                assert hvd.allgather_object(scales) == [scales] * hvd.size()


def check_grad_scaler_with_autocast() -> None:
    model = model_of(torch.float32)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, hvd.rank(), step)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    expect_same_bits(model)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def check_groups_can_be_looked_at_without_traffic() -> None:
    """Only a scaler makes the optimizer reduce: schedulers and users read options as often as they like."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    loss_of(model, hvd.rank(), 0).backward()
    for _ in range(hvd.rank()):
        assert optimizer.param_groups[0]["lr"] == 0.1
    optimizer.param_groups[0]["lr"] = 0.2
    optimizer.param_groups = list(optimizer.param_groups)
    optimizer.step()
    expect_same_bits(model)


# ---- models


def check_half_models() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        model = model_of(torch.float32).half() if dtype is torch.float16 else model_of(dtype)
        reference = model_of(torch.float32)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            optimizer.step()
            plain.zero_grad()
            joined_loss(reference, step).backward()
            plain.step()
        expect_same_bits(model)
        for a, b in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(a.float(), b, atol=0.05), dtype


def check_frozen_and_thawed() -> None:
    """A layer is frozen in steps 2 and 3; a new group comes in step 3; momentum goes on as in one process."""
    models = []
    for wrapped in (True, False):
        model, head = model_of(), torch.nn.Linear(1, 1).double()
        with torch.no_grad():
            head.weight.fill_(0.5)
            head.bias.fill_(0.1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        for step in range(5):
            model[0].requires_grad_(step not in (1, 2))
            if step == 2:
                optimizer.add_param_group({"params": head.parameters(), "lr": 0.05})
            optimizer.zero_grad()
            for rank in [hvd.rank()] if wrapped else ranks():
                y = model(data_of(rank, step))
                (((head(y) if step >= 2 else y) ** 2).mean() / (1 if wrapped else hvd.size())).backward()
            optimizer.step()
        models.append(torch.nn.ModuleList([model, head]))
    expect_equal(*models)


def check_accumulation_with_compression() -> None:
    """S26: sums over passes, averaged over ranks, 5.0 for two ranks; compression changes nothing."""
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        w = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([w], lr=1.0), backward_passes_per_step=2, compression=compression
        )
        for value in (1.0, 2.0) if hvd.rank() == 0 else (3.0, 4.0):
            (w * value).sum().backward()
        optimizer.step()
        assert w.item() == pytest.approx(-(3 + 7 * (hvd.size() - 1)) / hvd.size(), rel=0.01)


def check_copies_of_models_carry_their_own_bytes() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        expect_equal(model, other)
    kept = []
    for parameter in model.parameters():
        nbytes = parameter.numel() * parameter.element_size()
        for other in (copy.deepcopy(parameter.grad), pickle.loads(pickle.dumps(parameter.grad))):
            assert torch.equal(other, parameter.grad)
            assert other.untyped_storage().nbytes() == nbytes
            assert other.data_ptr() != parameter.grad.data_ptr()
            kept.append((other, other.clone()))
        payload = io.BytesIO()
        torch.save(parameter.grad, payload)
        assert payload.tell() < nbytes + 4000
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), 2).backward()
    optimizer.step()
    assert all(torch.equal(other, before) for other, before in kept)


def check_checkpoints_load_without_us() -> None:
    """S44: state of optimizer and scheduler has only torch's own types, and goes back between backward and step."""
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2, cycle_momentum=False)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
        scheduler.step()
        decay.step()
    payload = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "decay": decay.state_dict(), "model": model.state_dict()}, payload)
    payload.seek(0)
    saved = torch.load(payload, weights_only=True)
    plain_model = model_of()
    plain_model.load_state_dict(saved["model"])
    plain = torch.optim.Adam(plain_model.parameters(), lr=0.5)
    plain.load_state_dict(saved["optimizer"])
    assert b"horovod" not in pickle.dumps(scheduler.state_dict())
    assert isinstance(optimizer, torch.optim.Adam)
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), 7).backward()
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    optimizer.zero_grad()
    plain.zero_grad()
    loss_of(model, hvd.rank(), 2).backward()
    joined_loss(plain_model, 2).backward()
    optimizer.step()
    plain.step()
    expect_equal(model, plain_model)


def check_state_loaded_between_backward_and_step() -> None:
    """S44: what was handed over meets no later step, also where ranks had different gradients; step() uses it."""
    used, once = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, once], lr=1.0), op=hvd.Sum)
    for step in range(4):
        optimizer.zero_grad()
        (used.sum() + (once.sum() if step == 1 and hvd.rank() == 0 else 0)).backward()
        if step in (1, 2):
            optimizer.load_state_dict(optimizer.state_dict())
        if step == 1:
            continue
        optimizer.step()
    assert torch.all(used == -3.0 * hvd.size())
    assert torch.all(once == 0)


def check_gan_like_losses() -> None:
    """S13: one backward pass before the other is finished, two optimizers; alike for any number of ranks."""
    models = []
    for wrapped in (True, False):
        torch.manual_seed(0)
        maker, judge = torch.nn.Linear(5, 5).double(), torch.nn.Linear(5, 1).double()
        optimizers: list[Any] = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (maker, judge)]
        if wrapped:
            optimizers = [hvd.DistributedOptimizer(o) for o in optimizers]
        of_maker, of_judge = optimizers
        for step in range(2):
            of_judge.zero_grad()
            of_maker.zero_grad()
            mine = [data_of(r, step) for r in ([hvd.rank()] if wrapped else ranks())]
            made = [maker(x) for x in mine]
            scale = 1 if wrapped else hvd.size()
            sum((judge(m.detach()) ** 2).mean() / scale for m in made).backward()
            of_judge.step()
            judge.requires_grad_(False)
            sum(judge(m).mean() / scale for m in made).backward()
            of_maker.step()
            judge.requires_grad_(True)
        models.append(torch.nn.ModuleList([maker, judge]))
    expect_equal(*models)


def check_a_layer_more_on_one_rank() -> None:
    """S17: a rank that builds and drops a layer trains with the others."""
    if hvd.rank() == 0:
        torch.nn.Linear(3, 3)
    models = [train(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), torch.float64, w) for w in (True, False)]
    expect_equal(*models)
