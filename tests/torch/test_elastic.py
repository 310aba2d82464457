"""TorchState alone, to the last bit, and whole elastic scripts on real ranks."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.elastic import state as states
from horovod.torch.elastic.state import TorchState

from tests.runner.launcher import launch
from tests.torch.elastic_scripts import FAILS, TUTORIAL

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A world of size 1."""
    hvd.init()
    yield
    hvd.shutdown()


def step(model: Any, optimizer: Any, times: int = 1) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        model(torch.randn(4, 3, dtype=next(model.parameters()).dtype)).square().sum().backward()
        optimizer.step()


def make(kind: Any = torch.optim.Adam, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).to(dtype)
    return model, kind(model.parameters(), **{"lr": 0.1, **options})


def bits(value: Any) -> Any:
    """Something that is equal only for the same dtypes and bits."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.detach().contiguous().flatten().view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {key: bits(entry) for key, entry in value.items()}
    return [bits(entry) for entry in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {"lr": torch.tensor(0.01)}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.NAdam, {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [0, 2])
def test_restored_to_the_last_bit(kind: Any, options: dict[str, Any], dtype: torch.dtype, steps: int) -> None:
    model, optimizer = make(kind, dtype, **options)
    step(model, optimizer, steps)
    wanted = bits(model.state_dict()), bits(optimizer.state_dict())
    state = TorchState(model, optimizer)
    for _ in range(2):  # what was saved survives being restored
        step(model, optimizer, 3)
        optimizer.param_groups[0]["lr"] = 7.0
        assert (bits(model.state_dict()), bits(optimizer.state_dict())) != wanted
        state.restore()
        assert (bits(model.state_dict()), bits(optimizer.state_dict())) == wanted


def test_state_in_another_precision_keeps_it() -> None:
    """Torch casts loaded state to the dtype of the parameter."""
    model, optimizer = make(torch.optim.SGD, torch.bfloat16, momentum=0.9)
    parameter = next(model.parameters())
    optimizer.state[parameter]["momentum_buffer"] = torch.rand(parameter.shape)
    state = TorchState(model, optimizer)
    wanted = bits(optimizer.state_dict())
    optimizer.state[parameter]["momentum_buffer"].zero_()
    state.restore()
    assert bits(optimizer.state_dict()) == wanted


def test_schedulers_still_know_the_groups_after_a_restore() -> None:
    """Also one that was made for the optimizer before it was wrapped."""
    model, plain = make(torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    state: Any = TorchState(model, optimizer, scheduler=scheduler)
    group, held = optimizer.param_groups[0], optimizer.state
    plain.step()
    scheduler.step()
    assert group["lr"] == 0.05
    state.restore()
    assert (group["lr"], scheduler.last_epoch) == (0.1, 0)
    assert optimizer.param_groups[0] is group
    assert optimizer.state is held
    plain.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_objects_with_a_state_dict_stay_the_same_objects() -> None:
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    state: Any = TorchState(model, optimizer, scaler=scaler, other=make()[0], kind=torch.nn.Linear)
    scaler.update(4.0)
    state.other[0].weight.data.zero_()
    state.restore()
    assert state.scaler is scaler
    assert scaler.get_scale() == 8.0
    assert state.other[0].weight.abs().sum() > 0
    assert state.kind is torch.nn.Linear


def test_no_model_and_no_optimizer() -> None:
    state: Any = TorchState(epoch=1)
    state.epoch = 2
    state.restore()
    assert (state.model, state.optimizer, state.epoch) == (None, None, 1)


def test_another_model_takes_the_place_and_is_saved() -> None:
    model, _ = make()
    state: Any = TorchState(model, epoch=0)
    other = torch.nn.Linear(2, 2)
    wanted = bits(other.state_dict())
    state.model, state.epoch = other, 5
    other.weight.data.zero_()
    state.restore()
    assert state.model is other
    assert bits(other.state_dict()) == wanted
    assert state.epoch == 0
    state.model = None
    state.restore()
    assert state.model is None
    state.model = model
    model[0].weight.data.zero_()
    state.restore()
    assert model[0].weight.abs().sum() > 0


class Broken(torch.nn.Linear):
    """Can't be saved when it is told so."""

    broken = False

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self.broken:
            raise RuntimeError("no room")
        return super().state_dict(*args, **kwargs)


@pytest.mark.parametrize("last", ["model", "object"])
def test_a_commit_that_fails_midway_changes_nothing(last: str) -> None:
    """Neither the parts that were copied before it failed, nor those behind."""
    first, optimizer = make()
    state: Any = TorchState(first, optimizer, last=Broken(2, 2), items=[1])
    step(first, optimizer)
    state.commit()
    wanted = [bits(part.state_dict()) for part in (first, optimizer, state.last)]
    step(first, optimizer)
    state.last.weight.data.zero_()
    state.items.append(2)
    state.last.broken = last == "model"
    if last == "object":
        state.items.append(n for n in range(3))
    with pytest.raises((RuntimeError, ValueError), match=r"no room|TorchState\.items can't be copied"):
        state.commit()
    state.last.broken = False
    state.restore()
    assert [bits(part.state_dict()) for part in (first, optimizer, state.last)] == wanted
    assert state.items == [1]


def test_tensors_of_a_graph_are_named() -> None:
    w = torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match=r"TorchState\.loss can't be copied .*detach tensors that are part of a graph"):
        TorchState(loss=w * 2)


def test_samplers_go_on_where_they_were() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=True, seed=3)
    state = TorchState(sampler=sampler)
    order = list(sampler)
    sampler.record_batch(0, 4)
    state.commit()
    sampler.record_batch(1, 4)
    assert len(list(sampler)) == 10  # the order of an epoch that has begun stays
    state.restore()
    assert list(sampler) == order[4:]
    sampler.record_batch(1, 6)
    state.on_reset()
    assert list(sampler) == []


def test_handlers_of_users() -> None:
    class Counter:
        value = 0

    class CounterHandler(states.StateHandler):
        def save(self) -> None:
            self.saved = self.value.value

        def restore(self) -> None:
            self.value.value = self.saved

        def sync(self) -> None:
            self.value.value = hvd.broadcast_object(self.value.value)

    before = states.get_handler_registry()
    assert [kind for kind, _ in before[:2]] == [torch.nn.Module, torch.optim.Optimizer]
    states.set_handler_registry([(Counter, CounterHandler), *before])
    try:
        state: Any = TorchState(counter=Counter())
        counter = state.counter
        counter.value = 3
        state.commit()
        counter.value = 4
        state.restore()
        state.sync()
        assert state.counter is counter
        assert counter.value == 3
    finally:
        states.set_handler_registry(before)
    with pytest.raises(NotImplementedError):
        states.StateHandler(1)


def test_recovery_of_one_process() -> None:
    """Without a launcher: a failure restores, and the second one without a commit between ends."""
    model, optimizer = make()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state: Any = TorchState(model, optimizer, step=0)
    seen: list[tuple[int, Any]] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        seen.append((state.step, bits(model.state_dict())))
        step(model, optimizer)
        state.step += 1
        if len(seen) == 1:
            state.commit()
            seen.append((state.step, copy.deepcopy(bits(model.state_dict()))))
        step(model, optimizer)
        state.step += 1
        raise HorovodInternalError("a peer is gone")

    with pytest.raises(HorovodInternalError, match=r"^a peer is gone It failed again without a commit"):
        train(state)
    assert seen[1] == seen[2]
    assert len(seen) == 3
    assert hvd.is_initialized()


def test_reset_callbacks_of_one_process() -> None:
    state: Any = TorchState(step=0)
    called: list[int] = []
    state.register_reset_callbacks([lambda: called.append(hvd.size())])

    @hvd.elastic.run
    def train(state: Any) -> int:
        state.step += 1
        if state.step < 3:
            raise HostsUpdatedInterrupt
        return int(state.step)

    assert train(state) == 3
    assert called == [1, 1]


def run_script(tmp_path: Path, text: str, size: int) -> Any:
    script = tmp_path / "train.py"
    script.write_text(text)
    return launch("-np", str(size), sys.executable, str(script))


def test_the_tutorial_runs_verbatim(tmp_path: Path) -> None:
    done = run_script(tmp_path, TUTORIAL, 2)
    assert re.findall(r"RESULT (.*)", done.stdout) == ["trained 2 2 3 True True"] * 2, done


def test_a_lost_rank_ends_a_job_whose_ranks_are_fixed(tmp_path: Path) -> None:
    """The first error comes at once, with advice, and the state can still be brought back."""
    done = run_script(tmp_path, FAILS, 2)
    assert done.returncode == 128 + 9
    (caught,) = re.findall(r"CAUGHT (.*)", done.stdout)
    assert re.search(r"^RankLostError \[0\] 2 .*Rank 1 .* killed by signal 9", caught)
    assert "The 2 ranks of this job are fixed" in caught
    assert "checkpoint" in caught
