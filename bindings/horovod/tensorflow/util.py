"""Small helpers that other packages import by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from horovod.common.util import _cache

__all__ = ["_cache", "_executing_eagerly", "_make_subgraph", "refs_to_vars", "vars_to_refs"]


def _executing_eagerly() -> bool:
    """Whether operations run as they are called."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """The function as one graph."""
    return tf.function(function)


def vars_to_refs(variables: Any) -> Any:
    """References that can be compared and hashed, in place of variables; a list becomes a tuple."""
    return tuple(map(vars_to_refs, variables)) if isinstance(variables, (list, tuple)) else variables.ref()


def refs_to_vars(references: Any) -> Any:
    """The variables of such references; a tuple becomes a list."""
    if isinstance(references, Iterable) and not hasattr(references, "deref"):
        return [refs_to_vars(reference) for reference in references]
    return references.deref()
