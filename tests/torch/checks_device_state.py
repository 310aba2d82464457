"""Models, optimizer state, objects and elastic states with tensors on a device, and batch normalization over ranks there."""

from __future__ import annotations

import copy
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.torch.elastic import TorchState, handlers
from torch.utils import _pytree

from tests.torch import standin
from tests.torch.checks_batch_norm import CHANNELS, batch_of, pair_of, ranks, uneven, with_an_empty_rank
from tests.torch.checks_device_training import model_of
from tests.torch.devices import DEVICE, same

CPU = torch.device("cpu")


# ---- parameters and objects


def check_broadcast_parameters() -> None:
    for root in ranks():
        wanted = model_of(root).state_dict()
        model = model_of(hvd.rank()).to(DEVICE)
        before = [value.data_ptr() for value in model.state_dict().values()]
        hvd.broadcast_parameters(model.state_dict(), root)
        for name, value in model.state_dict().items():
            assert same(value, wanted[name]), name
        assert [value.data_ptr() for value in model.state_dict().values()] == before
    model = model_of(hvd.rank()).to(DEVICE if hvd.rank() else CPU)  # the root has none
    hvd.broadcast_parameters(model.named_parameters(), 0)
    for name, value in model.named_parameters():
        assert torch.equal(value.detach().cpu(), model_of(0).get_parameter(name))


def check_objects() -> None:
    """With tensors of a device in them: the root's, as it is picklable."""
    value = {"x": torch.full((3,), float(hvd.rank())), "rank": hvd.rank()}
    here = {key: entry.to(DEVICE) if isinstance(entry, torch.Tensor) else entry for key, entry in value.items()}
    got = hvd.broadcast_object(here, 1)
    assert got["rank"] == 1
    assert got["x"].tolist() == [1.0] * 3
    assert [entry["x"].tolist() for entry in hvd.allgather_object(here)] == [[float(r)] * 3 for r in ranks()]


# ---- optimizer state


def _stepped(make: Any, device: torch.device, steps: int, **options: Any) -> tuple[torch.Tensor, torch.optim.Optimizer]:
    w = torch.nn.Parameter(torch.full((3, 2), float(hvd.rank()), device=device))
    optimizer = make([w], lr=0.1 * (hvd.rank() + 1), **options)
    for _ in range(steps):
        (w.sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return w, optimizer


def _on_host(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def _expect_state(w: torch.Tensor, optimizer: torch.optim.Optimizer, wanted: Any, host: set[str]) -> None:
    """The root's values; everything beside the parameter but the entries named in ``host``."""
    state = optimizer.state[w]
    assert state.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(state[key].cpu(), value), key
            assert state[key].device == (CPU if key in host else w.device), key
        else:
            assert state[key] == value, key


def check_optimizer_state() -> None:
    """Also where only the root, or only another rank, has taken steps."""
    for make, options, host in [
        (torch.optim.SGD, {"momentum": 0.9}, set()), (torch.optim.Adam, {"amsgrad": True}, {"step"}),
        (torch.optim.AdamW, {"capturable": True}, set()), (torch.optim.ASGD, {}, set()),
        (torch.optim.NAdam, {}, {"step", "mu_product"}), (torch.optim.RMSprop, {}, {"step"}),
    ]:  # fmt: skip
        for steps_of in (lambda r: 2, lambda r: 2 * r, lambda r: 2 * (not r)):
            w, optimizer = _stepped(make, DEVICE, steps_of(hvd.rank()), **options)
            theirs = hvd.broadcast_object(_on_host(optimizer.state[w]) if optimizer.state else {}, 1)
            hvd.broadcast_optimizer_state(optimizer, 1)
            assert optimizer.param_groups[0]["lr"] == 0.2
            if theirs:
                host_here = {key for key in host if isinstance(theirs[key], torch.Tensor)}
                _expect_state(w, optimizer, theirs, host_here)
            w.sum().backward()
            optimizer.step()


def check_steps_move_to_where_the_root_has_them() -> None:
    """``capturable`` comes from the root, and a step counter on the host would not fit it."""
    for root in ranks():
        w, optimizer = _stepped(torch.optim.Adam, DEVICE, 1, capturable=hvd.rank() == root)
        hvd.broadcast_optimizer_state(optimizer, root)
        assert optimizer.param_groups[0]["capturable"]
        assert optimizer.state[w]["step"].device == DEVICE
        w.sum().backward()
        optimizer.step()


def check_state_of_a_root_without_a_device() -> None:
    """What is like the parameter goes to where the parameter is."""
    for steps in (1, hvd.rank() == 0):
        w, optimizer = _stepped(torch.optim.Adam, DEVICE if hvd.rank() else CPU, int(steps))
        hvd.broadcast_optimizer_state(optimizer, 0)
        assert optimizer.state[w]["exp_avg"].device == w.device
        assert optimizer.state[w]["step"].device == CPU
        w.sum().backward()
        optimizer.step()


def check_rates_that_are_tensors() -> None:
    """They stay where they are, and the same tensors: a captured graph reads them."""
    _, optimizer = _stepped(torch.optim.Adam, DEVICE, 1, capturable=True)
    rate = torch.tensor(0.25 * (hvd.rank() + 1), device=DEVICE)
    optimizer.param_groups[0]["lr"] = rate
    hvd.broadcast_optimizer_state(optimizer, 1)
    assert optimizer.param_groups[0]["lr"] is rate
    assert same(rate, torch.tensor(0.5))
    optimizer.param_groups[0]["lr"] = rate if hvd.rank() == 1 else 0.1
    hvd.broadcast_optimizer_state(optimizer, 1)
    assert same(optimizer.param_groups[0]["lr"], torch.tensor(0.5))


def check_elastic_state() -> None:
    """Save, change, restore, and rank 0's for all; tensors stay the same objects, on the device."""
    model = model_of(hvd.rank()).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = TorchState(model, optimizer, batch=hvd.rank())
    kept = [copy.deepcopy(value).cpu() for value in model.state_dict().values()]
    model(torch.ones(4, 2, 6, 6, device=DEVICE)).sum().backward()
    optimizer.step()
    state.restore()
    for value, wanted in zip(model.state_dict().values(), kept, strict=True):
        assert same(value, wanted)
    assert not optimizer.state
    model(torch.ones(4, 2, 6, 6, device=DEVICE)).sum().backward()
    optimizer.step()
    state.sync()
    assert state.batch == 0
    for value in (*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())):
        first, *others = hvd.allgather_object(value.cpu())
        assert all(torch.equal(first, other) for other in others)
        assert value.device == (DEVICE if value.dim() or value.dtype is torch.int64 else CPU)


def _without_tensors_of_a_device(value: Any, **options: Any) -> Any:
    """They would come to the root's device everywhere, which another rank may not have, or not use."""
    assert all(leaf.is_cpu for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return hvd.broadcast_object(value, **options)


def check_elastic_state_of_lbfgs() -> None:
    """Its history travels as an object, by way of the host."""
    w = torch.nn.Parameter(torch.full((3,), float(hvd.rank() + 1), device=DEVICE))
    optimizer = torch.optim.LBFGS([w], max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (w - 5).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handlers, "broadcast_object", _without_tensors_of_a_device)
        TorchState(optimizer=optimizer).sync()
    direction = optimizer.state[w]["d"]
    assert direction.device == DEVICE
    assert all(torch.equal(direction.cpu(), other) for other in hvd.allgather_object(direction.cpu()))
    optimizer.step(closure)


# ---- batch normalization


def _compare(dims: int, count_of: Any, dtype: torch.dtype, tolerance: float, **options: Any) -> None:
    """On the device against torch's layer on the host, on the joined batch."""
    mine, plain = pair_of(dims, dtype, **options)
    mine.to(DEVICE)
    for turn in range(2):
        parts = [batch_of(r, dims, count_of(r), dtype, turn) for r in ranks()]
        weights = [torch.cos(torch.arange(p.numel(), dtype=dtype)).view(p.shape) for p in parts]
        x = parts[hvd.rank()].to(DEVICE).requires_grad_()
        joined = torch.cat(parts).requires_grad_()
        y, wanted = mine(x), plain(joined)
        before = sum(len(p) for p in parts[: hvd.rank()])
        rows = slice(before, before + len(x))
        assert (y.device, y.dtype) == (DEVICE, dtype)
        torch.testing.assert_close(y.cpu(), wanted[rows], atol=tolerance, rtol=tolerance)
        (y * weights[hvd.rank()].to(DEVICE)).sum().backward()
        (wanted * torch.cat(weights)).sum().backward()
        assert x.grad is not None
        assert joined.grad is not None
        torch.testing.assert_close(x.grad.cpu(), joined.grad[rows], atol=tolerance, rtol=tolerance)
        for name, parameter in mine.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.device == DEVICE
            total = hvd.allreduce(parameter.grad, op=hvd.Sum).cpu()
            torch.testing.assert_close(total, plain.get_parameter(name).grad, atol=20 * tolerance, rtol=20 * tolerance)
        mine.zero_grad()
        plain.zero_grad()
    for name, buffer in mine.named_buffers():
        assert buffer.device == DEVICE
        torch.testing.assert_close(buffer.cpu(), plain.get_buffer(name), atol=tolerance, rtol=tolerance)


def check_batch_norm() -> None:
    for dims in (2, 3, 4, 5):
        _compare(dims, uneven, torch.float64, 1e-10)
    _compare(4, with_an_empty_rank, torch.float64, 1e-10)
    _compare(4, uneven, torch.float32, 1e-5)
    _compare(4, uneven, torch.float64, 1e-10, affine=False)
    _compare(4, uneven, torch.float64, 1e-10, momentum=None)
    _compare(4, uneven, torch.float64, 1e-10, track_running_stats=False)


def check_batch_norm_in_half_precision() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        mine = hvd.SyncBatchNorm(CHANNELS).to(DEVICE)
        parts = [batch_of(r, 4, uneven(r), dtype) for r in ranks()]
        wanted = torch.nn.functional.batch_norm(torch.cat(parts).float(), None, None, training=True)
        before = sum(len(p) for p in parts[: hvd.rank()])
        x = parts[hvd.rank()].to(DEVICE).requires_grad_()
        y = mine(x)
        assert (y.device, y.dtype) == (DEVICE, dtype)
        torch.testing.assert_close(y.float().cpu(), wanted[before : before + len(x)], atol=0.05, rtol=0.05)
        y.sum().backward()
        assert x.grad is not None
        assert (x.grad.device, x.grad.dtype) == (DEVICE, dtype)


def check_batch_norm_where_ranks_have_different_devices() -> None:
    where = CPU if hvd.rank() else DEVICE
    mine, plain = pair_of(4)
    mine.to(where)
    parts = [batch_of(r, 4, uneven(r)) for r in ranks()]
    before = sum(len(p) for p in parts[: hvd.rank()])
    y = mine(parts[hvd.rank()].to(where))
    torch.testing.assert_close(y.cpu(), plain(torch.cat(parts))[before : before + len(y)])


def check_batch_norm_under_a_default_device() -> None:
    mine, plain = pair_of(4)
    parts = [batch_of(r, 4, uneven(r)) for r in ranks()]
    joined = plain(torch.cat(parts))
    before = sum(len(p) for p in parts[: hvd.rank()])
    with torch.device(DEVICE):
        converted = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(torch.nn.BatchNorm2d(CHANNELS)))
        assert all(value.device == DEVICE for value in converted.state_dict().values())
        x = parts[hvd.rank()].to("cpu").requires_grad_()
        y = mine(x)
        y.sum().backward()
    torch.testing.assert_close(y, joined[before : before + len(y)])


def check_devices_without_doubles() -> None:
    """Such as Apple's: statistics are combined in fp64 all the same."""
    if DEVICE.type != standin.NAME:
        return
    with standin.without_doubles():
        with pytest.raises(TypeError, match="float64"):
            torch.ones(2, device=DEVICE).double()
        _compare(4, uneven, torch.float32, 1e-5)
        _compare(4, with_an_empty_rank, torch.float32, 1e-5)
        w, optimizer = _stepped(torch.optim.Adam, DEVICE, hvd.rank())
        hvd.broadcast_optimizer_state(optimizer, 1)
        optimizer = hvd.DistributedOptimizer(optimizer, [("w", w)], compression=hvd.Compression.fp16)
        w.sum().backward()
        optimizer.step()
        x = torch.eye(3, device=DEVICE).to_sparse()
        for _ in range(2):
            x = hvd.sparse_allreduce_async(x, "without.doubles", hvd.Average)()
        assert same(x.to_dense(), torch.eye(3))


def check_converted_models_stay_where_they_are() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(2, CHANNELS, 1), torch.nn.BatchNorm2d(CHANNELS)).to(DEVICE)
    before = list(model.state_dict().values())
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert [value.data_ptr() for value in converted.state_dict().values()] == [value.data_ptr() for value in before]
    out = converted(torch.ones(2, 2, 3, 3, device=DEVICE))
    assert out.device == DEVICE
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        hvd.SyncBatchNorm(CHANNELS).to(DEVICE)(torch.ones(int(hvd.rank() == 0), CHANNELS, device=DEVICE))


# ---- the host's side of a device


def check_pinned_memory() -> None:
    """A batch from a DataLoader with ``pin_memory=True``; torch can pin memory for real devices only."""
    if DEVICE.type == standin.NAME:
        with pytest.raises(RuntimeError):
            torch.ones(2).pin_memory()
        return
    x = torch.full((1000,), float(hvd.rank() + 1)).pin_memory()
    total = float(sum(r + 1 for r in ranks()))
    assert hvd.allreduce(x, op=hvd.Sum).tolist() == [total] * 1000
    assert hvd.allreduce_(x, op=hvd.Sum).is_pinned()
    assert x.to(DEVICE, non_blocking=True).tolist() == [total] * 1000
    assert hvd.allgather(x[:2]).tolist() == [total] * 2 * hvd.size()
