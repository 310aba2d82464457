"""Operations of tensors on a device; every expected value is computed on the host from the formula of the inputs.

What comes back is on the device of what went in.  Where memory of a device is read as if it were the host's, ranks end.
"""

from __future__ import annotations

from collections.abc import Callable

import horovod.torch as hvd
import pytest
import torch
from horovod.torch.scatter_ops import rows_of

from tests.torch.checks_ops import FLOATS, INTEGERS, mine, ranks, total
from tests.torch.devices import DEVICE, same

CPU = torch.device("cpu")
VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda t: t.T, lambda t: t[:, ::2], lambda t: t[1::2]]


def here(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return mine(rank, shape, dtype).to(DEVICE)


def check_the_device_is_one() -> None:
    x = torch.ones(3, device=DEVICE)
    assert type(x) is torch.Tensor
    assert not x.is_cpu
    with pytest.raises(TypeError, match="host memory"):
        x.numpy()


def check_allreduce_of_all_dtypes() -> None:
    for dtype in FLOATS + INTEGERS:
        for shape in [(), (0,), (7,), (3, 4), (1025,)]:
            x = here(hvd.rank(), shape, dtype)
            assert same(hvd.allreduce(x, op=hvd.Sum), total(shape, dtype))
            assert same(x, mine(hvd.rank(), shape, dtype))
            assert same(hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum)), total(shape, dtype))
            assert hvd.allreduce_(x, op=hvd.Sum, name=f"in_place.{dtype}.{shape}") is x
            assert same(x, total(shape, dtype))
            y = here(hvd.rank(), shape, dtype)
            assert hvd.synchronize(hvd.allreduce_async_(y, op=hvd.Sum)) is y
            assert same(y, total(shape, dtype))


def check_allreduce_of_other_kinds() -> None:
    stacked = torch.stack([mine(r, (5, 3)) + 1 for r in ranks()])
    x = stacked[hvd.rank()].to(DEVICE)
    assert same(hvd.allreduce(x), hvd.allreduce(x.cpu()))
    assert same(hvd.allreduce(x, op=hvd.Min), stacked.min(0).values)
    assert same(hvd.allreduce(x, op=hvd.Max), stacked.max(0).values)
    assert same(hvd.allreduce(x, op=hvd.Product), stacked.prod(0))
    assert same(hvd.allreduce(x, op=hvd.Adasum), hvd.allreduce(x.cpu(), op=hvd.Adasum))
    assert same(hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), stacked.sum(0))
    assert same(hvd.allreduce(x, compression=hvd.Compression.fp16, op=hvd.Sum), stacked.sum(0))
    z = torch.complex(x, x + 1).conj()
    assert same(hvd.allreduce(z, op=hvd.Sum), torch.complex(stacked, stacked + 1).conj().sum(0).resolve_conj())
    flags = torch.tensor([hvd.rank() == 0, True], device=DEVICE)
    assert hvd.allreduce(flags, op=hvd.Min).tolist() == [hvd.size() == 1, True]


def check_strided_tensors() -> None:
    base, expected = mine(hvd.rank(), (6, 8)), total((6, 8))
    for view in VIEWS:
        x = base.to(DEVICE)
        assert same(hvd.allreduce(view(x), op=hvd.Sum), view(expected))
        hvd.allreduce_(view(x), op=hvd.Sum)
        wanted = base.clone()
        view(wanted).copy_(view(expected))
        assert same(x, wanted)
    nhwc = here(hvd.rank(), (2, 3, 4, 5)).to(memory_format=torch.channels_last)
    got = hvd.allreduce(nhwc, op=hvd.Sum)
    assert got.stride() == nhwc.stride()
    assert same(got, total((2, 3, 4, 5)))
    with pytest.raises(ValueError, match="expanded"):
        hvd.allreduce_(torch.ones(1, device=DEVICE).expand(4))


def check_large_tensors() -> None:
    """More than one chunk."""
    count = 1_500_001
    x = here(hvd.rank(), (count,))
    assert same(hvd.allreduce(x, op=hvd.Sum), total((count,)))
    assert same(hvd.broadcast(x, 1), mine(1, (count,)))
    assert same(hvd.allgather(x), torch.cat([mine(r, (count,)) for r in ranks()]))


def check_groups() -> None:
    """Of several dtypes, and on several devices."""
    shapes = [(3,), (2, 4), (), (1025,)]
    dtypes = [torch.float32, torch.int64, torch.float64, torch.float32]
    wanted = [total(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    def group() -> list[torch.Tensor]:
        return [here(hvd.rank(), shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

    for got in (
        hvd.grouped_allreduce(group(), op=hvd.Sum),
        hvd.grouped_allreduce_(group(), op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(group(), op=hvd.Sum)),
        hvd.synchronize(hvd.grouped_allreduce_async_(group(), op=hvd.Sum)),
    ):
        assert all(same(x, y) for x, y in zip(got, wanted, strict=True))
    mixed = [x.to(CPU if index % 2 else DEVICE) for index, x in enumerate(group())]
    for got in (hvd.grouped_allreduce(mixed, op=hvd.Sum), hvd.grouped_allreduce_(mixed, op=hvd.Sum)):
        assert [x.device for x in got] == [DEVICE, CPU, DEVICE, CPU]
        assert all(torch.equal(x.cpu(), y) for x, y in zip(got, wanted, strict=True))


def check_ranks_on_different_devices() -> None:
    """The host's memory here, a device's there: they meet all the same."""
    where = CPU if hvd.rank() else DEVICE
    x = mine(hvd.rank(), (4, 3)).to(where)
    for got, wanted in [
        (hvd.allreduce(x, op=hvd.Sum), total((4, 3))),
        (hvd.allgather(x), torch.cat([mine(r, (4, 3)) for r in ranks()])),
        (hvd.broadcast(x, 0), mine(0, (4, 3))),
        (hvd.broadcast(x, 1), mine(1, (4, 3))),
    ]:
        assert got.device == where
        assert torch.equal(got.cpu(), wanted)


def check_many_at_once() -> None:
    """Started in one order, waited for in another; what they are made of may be changed and dropped meanwhile."""
    started = []
    for index in range(20):
        x = here(hvd.rank(), (100 + index,))
        started.append(hvd.allreduce_async(x, op=hvd.Sum, name=f"many.{index}"))
        x.fill_(99)
        del x
    for index in reversed(range(20)):
        assert same(hvd.synchronize(started[index]), total((100 + index,)))
    x = here(hvd.rank(), (9,))
    handle = hvd.allreduce_async_(x, op=hvd.Sum, name="polled")
    while not hvd.poll(handle):
        pass
    assert same(hvd.synchronize(handle), total((9,)))


def check_allgather() -> None:
    for dtype in (torch.float32, torch.int8, torch.bfloat16, torch.bool):
        parts = [mine(r, (r + 1, 3), dtype) for r in ranks()]
        x = parts[hvd.rank()].to(DEVICE)
        assert same(hvd.allgather(x), torch.cat(parts))
        assert same(hvd.synchronize(hvd.allgather_async(x.T.contiguous().T)), torch.cat(parts))
        two = hvd.grouped_allgather([x, x.double()])
        assert same(two[0], torch.cat(parts))
        assert same(two[1], torch.cat(parts).double())
    parts = [mine(r, (r, 2)) for r in ranks()]
    assert same(hvd.allgather(parts[hvd.rank()].to(DEVICE)), torch.cat(parts))


def check_broadcast() -> None:
    for root in ranks():
        for dtype in (torch.float64, torch.int32, torch.float16, torch.bool):
            for shape in [(), (0, 2), (3, 5)]:
                x = here(hvd.rank(), shape, dtype)
                assert same(hvd.broadcast(x, root), mine(root, shape, dtype))
                assert same(x, mine(hvd.rank(), shape, dtype))
                assert same(hvd.synchronize(hvd.broadcast_async(x, root)), mine(root, shape, dtype))
                assert hvd.broadcast_(x, root) is x
                assert same(x, mine(root, shape, dtype))
        y = here(hvd.rank(), (4, 6))
        hvd.synchronize(hvd.broadcast_async_(y[:, ::2], root))
        wanted = mine(hvd.rank(), (4, 6))
        wanted[:, ::2] = mine(root, (4, 6))[:, ::2]
        assert same(y, wanted)


def check_alltoall() -> None:
    x = here(hvd.rank(), (2 * hvd.size(), 3))
    wanted = torch.cat([mine(r, (2 * hvd.size(), 3))[2 * hvd.rank() :][:2] for r in ranks()])
    assert same(hvd.alltoall(x), wanted)
    splits = torch.tensor([hvd.rank() + 1] * hvd.size(), dtype=torch.int32)
    rows = (hvd.rank() + 1) * hvd.size()
    wanted = torch.cat([mine(r, ((r + 1) * hvd.size(), 3))[(r + 1) * hvd.rank() :][: r + 1] for r in ranks()])
    for given in (splits.to(DEVICE), splits, splits.tolist()):
        got, received = hvd.alltoall(here(hvd.rank(), (rows, 3)), given)
        assert same(got, wanted)
        assert received.device == (given.device if isinstance(given, torch.Tensor) else CPU)
        assert received.tolist() == [r + 1 for r in ranks()]


def check_reducescatter() -> None:
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        for rows in (0, 1, 7):
            first, count = rows_of(rows, hvd.size(), hvd.rank())
            part = total((rows, 3), dtype)[first : first + count]
            x = here(hvd.rank(), (rows, 3), dtype)
            assert same(hvd.reducescatter(x, op=hvd.Sum), part)
            assert same(hvd.synchronize(hvd.reducescatter_async(x, op=hvd.Sum)), part)
            two = hvd.grouped_reducescatter([x, x.double()], op=hvd.Sum)
            assert same(two[0], part)
            assert same(two[1], part.double())
            assert same(x, mine(hvd.rank(), (rows, 3), dtype))


def _gradient(operation: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> torch.Tensor:
    x = mine(hvd.rank(), (2 * hvd.size(), 3)).to(device).requires_grad_()
    y = operation(x)
    (y * torch.arange(y.numel(), device=device).view(y.shape)).sum().backward()
    assert x.grad is not None
    return x.grad


def check_gradients_flow() -> None:
    operations: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: hvd.allreduce(x, op=hvd.Sum),
        lambda x: hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)[1],
        hvd.allgather,
        lambda x: hvd.grouped_allgather([x, x])[0],
        lambda x: hvd.broadcast(x, 1),
        hvd.alltoall,
        lambda x: hvd.alltoall(x, torch.arange(1, hvd.size() + 1, device=x.device).clamp(max=2))[0],
        hvd.reducescatter,
    ]
    for operation in operations:
        assert same(_gradient(operation, DEVICE), _gradient(operation, CPU))


def check_sparse_tensors() -> None:
    for dtype in (torch.float32, torch.float16, torch.int64):
        for turn in range(3):  # gathered, and from the second on as a dense tensor
            where = torch.tensor([[hvd.rank(), 1, 1, turn], [0, 1, 1, 2]])
            x = torch.sparse_coo_tensor(where, torch.arange(1, 5).to(dtype), (3, 3), check_invariants=False)
            for op in (hvd.Sum, hvd.Average):
                got = hvd.sparse_allreduce_async(x.to(DEVICE), f"device.{dtype}.{op}", op)()
                wanted = hvd.sparse_allreduce_async(x, f"host.{dtype}.{op}", op)()
                assert got.device == DEVICE
                assert same(got.to_dense(), wanted.to_dense()), (dtype, turn, op)


def check_inference_tensors() -> None:
    """Written in place outside inference mode, as those of the host are; strided ones there, too."""
    for device in (DEVICE, CPU):
        with torch.inference_mode():
            x, y = (mine(hvd.rank(), (4, 6)).to(device, copy=True) for _ in range(2))
            rows = y[:, ::2]
        for work, wanted in (
            (lambda t: hvd.allreduce_(t, op=hvd.Sum), total),
            (lambda t: hvd.grouped_allreduce_([t], op=hvd.Sum)[0], lambda shape: hvd.size() * total(shape)),
            (lambda t: hvd.broadcast_(t, 1), lambda shape: hvd.size() * total(shape)),
        ):
            for tensor in (x, rows):
                work(tensor)
            assert torch.equal(x.cpu(), wanted((4, 6)))
            assert torch.equal(rows.cpu(), wanted((4, 6))[:, ::2])


def check_join() -> None:
    if hvd.rank():
        x = here(hvd.rank(), (5,))
        assert same(hvd.allreduce(x, op=hvd.Sum, name="alone"), total((5,)) - mine(0, (5,)))
    assert hvd.join(DEVICE.index) >= 0
    assert same(hvd.allreduce(here(hvd.rank(), (5,)), op=hvd.Sum), total((5,)))


def check_errors_leave_everything_usable() -> None:
    x = torch.ones(2 + hvd.rank(), device=DEVICE)
    with pytest.raises(hvd.HorovodInternalError, match="differing"):
        hvd.allreduce(x, name="differing")
    with pytest.raises(ValueError, match="no average"):
        hvd.allreduce(torch.tensor([True], device=DEVICE))
    with pytest.raises(ValueError, match="dimension 0"):
        hvd.reducescatter(torch.tensor(1.0, device=DEVICE))
    assert same(hvd.allreduce(here(hvd.rank(), (5,)), op=hvd.Sum), total((5,)))


def check_a_default_device() -> None:
    """What the package makes for itself is on the host, whatever device a program has made its default."""
    with torch.device(DEVICE):
        x, host = mine(hvd.rank(), (6, 2)).to(DEVICE), torch.ones(3, device="cpu")
        first, count = rows_of(6, hvd.size(), hvd.rank())
        for got in (
            hvd.allreduce(x, op=hvd.Sum), hvd.allreduce_(x.clone(), op=hvd.Sum, name="default"),
            hvd.allreduce(x.T, op=hvd.Sum).T,
        ):  # fmt: skip
            assert same(got, total((6, 2)).cpu())
        assert hvd.allreduce(host, op=hvd.Sum).tolist() == [hvd.size()] * 3
        assert hvd.allreduce(host.expand(2, 3), op=hvd.Sum).device == CPU
        assert hvd.allgather(host).device == CPU
        assert hvd.broadcast(host, 1).device == CPU
        assert hvd.alltoall(host.repeat(hvd.size())).device == CPU
        assert hvd.alltoall(host, [1] * hvd.size())[1].device == CPU
        assert hvd.reducescatter(host).device == CPU
        assert same(hvd.allgather(x)[:6], mine(0, (6, 2)).cpu())
        assert same(hvd.reducescatter(x, op=hvd.Sum), total((6, 2)).cpu()[first : first + count])
        sparse = torch.eye(3, device="cpu").to_sparse()
        for _ in range(3):
            assert hvd.sparse_allreduce_async(sparse, "default.sparse", hvd.Sum)().device == CPU
            assert hvd.sparse_allreduce_async(sparse.to(DEVICE), "default.device", hvd.Sum)().device == DEVICE
        hvd.allreduce_(torch.ones(4, 4, device="cpu").as_strided((2, 2), (3, 1)))
        hvd.barrier()
        hvd.join()
