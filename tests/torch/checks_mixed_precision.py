"""Training in 16 bits, autocast and loss scaling, against plain optimizers or NumPy with the gradients of all ranks.

Gradients are small integers, so sums of 16-bit numbers are exact and every difference is an error, not a rounding.
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from tests.torch.adasum import combine

HALVES = (torch.float16, torch.bfloat16)
COUNT = 40


def ranks() -> range:
    return range(hvd.size())


def factor(rank: int, turn: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + turn)
    return torch.randint(-8, 8, (COUNT,), generator=generator).to(dtype)


def expect_same_everywhere(tensor: torch.Tensor) -> None:
    bits = tensor.detach().flatten().view(torch.uint8).unsqueeze(0)
    everywhere = hvd.allgather(bits)
    assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))


def _wrapped(dtype: torch.dtype, **options: Any) -> tuple[torch.nn.Parameter, Any]:
    w = torch.nn.Parameter(torch.zeros(COUNT, dtype=dtype))
    return w, hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), **options)


def check_half_gradients_and_accumulation() -> None:
    """Of one to three passes, for each dtype and operation: within a rounding of the exact result, the same on all ranks."""
    for dtype in (*HALVES, torch.float32):
        for passes in (1, 2, 3):
            for op, predivide in ((hvd.Sum, 1.0), (hvd.Average, 1.0), (hvd.Average, 4.0)):
                w, optimizer = _wrapped(
                    dtype, op=op, backward_passes_per_step=passes, gradient_predivide_factor=predivide
                )
                for window in range(2):
                    optimizer.zero_grad()
                    turns = [window * 3 + turn for turn in range(passes)]
                    for turn in turns:
                        (w * factor(hvd.rank(), turn, dtype)).sum().backward()
                    optimizer.synchronize()
                    total = sum(factor(rank, turn, torch.float64) for rank in ranks() for turn in turns)
                    assert isinstance(total, torch.Tensor)
                    wanted = total / (hvd.size() if op == hvd.Average else 1)
                    assert w.grad is not None
                    assert w.grad.dtype is dtype
                    torch.testing.assert_close(w.grad, wanted.to(dtype), msg=f"{dtype} {passes} {op} {predivide}")
                    expect_same_everywhere(w.grad)
                    with optimizer.skip_synchronize():
                        optimizer.step()


def check_compressed_half_parameters() -> None:
    """Parameters that are 16 bits wide pass ``Compression.fp16`` and ``bf16`` untouched, whichever it is."""
    for dtype in HALVES:
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            w, optimizer = _wrapped(dtype, compression=compression, op=hvd.Sum)
            for turn in range(2):
                optimizer.zero_grad()
                (w * factor(hvd.rank(), turn, dtype)).sum().backward()
                optimizer.step()
                assert w.grad is not None
                assert w.grad.dtype is dtype
                assert torch.equal(w.grad, torch.stack([factor(r, turn, dtype) for r in ranks()]).sum(0))
            expect_same_everywhere(w)


def check_sums_beyond_the_range_of_fp16() -> None:
    """A sum above 65504 is inf on all ranks, an average of such numbers is not; bf16 holds both."""
    for compression, dtype in (
        (hvd.Compression.none, torch.float16), (hvd.Compression.fp16, torch.float32),
        (hvd.Compression.none, torch.bfloat16), (hvd.Compression.bf16, torch.float32),
    ):  # fmt: skip
        for op in (hvd.Sum, hvd.Average):
            w, optimizer = _wrapped(dtype, op=op, compression=compression)
            (w * 40_960.0).sum().backward()
            optimizer.synchronize()
            assert w.grad is not None
            is_short = torch.float16 in (dtype, compression.compress(torch.zeros(1, dtype=dtype))[0].dtype)
            total = 40_960.0 * hvd.size()
            wanted = 40_960.0 if op == hvd.Average else float("inf") if is_short and total > 65_504 else total
            assert torch.all(w.grad == wanted), (compression, dtype, op, w.grad[0])
            with optimizer.skip_synchronize():
                optimizer.step()


def _scaled(usage: str, op: int, dtype: torch.dtype, passes: int, bad: float) -> tuple[torch.Tensor, list[float], int]:
    """In window 1 the last rank's first pass is ``bad``."""
    w, optimizer = _wrapped(dtype, op=op, backward_passes_per_step=passes)
    scaler, scales, taken = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2), [], 0
    for window in range(4):
        optimizer.zero_grad()
        for turn in range(passes):
            is_bad = window == 1 and turn == 0 and hvd.rank() == hvd.size() - 1
            scaler.scale((w * factor(hvd.rank(), turn, dtype)).sum().float() * (bad if is_bad else 1.0)).backward()
        if usage != "plain":
            scaler.unscale_(optimizer)
        if usage == "clip":
            torch.nn.utils.clip_grad_norm_([w], 1.0)
        before = w.detach().clone()
        scaler.step(optimizer)
        taken += not torch.equal(w, before)
        scaler.update()
        scales.append(scaler.get_scale())
        expect_same_everywhere(w)
    return w.detach(), scales, taken


def check_scalers_skip_alike() -> None:
    """Inf and NaN on one rank only: each way to use a scaler, each operation, accumulation; nobody waits, all have the same."""
    for dtype in (torch.float32, torch.bfloat16):
        for usage in ("plain", "unscale", "clip"):
            for op in (hvd.Average, hvd.Sum, hvd.Adasum):
                for passes in (1, 2, 3):
                    bad = float("nan" if passes == 2 else "inf")
                    w, scales, taken = _scaled(usage, op, dtype, passes, bad)
                    assert taken == 3, (dtype, usage, op, passes, taken)
                    assert scales == [8.0, 4.0, 4.0, 8.0], (dtype, usage, op, passes, scales)
                    assert torch.all(torch.isfinite(w))


def check_scaled_steps_are_those_of_plain_training() -> None:
    """Scales are powers of two and gradients small integers, so a scaler changes no bit of the sum."""
    for passes in (1, 2, 3):
        w, _, _ = _scaled("plain", hvd.Sum, torch.float32, passes, float("inf"))
        total = sum(factor(rank, turn, torch.float32) for rank in ranks() for turn in range(passes))
        assert torch.equal(w, torch.as_tensor(-3.0 * total))


def check_half_parameters_overflow_alike() -> None:
    """Gradients that are finite on every rank and infinite in their fp16 sum: every rank's scaler sees it and skips."""
    w, optimizer = _wrapped(torch.float16, op=hvd.Sum)
    # Scalers refuse fp16 gradients, so the loss is scaled by hand, as who trains pure fp16 does.
    for scale in (40_000.0, 1.0):
        optimizer.zero_grad()
        (w.float() * scale).sum().backward()
        optimizer.synchronize()
        assert w.grad is not None
        overflows = scale * hvd.size() > 65_504
        assert bool(torch.isinf(w.grad).all()) == overflows
        if overflows:
            continue
        with optimizer.skip_synchronize():
            optimizer.step()
    assert torch.all(torch.isfinite(w))
    expect_same_everywhere(w)


def check_autocast() -> None:
    """The parameters' gradients are fp32 whatever the forward pass computes in: one process on all batches is matched."""
    for dtype in HALVES:
        for clips in (False, True):
            for passes in (1, 2):
                mine, other = _autocast(dtype, clips, passes, True), _autocast(dtype, clips, passes, False)
                for a, b in zip(mine.parameters(), other.parameters(), strict=True):
                    expect_same_everywhere(a)
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def _autocast(dtype: torch.dtype, clips: bool, passes: int, wrapped: bool) -> torch.nn.Module:
    """Each rank's batch goes through the model by itself in one process, too: so its roundings are the same."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    for step in range(3):
        optimizer.zero_grad()
        for rank in [hvd.rank()] if wrapped else ranks():
            for turn in range(passes):
                x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * rank + 10 * step + turn))
                with torch.amp.autocast("cpu", dtype=dtype):
                    y = model(x)
                assert y.dtype is dtype
                ((y.float() - 1) ** 2).mean().backward()
        if wrapped:
            optimizer.synchronize()
        else:
            for p in model.parameters():
                assert p.grad is not None
                p.grad /= hvd.size()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if wrapped:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return model


def check_adasum_in_16_bits() -> None:
    """What steps change is combined as NumPy combines it, within a rounding of the dtype; the ranks agree to the last bit."""
    for dtype, tolerance in ((torch.float16, 4e-3), (torch.bfloat16, 4e-2)):
        for compression in (hvd.Compression.none, hvd.Compression.fp16):
            for passes in (1, 2):
                w, optimizer = _wrapped(dtype, op=hvd.Adasum, compression=compression, backward_passes_per_step=passes)
                optimizer.zero_grad()
                for turn in range(passes):
                    (w * factor(hvd.rank(), turn, dtype)).sum().backward()
                optimizer.step()
                changes = [-np.sum([factor(r, t, torch.float64).numpy() for t in range(passes)], 0) for r in ranks()]
                wanted = combine(changes)
                np.testing.assert_allclose(
                    w.detach().double(), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max()
                )
                expect_same_everywhere(w)
