"""Copies of distributed optimizers, as torch makes them: ``copy.deepcopy`` copies options, parameters and state.

A copy reduces the gradients of its own parameters.  It meets the other ranks' copies at its first step, not when it is
made, so a rank may keep one for itself.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn

import torch

__all__ = ["copy_wrapped", "refuse_to_copy", "refuse_to_pickle"]


def copy_wrapped(wrapper: Any, memo: dict[int, Any], own: frozenset[str]) -> Any:
    """A copy of what ``wrapper`` wraps, as it is now; ``own`` are the wrapper's attributes, which don't belong to it."""
    plain = copy.deepcopy(wrapper._original, memo)
    state = wrapper._wrapped.__getstate__(wrapper)
    plain.__setstate__({key: copy.deepcopy(value, memo) for key, value in state.items() if key not in own})
    return plain


def refuse_to_copy(wrapper: torch.optim.Optimizer) -> NoReturn:
    """Raises TypeError: a shallow copy would reduce the same gradients."""
    raise TypeError(
        f"A DistributedOptimizer ({type(wrapper).__name__}) can't be copied with copy.copy: both would reduce the same "
        "gradients. Use copy.deepcopy((model, optimizer)), which copies the parameters too."
    )


def refuse_to_pickle(wrapper: torch.optim.Optimizer) -> NoReturn:
    """Raises TypeError: what it reduces with belongs to this process."""
    raise TypeError(
        f"A DistributedOptimizer ({type(wrapper).__name__}) can't be pickled: it belongs to the ranks of this job. Save "
        "optimizer.state_dict() and load it into an optimizer that is made and wrapped anew; copy.deepcopy copies within "
        "a process."
    )
