"""SyncBatchNorm against torch's own layer on the batches of all ranks put together, forward and backward."""

from __future__ import annotations

import copy
import io

import horovod.torch as hvd
import pytest
import torch
from horovod.torch.sync_batch_norm import SyncBatchNorm

from tests.torch.differences import distributed_gradcheck

LAYERS = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
CHANNELS = 3


def ranks() -> range:
    return range(hvd.size())


def batch_of(rank: int, dims: int, count: int, dtype: torch.dtype = torch.float64, turn: int = 0) -> torch.Tensor:
    shape = (count, CHANNELS, *[4, 2, 3][: dims - 2])
    generator = torch.Generator().manual_seed(1000 * turn + 10 * rank + dims)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * (rank + 1) + 5 * rank).to(dtype)


def uneven(rank: int) -> int:
    """2, 6, 2, 6, … samples."""
    return 2 + 4 * (rank % 2)


def with_an_empty_rank(rank: int) -> int:
    """None on the last rank, one on the one before."""
    return [0, 1, 5][min(hvd.size() - 1 - rank, 2)] if hvd.size() > 2 else [4, 0][rank % 2]


def pair_of(dims: int, dtype: torch.dtype = torch.float64, **options: object) -> tuple[SyncBatchNorm, torch.nn.Module]:
    """A layer of each kind, with equal parameters that are not 1 and 0."""
    torch.manual_seed(7)
    plain = LAYERS[dims](CHANNELS, **options).to(dtype)
    if plain.weight is not None:
        with torch.no_grad():
            plain.weight.normal_()
            plain.bias.normal_()
    mine = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    assert isinstance(mine, hvd.SyncBatchNorm)
    return mine, plain


def compare(dims: int, count_of: object, dtype: torch.dtype, tolerance: float, **options: object) -> None:
    mine, plain = pair_of(dims, dtype, **options)
    for turn in range(2):
        parts = [batch_of(r, dims, count_of(r), dtype, turn).requires_grad_() for r in ranks()]  # type: ignore[operator]
        weights = [torch.cos(torch.arange(p.numel(), dtype=dtype)).view(p.shape) for p in parts]
        x = parts[hvd.rank()]
        joined = torch.cat([p.detach() for p in parts]).requires_grad_()
        y, wanted = mine(x), plain(joined)
        before = sum(len(p) for p in parts[: hvd.rank()])
        rows = slice(before, before + len(x))
        assert y.dtype is dtype
        torch.testing.assert_close(y, wanted[rows], atol=tolerance, rtol=tolerance)
        (y * weights[hvd.rank()]).sum().backward()
        (wanted * torch.cat(weights)).sum().backward()
        torch.testing.assert_close(x.grad, joined.grad[rows], atol=tolerance, rtol=tolerance)
        for name, parameter in mine.named_parameters():
            total = hvd.allreduce(parameter.grad, op=hvd.Sum)
            torch.testing.assert_close(total, plain.get_parameter(name).grad, atol=20 * tolerance, rtol=20 * tolerance)
        mine.zero_grad()
        plain.zero_grad()
    for name, buffer in mine.named_buffers():
        torch.testing.assert_close(buffer, plain.get_buffer(name), atol=tolerance, rtol=tolerance)
    same = hvd.allgather_object([buffer.tolist() for buffer in mine.buffers()])
    assert all(entry == same[0] for entry in same)


def check_equals_the_joined_batch() -> None:
    """S49: batches of 2 and 6, with an empty rank; input, weight and bias gradients, running statistics."""
    for dims in LAYERS:
        compare(dims, uneven, torch.float64, 1e-10)
    compare(4, with_an_empty_rank, torch.float64, 1e-10)
    compare(4, uneven, torch.float32, 1e-5)


def check_options() -> None:
    compare(4, uneven, torch.float64, 1e-10, affine=False)
    compare(4, uneven, torch.float64, 1e-10, track_running_stats=False)
    compare(4, uneven, torch.float64, 1e-10, momentum=None)
    compare(4, uneven, torch.float64, 1e-10, momentum=0.3, eps=0.1)


def check_half_precision() -> None:
    for dtype, tolerance in [(torch.bfloat16, 0.05), (torch.float16, 0.01)]:
        mine = hvd.SyncBatchNorm(CHANNELS)
        parts = [batch_of(r, 4, uneven(r), dtype) for r in ranks()]
        wanted = torch.nn.functional.batch_norm(torch.cat(parts).float(), None, None, training=True)
        before = sum(len(p) for p in parts[: hvd.rank()])
        x = parts[hvd.rank()].requires_grad_()
        y = mine(x)
        assert y.dtype is dtype
        torch.testing.assert_close(y.float(), wanted[before : before + len(x)], atol=tolerance, rtol=tolerance)
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype is dtype


def check_gradients_by_differences() -> None:
    """Each element of each rank's batch, against differences of the summed loss."""
    mine, _ = pair_of(3)
    for count_of in (uneven, with_an_empty_rank):
        x = batch_of(hvd.rank(), 3, min(count_of(hvd.rank()), 3))
        distributed_gradcheck(lambda t: mine(t) ** 2, x)


def check_large_means_keep_their_variance() -> None:
    mine = hvd.SyncBatchNorm(1)
    x = torch.tensor([[1e4], [1e4 + 1.0]]) + hvd.rank() * 2
    joined = torch.cat([torch.tensor([[1e4], [1e4 + 1.0]]) + r * 2 for r in ranks()]).double()
    wanted = torch.nn.functional.batch_norm(joined, None, None, training=True)
    torch.testing.assert_close(mine(x).double(), wanted[2 * hvd.rank() :][:2], atol=1e-4, rtol=1e-4)


def check_two_forwards_before_a_backward_in_three_layers() -> None:
    """S49: layers and calls are told apart, whatever order the ranks run backward in."""

    def model() -> torch.nn.Sequential:
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Linear(4, CHANNELS), torch.nn.BatchNorm1d(CHANNELS), torch.nn.Tanh(),
            torch.nn.BatchNorm1d(CHANNELS), torch.nn.Linear(CHANNELS, CHANNELS), torch.nn.BatchNorm1d(CHANNELS),
        ).double()  # fmt: skip

    plain, mine = model(), hvd.SyncBatchNorm.convert_sync_batchnorm(model())
    inputs = [
        [torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * r + turn)).double() for r in ranks()]
        for turn in range(2)
    ]
    if hvd.rank() == 1:
        hvd.SyncBatchNorm(CHANNELS)  # built by one rank alone and never used
    (sum((mine(parts[hvd.rank()]) ** 3).sum() for parts in inputs) / hvd.size()).backward()
    (sum((plain(torch.cat(parts)) ** 3).sum() for parts in inputs) / hvd.size()).backward()
    for name, parameter in mine.named_parameters():
        total = hvd.allreduce(parameter.grad, op=hvd.Sum)
        torch.testing.assert_close(total, plain.get_parameter(name).grad, atol=1e-9, rtol=1e-9)


def check_evaluation_and_copies() -> None:
    mine, plain = pair_of(4)
    x = batch_of(hvd.rank(), 4, 2 + hvd.rank())
    mine.eval()
    plain.eval()
    for _ in range(1 + hvd.rank()):  # no traffic: ranks may call it as often as they like
        torch.testing.assert_close(mine(x), plain(x))
    payload = io.BytesIO()
    torch.save(mine.state_dict(), payload)
    payload.seek(0)
    plain.load_state_dict(torch.load(payload))
    clone = copy.deepcopy(mine).train()
    assert clone.process_set is hvd.global_process_set
    assert clone(x).shape == x.shape
    assert torch.equal(mine.running_mean, plain.running_mean)


def check_conversion() -> None:
    shared = torch.nn.BatchNorm1d(4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), shared, torch.nn.ModuleDict({"again": shared}), torch.nn.ReLU())
    parameters, keys = list(model.parameters()), list(model.state_dict())
    model.eval()
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert isinstance(model[1], hvd.SyncBatchNorm)
    assert model[2]["again"] is model[1]
    assert not model[1].training
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert list(model.state_dict()) == keys
    assert isinstance(hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.SyncBatchNorm(3)), hvd.SyncBatchNorm)
    with pytest.raises(ValueError, match="lazy batch normalization has no size yet"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(torch.nn.LazyBatchNorm1d()))


def check_refusals() -> None:
    layer = hvd.SyncBatchNorm(3)
    with pytest.raises(ValueError, match="at least 2D input"):
        layer(torch.ones(3))
    with pytest.raises(ValueError, match=r"expected 3 channels, got input of size \[2, 4\]"):
        layer(torch.ones(2, 4))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        layer(torch.ones(int(hvd.rank() == 0), 3))
    assert layer(torch.ones(2, 3)).shape == (2, 3)


def check_training_with_the_optimizer() -> None:
    """A network with frozen and thawed normalization ends with the parameters of one process."""

    def model() -> torch.nn.Sequential:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(),
                                   torch.nn.Flatten(), torch.nn.Linear(18, 1)).double()  # fmt: skip

    def images(rank: int, step: int) -> torch.Tensor:
        return torch.randn(4, 1, 5, 5, generator=torch.Generator().manual_seed(rank + 100 * step)).double()

    plain, mine = model(), hvd.SyncBatchNorm.convert_sync_batchnorm(model())
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9))
    for step in range(4):
        for stepped, net in ((reference, plain), (optimizer, mine)):
            net[1].weight.requires_grad_(step != 1)
            stepped.zero_grad()
            x = torch.cat([images(r, step) for r in ranks()]) if net is plain else images(hvd.rank(), step)
            (net(x) ** 2).mean().backward()
            stepped.step()
    for key, value in mine.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], atol=1e-10, rtol=1e-10)
