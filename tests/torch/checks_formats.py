"""Memory formats that change after wrapping: gradients lie in memory as autograd lays them, and as one process has them.

Where they do not, torch's kernels round differently, and fused ones step with the gradients of other elements.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch

Make = Callable[..., torch.optim.Optimizer]
SHAPES = [(8, 4, 3, 3), (5,), (6, 2, 1, 1), (3, 2, 2, 2)]
STEPS = 4


def _model(dtype: torch.dtype) -> torch.nn.ParameterList:
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randint(-9, 9, shape, generator=generator).to(dtype) / 8 for shape in SHAPES]
    return torch.nn.ParameterList(torch.nn.Parameter(w) for w in weights)


def _factor(rank: int, index: int, step: int) -> torch.Tensor:
    """Small integers, so that sums and means of two are exact in every order."""
    generator = torch.Generator().manual_seed(100 * rank + 10 * index + step)
    return 2.0 * torch.randint(-9, 9, SHAPES[index], generator=generator)


def _loss(model: torch.nn.ParameterList, step: int, wrapped: bool) -> torch.Tensor:
    terms = []
    for index, w in enumerate(model):
        if wrapped and index == 3 and hvd.rank() != 0:
            continue  # only rank 0 has a gradient of the last one
        members = range(1 if index == 3 else hvd.size())
        factors = [_factor(rank, index, step) for rank in members]
        factor = factors[min(hvd.rank(), len(factors) - 1)] if wrapped else torch.stack(factors).sum(0)
        terms.append((w * factor.to(w.dtype)).sum())
    return torch.stack(terms).sum()


def _train(make: Make, dtype: torch.dtype, change_at: int, set_to_none: bool, wrapped: bool, **options: Any) -> Any:
    model = _model(dtype)
    optimizer: Any = make(model.parameters())
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Sum, **options)
    for step in range(STEPS):
        if step == change_at:
            model.to(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=set_to_none)
        for _ in range(options.get("backward_passes_per_step", 1)):
            _loss(model, step, wrapped).backward()
        optimizer.step()
    return model


def _expect_alike(mine: torch.nn.ParameterList, other: torch.nn.ParameterList, what: object) -> None:
    for index, (a, b) in enumerate(zip(mine, other, strict=True)):
        assert a.grad is not None, (what, index)
        assert b.grad is not None, (what, index)
        assert a.grad.stride() == b.grad.stride(), (what, index, a.grad.stride(), b.grad.stride())
        assert torch.equal(a.grad, b.grad), (what, index)
        assert torch.equal(a, b), (what, index)


OPTIMIZERS: dict[str, Make] = {
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, nesterov=True),
    "fused SGD": lambda ps: torch.optim.SGD(ps, lr=0.01, fused=True),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=0.01, foreach=True),
}


def check_formats_that_change_after_wrapping() -> None:
    """Before the first step, and in mid-training; gradients that are set to zero stay as torch converts them."""
    for name, make in OPTIMIZERS.items():
        for dtype in (torch.float32, torch.bfloat16):
            for change_at in (0, 2):
                for set_to_none in (True, False):
                    arguments = (make, dtype, change_at, set_to_none)
                    _expect_alike(_train(*arguments, True), _train(*arguments, False), (name, *arguments[1:]))


def check_fused_steps_pair_gradients_with_their_parameters() -> None:
    """A fused kernel reads memory in its order: it must be the parameter's for gradient and parameter alike."""
    make: Make = lambda ps: torch.optim.Adam(ps, lr=0.01, fused=True)  # noqa: E731
    arguments = (make, torch.float32, 0, True)
    _expect_alike(_train(*arguments, True), _train(*arguments, False), "fused Adam")


def check_formats_with_accumulation_and_compression() -> None:
    for options in ({"backward_passes_per_step": 2}, {"compression": hvd.Compression.fp16}, {"groups": 2}):
        plain: dict[str, Any] = {k: v for k, v in options.items() if k == "backward_passes_per_step"}
        arguments = (OPTIMIZERS["momentum"], torch.float32, 2, True)
        _expect_alike(_train(*arguments, True, **options), _train(*arguments, False, **plain), options)


def check_gradients_that_lie_otherwise() -> None:
    """Gradients that users put in place keep their layout, also where they look at the slot itself in another order."""
    w = torch.nn.Parameter(torch.zeros(4, 4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
    values = torch.arange(16.0).reshape(4, 4)
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        if step == 1:
            assert w.grad is not None
            w.grad = w.grad.t()
        if step == 2:
            w.grad = torch.zeros(4, 8)[:, ::2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch: this layout may be slow
            (w * values).sum().backward()
        optimizer.step()
        assert w.grad is not None
        with_gaps = (8, 2) if hvd.size() == 1 else (4, 1)  # one rank leaves everything to torch
        assert w.grad.stride() == ((4, 1), (1, 4), with_gaps)[step], step
        assert torch.equal(w.grad, values * hvd.size()), step
    assert torch.equal(w.detach(), -3 * hvd.size() * values)


def check_state_that_is_broadcast_lies_as_the_roots() -> None:
    """A buffer from before the change lies otherwise than its parameter: so it does on all ranks, or they round differently."""
    for change_at in (0, 1):
        w = torch.nn.Parameter(torch.zeros(SHAPES[0]))
        optimizer = torch.optim.SGD([w], lr=1.0, momentum=0.9)
        for step in range(2):
            if step == change_at:
                w.data = w.data.contiguous(memory_format=torch.channels_last)
            if hvd.rank() == 0:
                w.grad = torch.ones_like(w)
                optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, 0)
        buffer = optimizer.state[w]["momentum_buffer"]
        assert torch.all(buffer == 1.9)
        assert buffer.stride() == ((36, 1, 12, 4) if change_at == 0 else (36, 9, 3, 1)), change_at
