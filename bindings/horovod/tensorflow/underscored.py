"""Names that packages built on Horovod import although they begin with an underscore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.gradients import check_groups, make_settings
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import ReduceOp
from horovod.tensorflow.bridge import speaks_tensorflow
from horovod.tensorflow.buckets import reduce_gradients
from horovod.tensorflow.reduce_ops import allreduce, grouped_allreduce
from horovod.tensorflow.scatter_ops import grouped_reducescatter, reducescatter
from horovod.tensorflow.settings import positions_of, variable_name

__all__ = [
    "_allreduce",
    "_allreduce_cond",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_make_allreduce_grads_fn",
    "_reducescatter",
]

_SUM = int(ReduceOp.SUM)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = _SUM,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An allreduce that sums unless told otherwise."""
    return allreduce(
        tensor, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, name=name,
        process_set=process_set, ignore_name_scope=ignore_name_scope,
    )  # fmt: skip


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = _SUM,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """A grouped allreduce that sums unless told otherwise."""
    return grouped_allreduce(
        tensors, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set,
        ignore_name_scope=ignore_name_scope, name=name,
    )  # fmt: skip


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = _SUM,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """A reducescatter that sums unless told otherwise."""
    return reducescatter(
        tensor, op=op, name=name, process_set=process_set, ignore_name_scope=ignore_name_scope,
        prescale_factor=prescale_factor, postscale_factor=postscale_factor,
    )  # fmt: skip


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = _SUM,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """A grouped reducescatter that sums unless told otherwise; it has no name, as in the public one."""
    return grouped_reducescatter(
        tensors, op=op, process_set=process_set, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )


def _allreduce_cond(tensor: Any, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> Any:
    """An allreduce for members of a set with others in it; everybody else gets the tensor back."""
    if not process_set.included() or (process_set.size() or 1) == 1:
        return tensor
    reduce: Callable[..., Any] = allreduce
    return reduce(tensor, *args, process_set=process_set, **kwargs)


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    groups: Any,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., list[Any]]:
    """A function of gradients, and of their variables if they are known, that gives the reduced gradients.

    Without variables ranks meet by the gradients' positions.  Name and devices are accepted and not used.
    """
    settings = make_settings(
        compression, op, gradient_predivide_factor, sparse_as_dense, process_set, name or "allreduce_grads"
    )
    chosen = check_groups(groups)

    @speaks_tensorflow
    def reduce(grads: Sequence[Any], vars: Sequence[Any] | None = None, use_generic_names: bool = False) -> list[Any]:
        known = not use_generic_names and vars is not None
        names = [variable_name(vars[i], f"grad_{i}") if known else f"grad_{i}" for i in range(len(grads))]  # type: ignore[index]
        of = chosen if isinstance(chosen, int) else positions_of(chosen, vars) if vars is not None else None
        return reduce_gradients(grads, names, settings, of)

    return reduce
