"""Calls that are refused: the right error on the ranks concerned, and everything works on."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import pytest
import torch

Call = Callable[..., Any]
X = torch.ones(2)

WRONG: list[tuple[str, Call, dict[str, object], dict[str, object]]] = [
    ("root_rank must be a rank", hvd.broadcast, {"root_rank": "0"}, {"root_rank": 0}),
    ("root_rank must be a rank", hvd.broadcast_, {"root_rank": 0.5}, {"root_rank": 0}),
    ("root_rank must be a rank", hvd.broadcast, {"root_rank": None}, {"root_rank": 0}),
    ("root rank -1 is not in", hvd.broadcast, {"root_rank": -1}, {"root_rank": 0}),
    ("root rank 7 is not in", hvd.broadcast, {"root_rank": 7}, {"root_rank": 0}),
    ("root_rank must be a rank", hvd.broadcast_object, {"root_rank": "0"}, {"root_rank": 0}),
    ("root rank -1 is not in", hvd.broadcast_object, {"root_rank": -1}, {"root_rank": 0}),
    ("none of Average", hvd.allreduce, {"op": 1.5}, {"op": 1}),
    ("none of Average", hvd.allreduce, {"op": "sum"}, {"op": 1}),
    ("none of Average", hvd.allreduce_, {"op": 77}, {"op": 1}),
    ("must be numbers", hvd.allreduce, {"prescale_factor": "2"}, {"prescale_factor": 2}),
    ("must be numbers", hvd.allreduce_, {"postscale_factor": float("nan")}, {"postscale_factor": 2}),
    ("must be numbers", hvd.reducescatter, {"prescale_factor": float("nan")}, {}),
    ("not registered", hvd.allgather, {"process_set": hvd.ProcessSet([0])}, {}),
    ("splits", hvd.alltoall, {"splits": [0.5]}, {"splits": [0]}),
    ("splits", hvd.alltoall, {"splits": "x"}, {"splits": [0]}),
    ("splits", hvd.alltoall, {"splits": [-1]}, {"splits": [0]}),
]


def _for_all_ranks(options: dict[str, object]) -> dict[str, object]:
    splits = options.get("splits")
    return {"splits": splits * hvd.size()} if isinstance(splits, (list, str)) else options


def check_a_refused_call_leaves_its_name_free() -> None:
    for number, (text, call, wrong, right) in enumerate(WRONG):
        with pytest.raises((ValueError, TypeError), match=text):
            call(X.clone(), name=f"wrong.{number}", **_for_all_ranks(wrong))
        call(X.clone(), name=f"wrong.{number}", **_for_all_ranks(right))


def check_a_name_that_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="can't be sent"):
        hvd.allreduce(X, name="\ud800")
    assert hvd.allreduce(X, name="\u00e9").tolist() == [1.0, 1.0]


def check_equal_arguments_are_one_operation() -> None:
    """Whichever rank says 1.0 or True first: all of them mean Sum."""
    for number, op in enumerate([1.0, True, 1]):
        mine = op if hvd.rank() else hvd.Sum
        for _ in range(2):
            assert hvd.allreduce(X, op=mine, name=f"equal.{number}").tolist() == [float(hvd.size())] * 2
            assert hvd.allreduce_(X.clone(), op=mine, name=f"equal.{number}").tolist() == [float(hvd.size())] * 2
    for name in (5, 5.0):
        assert hvd.allreduce(X, op=hvd.Sum, name=name).tolist() == [float(hvd.size())] * 2  # type: ignore[arg-type]


def check_nothing_of_a_group_is_submitted_when_a_part_is_wrong() -> None:
    tensors = [torch.ones(2), torch.ones(2, dtype=torch.bool)]
    with pytest.raises(ValueError, match="booleans have no average"):
        hvd.grouped_allreduce(tensors, name="group")
    assert hvd.allreduce(X, name="group").tolist() == [1.0, 1.0]


def check_what_cannot_be_pickled_is_told_to_all() -> None:
    lock, last = threading.Lock(), hvd.size() - 1
    for _ in range(2):
        with pytest.raises(
            ValueError, match=rf"'config.object' was not sent.* rank {last}: TypeError: .*lock"
        ) as caught:
            hvd.broadcast_object(lock if hvd.rank() == last else 3, last, name="config")
        assert isinstance(caught.value.__cause__, TypeError) == (hvd.rank() == last)
        assert hvd.broadcast_object(hvd.rank(), last, name="config") == last
        with pytest.raises(ValueError, match=rf"'config.objects' was not sent.* rank {last}: TypeError: .*lock"):
            hvd.allgather_object(lock if hvd.rank() == last else 3, name="config")
        assert hvd.allgather_object(hvd.rank(), name="config") == list(range(hvd.size()))
    with pytest.raises(ValueError, match=f"rank 0: .*; rank {last}: .*|rank 0: "):
        hvd.allgather_object(lock)


def check_what_cannot_be_unpickled_harms_nobody_else() -> None:
    class Bad:
        def __reduce__(self) -> tuple[object, ...]:
            return (eval, ("1/0",))

    if hvd.rank() == 0:
        hvd.broadcast_object(Bad(), 0)
    else:
        with pytest.raises(ZeroDivisionError):
            hvd.broadcast_object(None, 0)
    assert hvd.broadcast_object(hvd.rank(), 0) == 0


def check_zero_grad_between_backward_and_step() -> None:
    """In the first step as in later ones; nothing is lost, and with one rank it is torch's business."""
    w = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), named_parameters=[("w", w)])
    for step in range(3):
        optimizer.zero_grad()
        (w * (hvd.rank() + 1)).sum().backward()
        if hvd.size() > 1:
            with pytest.raises(AssertionError, match=r"but before optimizer.step\(\) or optimizer.synchronize\(\)"):
                optimizer.zero_grad()
        optimizer.step()
        assert w.item() == pytest.approx(-(step + 1) * (hvd.size() + 1) / 2)


def check_a_parameter_that_has_changed_its_shape() -> None:
    """Pruned after wrapping: an error that says so, not a look behind the end of the gradient; then work goes on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    w = torch.nn.Parameter(torch.zeros(400, 1000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), named_parameters=[("w", w)])
    w.sum().backward()
    optimizer.step()
    for shape in ((200, 1000), (1, 1000)):
        optimizer.zero_grad()
        w.data = torch.zeros(shape)
        w.sum().backward() if hvd.size() == 1 else _expect_changed(w, list(shape))
        if hvd.size() > 1:
            with pytest.raises(ValueError, match="Wrap a new optimizer"):
                optimizer.step()
    optimizer.zero_grad()
    w.data = torch.zeros(400, 1000)
    w.sum().backward()
    optimizer.step()
    assert torch.all(w == -1)
    torch.set_num_threads(threads)


def _expect_changed(w: torch.Tensor, shape: list[int]) -> None:
    with pytest.raises(ValueError, match=f"shape {re.escape(str(shape))}, but the parameter had"):
        w.sum().backward()


def check_calls_that_failed_before_init_count_on_no_rank() -> None:
    hvd.shutdown()
    for _ in range(int(os.environ["HOROVOD_RANK"]) + 1):
        with pytest.raises((ValueError, RuntimeError), match="initialized"):
            hvd.allreduce(X)
    hvd.init()
    handle = hvd.allreduce_async(X)
    assert hvd.allgather_object(handle) == [handle] * hvd.size()
    assert torch.equal(hvd.synchronize(handle), X)
