"""ElasticSampler on real ranks: every sample once, the same order everywhere, and what is left after a restart."""

from __future__ import annotations

import copy

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, DistributedSampler

ElasticSampler = hvd.elastic.ElasticSampler


def ranks() -> range:
    return range(hvd.size())


def samples(sampler: torch.utils.data.Sampler[int]) -> list[list[int]]:
    """What each rank would process."""
    parts: list[list[int]] = hvd.allgather_object(list(sampler))
    return parts


def check_an_epoch_has_every_sample() -> None:
    for count in (0, 1, 7, 24):
        for shuffle in (False, True):
            sampler = ElasticSampler(range(count), shuffle=shuffle, seed=3)
            parts = samples(sampler)
            assert {len(part) for part in parts} == {len(sampler)} == {-(-count // hvd.size())}
            together = [index for row in zip(*parts, strict=True) for index in row]
            assert sorted(set(together)) == list(range(count))
            assert together[count:] == (together * 2)[: len(together) - count]  # the first ones are repeated
            if not shuffle:
                assert together[:count] == list(range(count))


def check_epochs_have_other_orders() -> None:
    sampler = ElasticSampler(range(50), seed=1)
    first = samples(sampler)
    assert samples(sampler) == first
    sampler.set_epoch(1)
    second = samples(sampler)
    assert second != first
    sampler.set_epoch(0)
    assert samples(sampler) == first
    other = ElasticSampler(range(50), seed=1)
    other.set_epoch(1)
    assert samples(other) == second


def check_progress_is_taken_over() -> None:
    sampler = ElasticSampler(range(40), seed=5)
    seen: list[int] = []
    for batch_idx, batch in enumerate(DataLoader(torch.arange(40), batch_size=2, sampler=sampler)):
        sampler.record_batch(batch_idx, len(batch))
        seen += [i for part in hvd.allgather_object(batch.tolist()) for i in part]
        if batch_idx == 2:
            break
    state = sampler.state_dict()
    assert state == {"epoch": 0, "processed_num": 6 * hvd.size()}
    assert hvd.allgather_object(state) == [state] * hvd.size()
    restored = ElasticSampler(range(40), seed=5)
    restored.load_state_dict(copy.deepcopy(state))
    left = [i for part in samples(restored) for i in part]
    assert sorted(set(seen) | set(left)) == list(range(40))
    assert not set(seen) & set(left)
    sampler.reset()
    assert [i for part in samples(sampler) for i in part] == left
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 1, "processed_num": 0}
    assert len(sampler) == -(-40 // hvd.size())


def check_a_finished_epoch_is_empty() -> None:
    sampler = ElasticSampler(range(6))
    sampler.load_state_dict({"epoch": 0, "processed_num": 8})
    assert len(sampler) == 0
    assert list(sampler) == []


def check_evaluation_without_padding() -> None:
    """P40: as the guide has it, every sample counts once, and a rank without samples holds nobody up."""
    values = torch.arange(10.0)
    mine = range(hvd.rank(), 10, hvd.size())
    sums = torch.zeros(2, dtype=torch.float64)
    for index in mine:
        sums += torch.tensor([values[index].double(), 1.0])
    total, count = hvd.allreduce(sums, op=hvd.Sum, name="evaluation").tolist()
    assert (count, total / count) == (10, 4.5)


def check_distributed_sampler() -> None:
    """Torch's own sampler, as the guide has it."""
    sampler: DistributedSampler[int] = DistributedSampler(
        range(11), num_replicas=hvd.size(), rank=hvd.rank(), shuffle=True, seed=2
    )
    sampler.set_epoch(1)
    parts = samples(sampler)
    assert {index for part in parts for index in part} == set(range(11))
    assert len({len(part) for part in parts}) == 1


def check_generators_in_broadcast_parameters() -> None:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_parameters(model.named_buffers(), root_rank=0)
    hvd.broadcast_parameters((p for p in model.parameters()), root_rank=0)
    texts = hvd.allgather_object([p.tolist() for p in model.parameters()])
    assert all(text == texts[0] for text in texts)
