"""Every dtype and reduction on real ranks, bit for bit against the NumPy twin (P31, P30, S10, S12, F17).

What must come out: each host reduces its ranks in their order, with the prescale, in fp32 for 16-bit floats, and rounds once; the
hosts' parts are reduced the same way, with the postscale, which for an average is multiplied by 1/size.  Up to two hosts that
is all there is, whatever the size, the chunks, the helpers and the order of arrival.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator

import horovod.torch as hvd
import numpy as np
import torch
from horovod.native import DType, ReduceOp

from tests.native.twin import FLOATS, Array, random_array, twin

TORCH = {
    DType.UINT8: torch.uint8, DType.INT8: torch.int8, DType.UINT16: torch.uint16, DType.INT16: torch.int16,
    DType.INT32: torch.int32, DType.INT64: torch.int64, DType.FLOAT16: torch.float16, DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64, DType.BOOL: torch.bool, DType.BFLOAT16: torch.bfloat16,
}  # fmt: skip
NATIVE = {
    hvd.Average: ReduceOp.SUM, hvd.Sum: ReduceOp.SUM, hvd.Min: ReduceOp.MIN, hvd.Max: ReduceOp.MAX,
    hvd.Product: ReduceOp.PRODUCT,
}  # fmt: skip
FACTORS = [(1.0, 1.0), (0.5, 3.0), (1 / 3, 1.7)]
COUNTS = [1, 7, 1025]
LARGE = 70_001  # many chunks, and around the ring between hosts


def array_of(dtype: DType, count: int, rank: int) -> Array:
    """Any bit pattern may occur."""
    return random_array(dtype, count, np.random.default_rng((int(dtype), count, rank)))


def tensor_of(dtype: DType, array: Array) -> torch.Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.view(torch.bfloat16) if dtype == DType.BFLOAT16 else tensor


def bits(tensor: torch.Tensor) -> bytes:
    raw = tensor.view(torch.uint8) if tensor.dtype is not torch.bool else tensor.to(torch.uint8)
    return bytes(raw.flatten().tolist()) if raw.numel() < 64 else raw.flatten().numpy().tobytes()


def hosts() -> list[list[int]]:
    """The ranks of each host."""
    found: list[list[int]] = []
    for rank, local in enumerate(hvd.allgather_object(hvd.local_rank(), name="hosts")):
        found += [[rank]] if local == 0 else []
        found[-1] += [rank] if local else []
    return found


def expected(dtype: DType, op: int, count: int, factors: tuple[float, float], places: list[list[int]]) -> Array:
    pre, post = factors
    shift = shift_of(places) if op == hvd.Average and dtype in (DType.FLOAT16, DType.BFLOAT16) else 1
    if op == hvd.Average:
        pre, post = pre / shift, post * (shift / hvd.size())
    parts = [[array_of(dtype, count, rank) for rank in ranks] for ranks in places]
    if len(parts) == 1:
        return twin(dtype, NATIVE[op], parts[0], pre, post)
    return twin(dtype, NATIVE[op], [twin(dtype, NATIVE[op], part, pre, 1.0) for part in parts], 1.0, post)


def shift_of(places: list[list[int]]) -> int:
    """What keeps the sum of any of two hosts' ranks below the largest input: the smallest power of two that does."""
    return 1 << (max(map(len, places)) - 1).bit_length() if len(places) > 1 else 1


def canonical(dtype: DType, array: Array) -> bytes:
    """One rank's NaN may keep what it carries where nothing is computed."""
    tensor = tensor_of(dtype, array)
    return bits(torch.where(tensor.isnan(), torch.nan, tensor)) if dtype in FLOATS else bits(tensor)


def cases() -> Iterator[tuple[DType, int, int, tuple[float, float]]]:
    for dtype in DType:
        for op in NATIVE:
            if op == hvd.Average and dtype == DType.BOOL:
                continue
            for count in [*COUNTS, LARGE] if op in (hvd.Average, hvd.Min) else COUNTS:
                for factors in FACTORS if dtype != DType.BOOL else FACTORS[:1]:
                    yield dtype, op, count, factors


def check_bits_of_every_reduction() -> None:
    """Asynchronous, blocking and grouped calls: every rank has the bits of the twin."""
    places = hosts()
    for dtype, op, count, (pre, post) in cases():
        x = tensor_of(dtype, array_of(dtype, count, hvd.rank()))
        wanted = canonical(dtype, expected(dtype, op, count, (pre, post), places))
        name = f"{dtype.name}.{op}.{count}.{pre}"
        got = hvd.allreduce(x, op=op, prescale_factor=pre, postscale_factor=post, name=name)
        in_place = hvd.allreduce_(x.clone(), None, f"{name}.in.place", op, pre, post)
        (grouped,) = hvd.grouped_allreduce([x], op=op, prescale_factor=pre, postscale_factor=post, name=f"{name}.group")
        for result in (got, in_place, grouped):
            assert canonical_tensor(dtype, result) == wanted, (name, places)


def canonical_tensor(dtype: DType, tensor: torch.Tensor) -> bytes:
    return bits(torch.where(tensor.isnan(), torch.nan, tensor)) if dtype in FLOATS else bits(tensor)


def check_reducescatter_bits() -> None:
    """Every rank reduces its part itself, from the inputs in the order of ranks: one rounding, wherever the ranks are."""
    for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT32):
        for op in (hvd.Sum, hvd.Average):
            count = 13 * hvd.size() + 1
            x = tensor_of(dtype, array_of(dtype, count, hvd.rank()))
            got = hvd.reducescatter(x, op=op, name=f"{dtype.name}.{op}", prescale_factor=0.5, postscale_factor=3.0)
            whole = canonical(dtype, expected(dtype, op, count, (0.5, 3.0), [list(range(hvd.size()))]))
            start = (13 * hvd.rank() + min(hvd.rank(), 1)) * x.element_size()
            assert canonical_tensor(dtype, got) == whole[start : start + got.nbytes]


def check_half_averages_neither_overflow_nor_vanish() -> None:
    """P30: alone and grouped, of sizes that leave a tail (S10), where the sum of a host's ranks fits and where it does not."""
    values = [(30000.0, torch.float16), (60000.0, torch.float16), (6e-8, torch.float16), (5e37, torch.bfloat16)]
    for count in (1, 2, 3, 7, 1023, 1025, LARGE):
        for value, dtype in values:
            x = torch.full((count,), value, dtype=dtype)
            guarded = torch.full((count + 2,), value, dtype=dtype)
            hvd.allreduce_(guarded[1:-1], name=f"guarded.{count}.{value}")
            assert torch.equal(guarded, torch.full((count + 2,), value, dtype=dtype)), (count, value)
            assert torch.equal(hvd.grouped_allreduce([x, x], name=f"pair.{count}.{value}")[1], x), (count, value)


def check_digest() -> None:
    """Says what came out of a training step and of sums of all magnitudes, submitted in an order of this run's own."""
    order = random.Random(f"{os.environ.get('CHECK_SEED')}.{hvd.rank()}")
    digest = hashlib.sha256()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(hvd.rank())
        tensors = [
            (torch.randn(997 * (i % 7 + 1), generator=generator) * 10.0 ** (i % 17 - 8)).to(dtype) for i in range(50)
        ]
        places = list(range(50))
        order.shuffle(places)
        handles = {}
        for place in places:
            handles[place] = hvd.allreduce_async(tensors[place], name=f"digest.{dtype}.{place}")
            sum(range(order.randrange(20_000)))  # ranks come at different times
        for place in range(50):
            digest.update(bits(hvd.synchronize(handles[place])))
    for parameter in _trained(order):
        digest.update(bits(parameter.detach()))
    digests = hvd.allgather_object(digest.hexdigest(), name="digest")
    assert len(set(digests)) == 1
    print(f"DIGEST {digest.hexdigest()}", flush=True)


def _trained(order: random.Random) -> list[torch.nn.Parameter]:
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Tanh(), torch.nn.Linear(200, 300))
    table = torch.nn.Embedding(40, 300, sparse=True)
    parameters = [*model.parameters(), *table.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
    generator = torch.Generator().manual_seed(100 + hvd.rank())
    for _ in range(4):
        optimizer.zero_grad()
        rows = torch.randint(0, 40, (30,), generator=generator)
        model(table(rows)).pow(2).mean().backward()
        sum(range(order.randrange(50_000)))
        optimizer.step()
    return parameters
