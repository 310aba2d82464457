"""What only a real GPU can get wrong: kernels run later than Python, on streams, and copies may overtake them.

Each check puts a long wait before the kernel that makes a value, so that whoever reads too early reads something else.
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from tests.torch.devices import DEVICE, same

CYCLES = 200_000_000  # about a tenth of a second
COUNT = 100_000


def late(value: float) -> torch.Tensor:
    """Ones at first, and the value when the current stream has come there."""
    x = torch.ones(COUNT, device=DEVICE)
    torch.cuda.current_stream().synchronize()
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    return x.fill_(value)


def total(factor: float = 1.0) -> torch.Tensor:
    return torch.full((COUNT,), factor * sum(r + 2 for r in range(hvd.size())))


def check_late_values_are_waited_for() -> None:
    mine = float(hvd.rank() + 2)
    joined = torch.cat([torch.full((COUNT,), float(r + 2)) for r in range(hvd.size())])
    assert same(hvd.allreduce(late(mine), op=hvd.Sum), total())
    assert same(hvd.allreduce_(late(mine), op=hvd.Sum), total())
    assert same(hvd.synchronize(hvd.allreduce_async_(late(mine), op=hvd.Sum)), total())
    assert same(hvd.grouped_allreduce([late(mine), late(mine)], op=hvd.Sum)[1], total())
    assert same(hvd.allgather(late(mine)), joined)
    assert same(hvd.broadcast(late(mine), 1), torch.full((COUNT,), 3.0))
    assert same(hvd.alltoall(late(mine)), joined[:: hvd.size()])
    assert same(hvd.reducescatter(late(mine), op=hvd.Sum), total()[: COUNT // hvd.size()])


def check_side_streams() -> None:
    """Started on one stream and waited for on another, with memory that goes back in between."""
    side = torch.cuda.Stream(DEVICE)
    for turn in range(3):
        with torch.cuda.stream(side):
            handle = hvd.allreduce_async(late(float(hvd.rank() + 2)), op=hvd.Sum, name=f"side.{turn}")
        got = hvd.synchronize(handle)
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        doubled = got * 2
        del got
        with torch.cuda.stream(side):
            others = [torch.full((COUNT,), -1.0, device=DEVICE) for _ in range(4)]
        assert same(doubled, total(2.0))
        del others


class _Late(torch.autograd.Function):
    """Its gradient comes late."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        return grads[0] * (hvd.rank() + 2)


def check_late_gradients() -> None:
    """The hook runs in autograd's thread for the device; steps on the default stream and on a side stream."""
    for stream in (torch.cuda.current_stream(DEVICE), torch.cuda.Stream(DEVICE)):
        stream.wait_stream(torch.cuda.current_stream(DEVICE))
        with torch.cuda.stream(stream):
            w = torch.nn.Parameter(torch.zeros(COUNT, device=DEVICE))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)], op=hvd.Sum)
            for _ in range(3):
                optimizer.zero_grad()
                _Late.apply(w).sum().backward()
                optimizer.step()
            assert same(w, total(-3.0))
        torch.cuda.current_stream(DEVICE).wait_stream(stream)


def check_late_batches() -> None:
    layer = hvd.SyncBatchNorm(2).to(DEVICE)
    x = late(float(hvd.rank() + 2)).view(-1, 2)
    parts = torch.cat([torch.full((COUNT // 2, 2), float(r + 2)) for r in range(hvd.size())])
    wanted = torch.nn.functional.batch_norm(parts.double(), None, None, training=True)
    rows = slice(hvd.rank() * COUNT // 2, (hvd.rank() + 1) * COUNT // 2)
    torch.testing.assert_close(layer(x).cpu().double(), wanted[rows], atol=1e-5, rtol=1e-5)


def check_several_devices() -> None:
    """Of one process, where it has them: what comes back is where it was, and the current device stays."""
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    tensors = [torch.full((7,), float(index + hvd.rank()), device=device) for index, device in enumerate(devices)]
    for got, device in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), devices, strict=True):
        assert got.device == device
        assert got.tolist() == [float(sum(device.index + r for r in range(hvd.size())))] * 7
    assert torch.cuda.current_device() == DEVICE.index


def check_captured_steps() -> None:
    """A graph that is captured after rates and state came from the root reads what they are then."""
    w = torch.nn.Parameter(torch.ones(4, device=DEVICE))
    rate = torch.tensor(0.5 * (hvd.rank() + 1), device=DEVICE)
    optimizer = torch.optim.Adam([w], lr=rate, capturable=True)
    w.grad = torch.ones_like(w)
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    hvd.broadcast_parameters([("w", w)], 0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    hvd.broadcast_optimizer_state(optimizer, 0)  # into the same tensors
    graph.replay()
    torch.cuda.synchronize()
    assert rate.item() == 0.5
    torch.testing.assert_close(w.detach().cpu(), torch.full((4,), 1 - 3 * 0.5), atol=1e-4, rtol=0)
