"""What elastic training needs of PyTorch: ``hvd.elastic.run``, ``TorchState`` and ``ElasticSampler``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from horovod.common.elastic import reset, run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]

F = TypeVar("F", bound=Callable[..., Any])


def run(func: F) -> F:
    """Makes a function of a state one that goes on when the ranks of the job change: use it as a decorator.

    All ranks begin with rank 0's state.  After a failed collective (HorovodInternalError) the state is restored to the last
    ``commit``; when hosts have changed (HostsUpdatedInterrupt, from ``commit`` or ``check_host_updates``) it stays.  Then all
    ranks meet again, the state's reset callbacks are called, and the function runs again.  In a job whose ranks are fixed
    HorovodInternalError is raised at once, with advice.
    """
    return run_fn(func, reset)
