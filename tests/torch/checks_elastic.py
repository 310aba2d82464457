"""TorchState and ``run`` on real ranks: one state everywhere, and what changes of the ranks do to it."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.common.elastic import HostUpdateResult, notification_manager
from horovod.common.exceptions import HostsUpdatedInterrupt

TorchState = hvd.elastic.TorchState


def everywhere(value: Any) -> list[Any]:
    values: list[Any] = hvd.allgather_object(value)
    return values


def assert_same(value: Any) -> None:
    values = everywhere(value)
    assert all(other == values[0] for other in values), values


def flat(model: torch.nn.Module) -> list[float]:
    return [number for p in model.state_dict().values() for number in p.flatten().tolist()]


def trained(steps: int, **options: Any) -> tuple[Any, Any]:
    """Different on each rank."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + hvd.rank()), **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


def check_sync_sends_everything_that_is_registered() -> None:
    """P19: the optimizer has state on some ranks only."""
    model, optimizer = trained(2 * (hvd.rank() == 0))
    other, _ = trained(0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    sampler = hvd.elastic.ElasticSampler(range(11), shuffle=False)
    sampler.record_batch(0, 1 + hvd.rank())
    state: Any = TorchState(
        model, optimizer, other=other, scheduler=scheduler, sampler=sampler, epoch=hvd.rank(),
        nested={"list": [hvd.rank(), {"deep": torch.full((2,), float(hvd.rank()))}]},
    )  # fmt: skip
    state.nested["list"].append(hvd.rank())
    tensors = list(model.state_dict(keep_vars=True).values())
    state.sync()
    for module in (model, other):
        assert_same(flat(module))
    assert all(a is b for a, b in zip(tensors, model.state_dict(keep_vars=True).values(), strict=True))
    assert_same([(k, v.tolist()) for s in optimizer.state_dict()["state"].values() for k, v in s.items()])
    assert_same(str(optimizer.state_dict()["param_groups"]))
    assert_same(scheduler.state_dict())
    assert_same(sampler.state_dict())
    assert (state.epoch, state.nested["list"][0], state.nested["list"][2]) == (0, 0, 0)
    assert state.nested["list"][1]["deep"].tolist() == [0.0, 0.0]
    assert state.model is model
    # What was received is saved: a failure before the first commit comes back to it.
    kept = flat(model)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(7.0)
    state.epoch = 9
    state.restore()
    assert flat(model) == kept
    assert state.epoch == 0


def check_many_bytes_and_strange_names() -> None:
    rank = hvd.rank()
    state: Any = TorchState(big=torch.full((3 << 20,), float(rank)), text={"ä": b"\0" * 3, ("t", 1): {1, 2}}, none=None)
    state.sync()
    assert float(state.big.sum()) == 0.0
    assert state.text == {"ä": b"\0" * 3, ("t", 1): {1, 2}}
    assert state.none is None


class Extra(torch.nn.Module):
    """A module with state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), float(hvd.rank())))
        self.counts = {"seen": hvd.rank()}

    def get_extra_state(self) -> dict[str, int]:
        return self.counts

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.counts = state


def check_extra_state_of_modules() -> None:
    model = Extra()
    state = TorchState(model)
    state.sync()
    assert (model.weight.tolist(), model.counts) == ([0.0, 0.0], {"seen": 0})
    model.counts["seen"] = 5
    state.restore()
    assert model.counts == {"seen": 0}


def check_lbfgs() -> None:
    w = torch.nn.Parameter(torch.full((3,), 1.0 + hvd.rank()))
    optimizer = torch.optim.LBFGS([w], lr=0.5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = ((w - 3) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = TorchState(None, optimizer, w=None)
    state.sync()
    assert_same(str(optimizer.state_dict()["state"]))


def check_one_rank_alone_knows_of_new_hosts() -> None:
    """Commits tell all ranks of what rank 0 was told, and of nothing else."""
    state = TorchState(epoch=0)
    if hvd.rank() == 1:
        state.on_hosts_updated(1, HostUpdateResult.removed)
    state.commit()
    if hvd.rank() == 0:
        state.on_hosts_updated(2, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.commit()
    assert raised.value.skip_sync
    state.commit()


def check_run_meets_again_and_keeps_what_changed() -> None:
    """The ranks leave and meet in a new epoch; progress since the last commit stays, reset callbacks are called."""
    model, optimizer = trained(0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(23))
    state: Any = TorchState(model, optimizer, sampler=sampler, epoch=hvd.rank(), step=0)
    called: list[int] = []
    entered: list[int] = []
    state.register_reset_callbacks([lambda: called.append(hvd.size())])

    @hvd.elastic.run
    def train(state: Any, most: int, told: Any = HostUpdateResult.added) -> str:
        entered.append(state.step)
        while state.step < most:
            optimizer.zero_grad()
            model(torch.full((4, 3), float(hvd.rank() + 1))).square().sum().backward()
            optimizer.step()
            sampler.record_batch(state.step, 2)
            state.step += 1
            if state.step == 3 and len(entered) == 1 and hvd.rank() == 0:
                notification_manager.handle_hosts_updated(10.0, told)
            state.check_host_updates()
        return "done"

    assert train(state, 5) == "done"
    assert entered == [0, 3]
    assert called == [hvd.size()]
    assert (state.epoch, state.step) == (0, 5)
    assert sampler.processed_num == 10 * hvd.size()
    assert_same([p.tolist() for p in model.parameters()])  # running statistics are each rank's own
    assert_same([float(v) for s in optimizer.state_dict()["state"].values() for t in s.values() for v in t.flatten()])


def check_ranks_that_skip_wait_for_nobody() -> None:
    """P18: ranks that need no synchronisation and ranks that need it do the same."""
    synced: list[int] = []

    class Counting(TorchState):
        def sync(self) -> None:
            synced.append(self.step)  # type: ignore[attr-defined]
            super().sync()

    state: Any = Counting(step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        state.step += 1
        if state.step == 1:
            raise HostsUpdatedInterrupt(skip_sync=True)
        if state.step == 2:
            raise HostsUpdatedInterrupt(skip_sync=hvd.rank() == 0)

    train(state)
    assert synced == ([0] if hvd.size() == 1 else [0, 2])


def check_process_sets_are_there_after_a_reset() -> None:
    if hvd.size() == 1:
        return
    hvd.shutdown()
    mine = hvd.ProcessSet([0])
    hvd.init(process_sets=[hvd.ProcessSet([1]), mine])  # the first object is gone at once

    @hvd.elastic.run
    def train(state: Any) -> None:
        state.step += 1
        if state.step == 1:
            raise HostsUpdatedInterrupt
        if mine.included():
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=mine).tolist() == [1.0]

    before = mine.process_set_id
    train(TorchState(step=0))
    assert mine.process_set_id == before == 2
    hvd.barrier()  # a rank outside of the set would end the epoch of those inside
    hvd.shutdown()
    hvd.init()


def check_a_disagreement_ends_at_once() -> None:
    """The first error comes back, as it was, with advice; nothing is tried again, and the ranks are still a job."""
    if hvd.size() == 1:
        return
    attempts: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        attempts.append(state.step)
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="elastic.mismatch")

    with pytest.raises(
        hvd.HorovodInternalError, match=r"(?s)elastic\.mismatch.*ranks of this job are fixed.*checkpoint\.$"
    ):
        train(TorchState(step=0))
    assert attempts == [0]
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [float(hvd.size())]
