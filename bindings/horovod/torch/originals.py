"""The optimizer that was wrapped: schedulers that were made for it before go on working.

Wrapping makes a new object that shares state and parameter groups with the original one, which a scheduler may hold.  A
scheduler changes rates in the groups that it sees, and warns when its optimizer has taken no step.
"""

from __future__ import annotations

import torch

__all__ = ["note_step", "share_state"]


def note_step(original: torch.optim.Optimizer) -> None:
    """The wrapper takes a step, so schedulers of the original optimizer need not warn that nobody does."""
    original.__dict__["_opt_called"] = True


def share_state(wrapper: torch.optim.Optimizer, original: torch.optim.Optimizer) -> None:
    """After a state was loaded, which makes new groups: both have the wrapper's."""
    for key in ("state", "param_groups"):
        original.__dict__[key] = wrapper.__dict__[key]
