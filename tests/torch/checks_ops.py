"""Operations on real ranks; every expected value is computed from the formula of the inputs."""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
import pytest
import torch
from horovod.torch.scatter_ops import rows_of

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def ranks() -> range:
    return range(hvd.size())


def mine(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers that differ by rank and place, exact in every dtype."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((torch.arange(count) * 3 + rank * 5) % 7).reshape(shape).to(dtype)


def total(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.stack([mine(r, shape, torch.float64) for r in ranks()]).sum(0).to(dtype)


def check_allreduce_dtypes_and_shapes() -> None:
    for dtype in FLOATS + INTEGERS:
        for shape in [(), (0,), (1,), (7,), (3, 4), (1025,), (2, 0, 3)]:
            x = mine(hvd.rank(), shape, dtype)
            before = x.clone()
            got = hvd.allreduce(x, op=hvd.Sum)
            assert got.dtype == dtype
            assert got.shape == x.shape
            assert torch.equal(got, total(shape, dtype)), (dtype, shape)
            assert torch.equal(x, before)
            assert hvd.allreduce_(x, op=hvd.Sum, name=f"in_place.{dtype}.{shape}") is x
            assert torch.equal(x, total(shape, dtype))


def check_allreduce_ops() -> None:
    stacked = torch.stack([mine(r, (5, 3)) + 1 for r in ranks()])
    x = mine(hvd.rank(), (5, 3)) + 1
    assert torch.allclose(hvd.allreduce(x), stacked.mean(0))
    assert torch.equal(hvd.allreduce(x, op=hvd.Min), stacked.min(0).values)
    assert torch.equal(hvd.allreduce(x, op=hvd.Max), stacked.max(0).values)
    assert torch.equal(hvd.allreduce(x, op=hvd.Product), stacked.prod(0))
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), stacked.sum(0))
    flags = torch.tensor([hvd.rank() == 0, False, True])
    assert hvd.allreduce(flags, op=hvd.Sum).tolist() == [True, False, True]
    assert hvd.allreduce(flags, op=hvd.Min).tolist() == [hvd.size() == 1, False, True]


def check_average_argument_warns() -> None:
    x = torch.ones(2) * (hvd.rank() + 1)
    with pytest.warns(DeprecationWarning, match="average"):
        got = hvd.allreduce(x, average=False)
    assert torch.equal(got, torch.full((2,), float(sum(r + 1 for r in ranks()))))
    with pytest.raises(ValueError, match="average"):
        hvd.allreduce(x, average=True, op=hvd.Sum)


def check_strided_tensors() -> None:
    """S06: strided tensors are taken; in place only the view is written."""
    base = mine(hvd.rank(), (6, 8))
    expected = total((6, 8))
    for view in [lambda t: t.T, lambda t: t[:, ::2], lambda t: t[1::2]]:
        x = base.clone()
        got = hvd.allreduce(view(x), op=hvd.Sum)
        assert torch.equal(got, view(expected))
        assert torch.equal(x, base)
        hvd.allreduce_(view(x), op=hvd.Sum)
        assert torch.equal(view(x), view(expected))
        untouched = torch.ones_like(x, dtype=torch.bool)
        view(untouched).fill_(False)
        assert torch.equal(x[untouched], base[untouched])
    nhwc = mine(hvd.rank(), (2, 3, 4, 5)).to(memory_format=torch.channels_last)
    got = hvd.allreduce(nhwc, op=hvd.Sum)
    assert got.stride() == nhwc.stride()
    assert torch.equal(got, total((2, 3, 4, 5)))


def check_different_strides_meet() -> None:
    """S07: values meet by their place in the tensor, not in memory."""
    x = torch.arange(16.0).view(4, 4)
    x = x if hvd.rank() else x.T.contiguous().T
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum), torch.arange(16.0).view(4, 4) * hvd.size())
    assert torch.equal(hvd.broadcast(x, 0), torch.arange(16.0).view(4, 4))


def check_expanded_tensors() -> None:
    x = torch.tensor([float(hvd.rank())]).expand(4)
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum), torch.full((4,), float(sum(ranks()))))
    with pytest.raises(ValueError, match="expanded"):
        hvd.allreduce_(x)


def check_leaf_in_place() -> None:
    """S52: parameters can be written in place."""
    x = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    hvd.allreduce_(x, op=hvd.Sum)
    assert torch.equal(x.data, torch.full((3,), float(sum(ranks()))))
    x = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    hvd.broadcast_(x, hvd.size() - 1)
    assert torch.equal(x.data, torch.full((3,), float(hvd.size() - 1)))
    y = torch.full((2, 3), float(hvd.rank()), requires_grad=True)
    hvd.synchronize(hvd.allreduce_async_(y.detach().T, op=hvd.Sum))
    assert torch.equal(y.detach(), torch.full((2, 3), float(sum(ranks()))))


def check_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="torch"):
        hvd.allreduce_(np.ones(2, dtype=np.float32))
    with pytest.raises(ValueError, match="meta device has no data"):
        hvd.allreduce(torch.ones(2, device="meta"))


def check_async_many_out_of_order() -> None:
    order = list(range(20)) if hvd.rank() == 0 else list(reversed(range(20)))
    handles = {i: hvd.allreduce_async(torch.full((i + 1,), float(i)), name=f"many.{i}", op=hvd.Sum) for i in order}
    for i in range(20):
        assert torch.equal(hvd.synchronize(handles[i]), torch.full((i + 1,), float(i * hvd.size())))
    assert hvd.synchronize(handles[0]) is None
    with pytest.raises(ValueError, match="Handle"):
        hvd.poll(handles[0])
    handle = hvd.allreduce_async(torch.ones(2))
    while not hvd.poll(handle):
        pass
    assert torch.equal(hvd.synchronize(handle), torch.ones(2))


def check_ranks_have_the_same_bits() -> None:
    """P31: sums of numbers of all magnitudes, submitted in other orders, are equal to the last bit on all ranks."""
    for dtype in FLOATS:
        generator = torch.Generator().manual_seed(hvd.rank())
        tensors = [torch.randn(50 + i, generator=generator) * 10.0 ** (i % 17 - 8) for i in range(50)]
        order = sorted(range(50), key=lambda i: (i * 7 + hvd.rank() * 11) % 50)
        handles = {i: hvd.allreduce_async(tensors[i].to(dtype), name=f"bits.{dtype}.{i}") for i in order}
        got = torch.cat([hvd.synchronize(handles[i]) for i in range(50)])
        everywhere = hvd.allgather(got.unsqueeze(0).view(torch.uint8))
        assert torch.equal(everywhere, everywhere[:1].expand_as(everywhere)), dtype


def check_unnamed_loop() -> None:
    handles = [hvd.allreduce_async(torch.full((4,), float(i + hvd.rank())), op=hvd.Sum) for i in range(50)]
    for i, handle in enumerate(handles):
        assert hvd.synchronize(handle)[0] == sum(i + r for r in ranks())


def check_duplicate_name() -> None:
    """A name in flight is refused on the second submit; the first operation goes on."""
    if hvd.size() == 1:
        return
    if hvd.rank() == 0:
        first = hvd.allreduce_async(torch.ones(3), name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(torch.ones(3), name="twice")
    hvd.barrier()
    if hvd.rank() > 0:
        first = hvd.allreduce_async(torch.ones(3), name="twice")
        with pytest.raises(ValueError, match="split"):  # a refused call here too: it advances automatic names
            hvd.alltoall(torch.ones(3), [-1])
    assert torch.equal(hvd.synchronize(first), torch.ones(3))


def check_mismatch_is_told_to_all() -> None:
    """P16, S18: the same error on all ranks, and the next correct call works."""
    if hvd.size() == 1:
        return
    for wrong in [torch.ones(3 + (hvd.rank() == 0)), torch.ones(3).to([torch.int32, torch.float32][hvd.rank() > 0])]:
        with pytest.raises(hvd.HorovodInternalError, match="ismatched"):
            hvd.allreduce(wrong, name="wrong")
    op = hvd.Sum if hvd.rank() else hvd.Average
    with pytest.raises(hvd.HorovodInternalError, match="ismatched"):
        hvd.allreduce(torch.ones(3), name="wrong", op=op)
    with pytest.raises(hvd.HorovodInternalError, match="ismatched"):
        hvd.broadcast(torch.ones(3), root_rank=min(hvd.rank(), 1), name="wrong")
    assert torch.equal(hvd.allreduce(torch.ones(3), name="wrong"), torch.ones(3))


def check_grouped_allreduce() -> None:
    shapes = [(3,), (), (2, 5), (0,), (17,)]
    inputs = [mine(hvd.rank(), shape) for shape in shapes]
    got = hvd.grouped_allreduce(inputs, op=hvd.Sum)
    assert isinstance(got, list)
    assert all(torch.equal(a, total(shape)) for a, shape in zip(got, shapes, strict=True))
    done = hvd.grouped_allreduce_(inputs, op=hvd.Sum, name="group")
    assert isinstance(done, tuple)
    assert all(a is b and torch.equal(a, total(shape)) for a, b, shape in zip(done, inputs, shapes, strict=True))
    mixed = [mine(hvd.rank(), (4,)), mine(hvd.rank(), (5,), torch.float16), mine(hvd.rank(), (6,), torch.int64)]
    for name in [None, "mixed"]:
        got = hvd.grouped_allreduce(mixed, op=hvd.Sum, name=name)
        assert all(torch.equal(a, total(tuple(b.shape), b.dtype)) for a, b in zip(got, mixed, strict=True))
    assert hvd.grouped_allreduce([]) == []


def check_allgather() -> None:
    for dtype in [*FLOATS, *INTEGERS, torch.bool]:
        x = torch.full((hvd.rank() + 1, 2), hvd.rank() + 1).to(dtype)
        got = hvd.allgather(x)
        wanted = torch.cat([torch.full((r + 1, 2), r + 1) for r in ranks()]).to(dtype)
        assert torch.equal(got, wanted)
    empty = torch.zeros((0, 3)) if hvd.rank() == 0 else torch.ones((2, 3))
    assert hvd.allgather(empty, name="empty").shape == (2 * (hvd.size() - 1), 3)
    sizes = [hvd.allgather(torch.zeros(step * hvd.rank()), name="varying").shape[0] for step in range(5)]
    assert sizes == [step * sum(ranks()) for step in range(5)]


def check_grouped_allgather() -> None:
    inputs = [torch.full((hvd.rank() + 1,), hvd.rank()), torch.full((2, 2), float(hvd.rank())), torch.ones(0)]
    got = hvd.grouped_allgather(inputs)
    assert isinstance(got, tuple)
    assert torch.equal(got[0], torch.cat([torch.full((r + 1,), r) for r in ranks()]))
    assert torch.equal(got[1], torch.cat([torch.full((2, 2), float(r)) for r in ranks()]))
    assert got[2].shape == (0,)
    got = hvd.synchronize(hvd.grouped_allgather_async(inputs[1:], name="two"))
    assert [tuple(t.shape) for t in got] == [(2 * hvd.size(), 2), (0,)]


def check_scalars_are_refused() -> None:
    scalar = torch.tensor(1.0)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allgather(scalar, name="scalar")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.alltoall(scalar, name="scalar")
    with pytest.raises(ValueError, match="reshape"):
        hvd.reducescatter(scalar)
    assert torch.equal(hvd.allgather(torch.ones(1), name="scalar"), torch.ones(hvd.size()))


def check_broadcast() -> None:
    for root in ranks():
        for dtype in [*FLOATS, *INTEGERS, torch.bool]:
            x = torch.full((3, 2), hvd.rank()).to(dtype)
            got = hvd.broadcast(x, root)
            assert torch.equal(got, torch.full((3, 2), root).to(dtype))
            assert got is not x
            assert torch.equal(x, torch.full((3, 2), hvd.rank()).to(dtype))
            assert hvd.broadcast_(x, root) is x
            assert torch.equal(x, got)
        strided = torch.full((4, 4), float(hvd.rank()))
        hvd.broadcast_(strided[:, ::2], root, name="strided")
        assert torch.all(strided[:, ::2] == root)
        assert torch.all(strided[:, 1::2] == hvd.rank())
        assert hvd.broadcast(torch.tensor(hvd.rank()), root).item() == root
        assert hvd.broadcast(torch.empty(0), root).numel() == 0
    with pytest.raises(ValueError, match="root"):
        hvd.broadcast(torch.ones(1), hvd.size())


def check_alltoall() -> None:
    """S04, S05: any splits, also of nothing; what came from whom is returned."""
    size, rank = hvd.size(), hvd.rank()
    x = torch.arange(size * 2 * 3).reshape(size * 2, 3) + 100 * rank
    got = hvd.alltoall(x)
    assert torch.equal(
        got,
        torch.cat([torch.arange(size * 6).reshape(size * 2, 3)[2 * rank : 2 * rank + 2] + 100 * r for r in ranks()]),
    )
    splits = [(rank + to) % 3 for to in ranks()]
    rows = torch.full((sum(splits) + 1, 2), float(rank))
    for given in [splits, torch.tensor(splits), torch.tensor(splits, dtype=torch.int32)]:
        got, received = hvd.alltoall(rows, given)
        assert received.dtype == torch.int32
        assert received.tolist() == [(r + rank) % 3 for r in ranks()]
        assert torch.equal(got[:, 0], torch.cat([torch.full(((r + rank) % 3,), float(r)) for r in ranks()]))
    got, received = hvd.synchronize(hvd.alltoall_async(torch.empty((0, 4)), [0] * size))
    assert got.shape == (0, 4)
    assert received.tolist() == [0] * size
    for wrong in [[1] * (size + 1), [100] * size, [-1] + [0] * (size - 1), torch.ones(size)]:
        with pytest.raises(ValueError, match="split"):
            hvd.alltoall(rows, wrong)
    if size > 1:
        with pytest.raises(ValueError, match="evenly"):
            hvd.alltoall(torch.ones(size * 2 + 1))


def check_reducescatter() -> None:
    for rows in [0, 1, 4, 5]:
        for op in [hvd.Sum, hvd.Average]:
            x = mine(hvd.rank(), (rows, 3))
            wanted = total((rows, 3)) / (hvd.size() if op == hvd.Average else 1)
            first, count = rows_of(rows, hvd.size(), hvd.rank())
            assert torch.allclose(hvd.reducescatter(x, op=op), wanted[first : first + count])
    inputs = [mine(hvd.rank(), (5,)), mine(hvd.rank(), (3, 2)), mine(hvd.rank(), (4,), torch.float64)]
    got = hvd.grouped_reducescatter(inputs, op=hvd.Sum)
    for a, x in zip(got, inputs, strict=True):
        first, count = rows_of(len(x), hvd.size(), hvd.rank())
        assert torch.equal(a, total(tuple(x.shape), x.dtype)[first : first + count])
    scaled = hvd.reducescatter(torch.ones(4), op=hvd.Sum, prescale_factor=3.0, postscale_factor=0.5)
    assert torch.all(scaled == 1.5 * hvd.size())
    with pytest.raises(hvd.HorovodInternalError, match="Average and Sum"):
        hvd.reducescatter(torch.ones(4), op=hvd.Max)


def check_sparse_allreduce() -> None:
    where = torch.tensor([[hvd.rank(), 3]])
    x = torch.sparse_coo_tensor(where, torch.ones(2, 2) * (hvd.rank() + 1), (5, 2), check_invariants=False)
    dense = torch.zeros(5, 2)
    for r in ranks():
        dense[r] += r + 1
        dense[3] += r + 1
    assert torch.equal(hvd.sparse_allreduce_async(x, "sparse", hvd.Sum)().to_dense(), dense)
    assert torch.allclose(hvd.sparse_allreduce_async(x, "sparse", hvd.Average)().to_dense(), dense / hvd.size())
    with pytest.raises(ValueError, match="sparse"):
        hvd.allreduce(x)
    with pytest.raises(ValueError, match="sparse"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)


def check_compression() -> None:
    """C03: integers are left alone, the dtype comes back, bf16 keeps large values."""
    x = torch.full((7,), 1.5 + hvd.rank(), dtype=torch.float64)
    wanted = torch.full((7,), sum(1.5 + r for r in ranks()), dtype=torch.float64)
    for compression in [hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16]:
        assert torch.equal(hvd.allreduce(x, compression=compression, op=hvd.Sum), wanted)
        got = hvd.grouped_allreduce([x, x.float()], compression=compression, op=hvd.Sum)
        assert torch.equal(got[0], wanted)
        assert got[1].dtype == torch.float32
    large = torch.full((2,), 1e6)
    assert torch.isinf(hvd.allreduce(large, compression=hvd.Compression.fp16)).all()
    assert torch.allclose(hvd.allreduce(large, compression=hvd.Compression.bf16), large, rtol=0.01)
    assert torch.equal(hvd.allreduce(large.bfloat16(), compression=hvd.Compression.fp16), large.bfloat16())
    assert torch.equal(
        hvd.allreduce(torch.ones(2, dtype=torch.int64), compression=hvd.Compression.fp16),
        torch.ones(2, dtype=torch.int64),
    )


def _gradient(call, shape: tuple[int, ...], weight: float = 1.0) -> torch.Tensor:  # type: ignore[no-untyped-def]
    x = mine(hvd.rank(), shape, torch.float64).requires_grad_()
    y = call(x)
    (y * (weight * (hvd.rank() + 1))).sum().backward()
    assert x.grad is not None
    return x.grad


def check_gradients_of_allreduce() -> None:
    weights = [r + 1.0 for r in ranks()]
    ones = torch.ones(3, 2, dtype=torch.float64)
    assert torch.allclose(_gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), (3, 2)), ones * sum(weights))
    assert torch.allclose(_gradient(lambda x: hvd.allreduce(x), (3, 2)), ones * (sum(weights) / hvd.size()))
    scaled = _gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0), (3, 2))
    assert torch.allclose(scaled, ones * 6 * sum(weights))
    grouped = _gradient(lambda x: sum(hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)), (3, 2))
    assert torch.allclose(grouped, ones * 3 * sum(weights))


def check_gradients_of_gathers() -> None:
    size, rank = hvd.size(), hvd.rank()
    weights = [r + 1.0 for r in ranks()]
    mean = sum(weights) / size
    ones = torch.ones(2 + rank, 3, dtype=torch.float64)
    assert torch.allclose(_gradient(hvd.allgather, (2 + rank, 3)), ones * mean)
    both = _gradient(lambda x: torch.cat([t.flatten() for t in hvd.grouped_allgather([x, x[:1]])]), (2 + rank, 3))
    assert torch.allclose(both[0], ones[0] * 2 * mean)
    assert torch.allclose(both[1:], ones[1:] * mean)
    got = _gradient(lambda x: hvd.broadcast(x, size - 1), (2,))
    assert torch.allclose(got, torch.full((2,), mean if rank == size - 1 else 0.0, dtype=torch.float64))
    splits = [1] * size
    got = _gradient(lambda x: hvd.alltoall(x, splits)[0], (size + 1, 2))
    assert torch.allclose(got, torch.tensor([[w, w] for w in [*weights, 0.0]], dtype=torch.float64))
    got = _gradient(lambda x: hvd.alltoall(x), (size, 2))
    assert torch.allclose(got, torch.tensor([[w, w] for w in weights], dtype=torch.float64))


def check_gradients_of_reducescatter() -> None:
    size = hvd.size()
    owners = [r for r in ranks() for _ in range(rows_of(size + 1, size, r)[1])]
    weights = torch.tensor([owner + 1.0 for owner in owners], dtype=torch.float64)
    assert torch.allclose(_gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (size + 1,)), weights * size)
    assert torch.allclose(_gradient(lambda x: hvd.reducescatter(x), (size + 1,)), weights)
    grouped = _gradient(lambda x: torch.cat(hvd.grouped_reducescatter([x, x], op=hvd.Average)), (size + 1,))
    assert torch.allclose(grouped, weights * 2)


def check_gradcheck_of_the_mean() -> None:
    # With the same input everywhere an average is the identity, so numerical differences must agree.
    x = torch.arange(6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    torch.autograd.gradcheck(lambda t: hvd.allreduce(t * t), (x,))
    torch.autograd.gradgradcheck(lambda t: hvd.allreduce(t * t), (x,))


def check_random_programs() -> None:
    generator = np.random.default_rng(7)
    for step in range(60):
        shape = tuple(int(n) for n in generator.integers(0, 6, size=int(generator.integers(0, 4))))
        dtype = [np.float32, np.float64, np.int32, np.int64][int(generator.integers(4))]
        arrays = [generator.integers(-9, 9, size=shape).astype(dtype) for _ in ranks()]
        x = torch.from_numpy(np.array(arrays[hvd.rank()]))
        assert np.array_equal(
            hvd.allreduce(x, op=hvd.Sum, name=f"random.{step % 7}").numpy(), np.sum(arrays, axis=0, dtype=dtype)
        )
        if shape:
            assert np.array_equal(hvd.allgather(x, name="random").numpy(), np.concatenate(arrays))
