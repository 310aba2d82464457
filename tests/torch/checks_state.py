"""Parameters, optimizer state and objects on real ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import numpy as np
import pytest
import torch
from horovod.common import objects


def check_broadcast_parameters() -> None:
    for root in range(hvd.size()):
        torch.manual_seed(hvd.rank())
        model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
        model.to(memory_format=torch.channels_last)
        torch.manual_seed(root)
        wanted = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).state_dict()
        hvd.broadcast_parameters(model.state_dict(), root)
        assert all(torch.equal(value, wanted[key]) for key, value in model.state_dict().items())
        for form in [
            lambda m: m.named_parameters(),
            lambda m: list(m.named_parameters()),
            lambda m: list(m.parameters()),
        ]:
            for p in model.parameters():
                p.data.fill_(hvd.rank())
            hvd.broadcast_parameters(form(model), root)
            assert all(torch.all(p == root) for p in model.parameters())
    for wrong in [3, "text", torch.ones(2), {"a": 3}, [("a", 3)]]:
        with pytest.raises(ValueError, match="invalid params of type"):
            hvd.broadcast_parameters(wrong, 0)


def _stepped(
    make: Callable[..., torch.optim.Optimizer], steps: int, **options: Any
) -> tuple[Any, torch.optim.Optimizer]:
    w = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    optimizer = make([w], **options)
    for _ in range(steps):
        optimizer.zero_grad()
        (w.sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
    return w, optimizer


def check_optimizer_state_of_many_kinds() -> None:
    """S19, S22: empty state too, every option, any root; parameters are left alone."""
    root = hvd.size() - 1
    for make, extra in [
        (torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {}), (torch.optim.RMSprop, {}), (torch.optim.Adagrad, {}), (torch.optim.ASGD, {}),
    ]:  # fmt: skip
        for steps_of in [lambda r: 2, lambda r: 2 * (r == root), lambda r: 2 * (r != root)]:
            w, optimizer = _stepped(make, steps_of(hvd.rank()), lr=0.1 * (hvd.rank() + 1), weight_decay=0.01, **extra)
            before, group = w.detach().clone(), optimizer.param_groups[0]
            theirs = hvd.broadcast_object(optimizer.state_dict(), root)
            hvd.broadcast_optimizer_state(optimizer, root)
            mine = optimizer.state_dict()
            assert torch.equal(w, before)
            assert optimizer.param_groups[0] is group
            assert mine["param_groups"] == theirs["param_groups"]
            assert mine["state"].keys() == theirs["state"].keys()
            for index, entries in theirs["state"].items():
                for key, value in entries.items():
                    got = mine["state"][index][key]
                    assert torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value, (make, key)
            optimizer.zero_grad()
            w.sum().backward()
            optimizer.step()


def check_none_in_state() -> None:
    """S21: None is sent as it is."""
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    optimizer.state[w]["momentum_buffer"] = None if hvd.rank() == 0 else torch.ones(2)
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.state[w]["momentum_buffer"] is None
    optimizer.state[w]["momentum_buffer"] = torch.full((2,), 5.0) if hvd.rank() == 0 else None
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert torch.equal(optimizer.state[w]["momentum_buffer"], torch.full((2,), 5.0))


def check_refused_states() -> None:
    """S24: refused on all ranks."""
    w = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([w]), 0)
    with pytest.raises(ValueError, match="root"):
        hvd.broadcast_optimizer_state(torch.optim.SGD([w], lr=0.1), hvd.size())
    if hvd.size() > 1:
        mine = [torch.nn.Parameter(torch.ones(2)) for _ in range(1 + (hvd.rank() == 1))]
        with pytest.raises(ValueError, match="different parameters"):
            hvd.broadcast_optimizer_state(torch.optim.SGD(mine, lr=0.1), 0)


def check_state_of_a_wrapped_optimizer() -> None:
    w, optimizer = _stepped(torch.optim.Adam, 2 * (hvd.rank() == 0), lr=0.1 * (hvd.rank() + 1))
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=[("w", w)])
    hvd.broadcast_optimizer_state(optimizer, 0)
    hvd.broadcast_parameters([("w", w)], 0)
    for _ in range(2):
        optimizer.zero_grad()
        (w.sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
    everywhere = hvd.allgather(w.detach().reshape(1, -1))
    assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere))


def check_objects() -> None:
    for root in range(hvd.size()):
        sent = {"rank": hvd.rank(), "data": np.arange(1000 * (hvd.rank() + 1))} if hvd.rank() == root else None
        got = hvd.broadcast_object(sent, root)
        assert got["rank"] == root
        assert np.array_equal(got["data"], np.arange(1000 * (root + 1)))
    assert hvd.broadcast_object(lambda x: x + 1, 0, name="function")(2) == 3
    gathered = hvd.allgather_object("x" * hvd.rank())
    assert gathered == ["x" * r for r in range(hvd.size())]
    assert hvd.allgather_object(None, name="nothing") == [None] * hvd.size()


def check_objects_in_pieces() -> None:
    """S11: an object that is larger than a piece, and others that end before it, at it and behind it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_PIECE_BYTES", 1000)
        for extra in (-200, 0, 1, 940, 5000):
            sent = bytes(range(256)) * 4 + bytes(1000 + extra * (hvd.rank() + 1))
            wanted = [bytes(range(256)) * 4 + bytes(1000 + extra * (r + 1)) for r in range(hvd.size())]
            assert hvd.allgather_object(sent, name="pieces") == wanted
            assert hvd.broadcast_object(sent, hvd.size() - 1, name="pieces") == wanted[-1]
        failing = threading.Lock() if hvd.rank() == hvd.size() - 1 else bytes(3000)
        with pytest.raises(ValueError, match=f"rank {hvd.size() - 1}: TypeError"):
            hvd.allgather_object(failing, name="pieces")


def check_process_set_must_be_registered() -> None:
    with pytest.raises(TypeError, match="not registered"):
        hvd.allreduce(torch.ones(2), process_set=hvd.ProcessSet([0]))


def check_shutdown_and_init_again() -> None:
    """S46: calls in between are refused at once."""
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), op=hvd.Sum)
    for turn in range(3):
        w.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.all(w == -float(hvd.size()) * (turn + 1))
        size = hvd.size()
        hvd.barrier()
        hvd.shutdown()
        with pytest.raises(hvd.HorovodInternalError, match="init"):
            hvd.allreduce(torch.ones(1))
        with pytest.raises(hvd.HorovodInternalError, match="init"):
            optimizer.step()
        with pytest.raises(ValueError, match="init"):
            hvd.rank()
        hvd.init()
        assert hvd.size() == size
