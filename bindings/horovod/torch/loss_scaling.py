"""What a ``GradScaler`` does with an optimizer's gradients, noticed in time.

``unscale_`` and ``step`` of a scaler read all gradients through ``optimizer.param_groups``, change them and decide whether
the step is taken.  That must happen after the reduction, or ranks decide differently and wait for each other.  There is
no hook for it, so the optimizer looks who asks for its groups.
"""

from __future__ import annotations

import sys

import torch

__all__ = ["is_scaler_asking"]

_READER = "_unscale_grads_"
_is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)


def is_scaler_asking(depth: int = 2) -> bool:
    """Whether the function ``depth`` frames up is the one in which a GradScaler reads gradients; not in compiled code."""
    return not _is_compiling() and sys._getframe(depth).f_code.co_name == _READER
