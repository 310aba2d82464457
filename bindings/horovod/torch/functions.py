"""State that all ranks shall share: parameters, optimizer state, objects.

Objects travel in one operation whose size is not part of its signature, so a name can be used again with an object of
another size.  Optimizer state is described by the root and filled in elsewhere; no step is taken to create it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle
import torch

from horovod.common.checks import check_root
from horovod.common.exceptions import UsageError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.types import CollectiveKind
from horovod.torch.dtypes import can_be_sent
from horovod.torch.gather_ops import broadcast_async_, members_of
from horovod.torch.pending import handles, require_client, synchronize
from horovod.torch.signatures import automatic_name, make_signature, set_id_of

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


# ---- objects


_Pickled = tuple[bytes, Exception | None]


def _pickled(obj: Any) -> _Pickled:
    """The bytes that stand for the object, or words that say why there are none, and the cause."""
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode("utf-8", "replace"), error


def _exchange(pickled: _Pickled, name: str, root: int, process_set: ProcessSet) -> list[bytearray]:
    """What each member published; with a root, what it alone published.  The same error on all if one had nothing to send."""
    client, set_id, handle = require_client(), set_id_of(process_set), handles.advance()
    signature = make_signature(CollectiveKind.ALLGATHER, name, torch.uint8, [(-1,)], set_id, root=root)
    payload, cause = pickled
    address = ctypes.cast(ctypes.c_char_p(payload), ctypes.c_void_p).value or 0
    unnamed, meta = automatic_name("allgather", name, handle), [len(payload), cause is not None]
    op = client.gather(signature, [(address, len(payload))], meta, keep=payload, name=unnamed)
    try:
        op.wait()
        ranks = members_of(set_id)
        members = range(len(ranks)) if root < 0 else [ranks.index(root)]
        received = [_read_bytes(op, member) for member in members]
        failed = [member for member in members if op.meta(member)[1]]
    finally:
        op.done()
    if failed:
        texts = {ranks[member]: received[members.index(member)].decode(errors="replace") for member in failed}
        raise UsageError(_not_pickled(name, texts)) from cause
    return received


def _not_pickled(name: str, texts: Mapping[int, str]) -> str:
    hosts = "; ".join(f"rank {rank}: {text}" for rank, text in texts.items())
    return (
        f"{name!r} was not sent, and all ranks are told so: an object can't be pickled by cloudpickle on {hosts}. "
        "Send what it is made from instead; locks, files, generators and open connections stay where they are."
    )


def _read_bytes(op: Any, member: int) -> bytearray:
    received = bytearray(op.meta(member)[0])
    if received:
        view = (ctypes.c_char * len(received)).from_buffer(received)
        op.copy([(member, 0, ctypes.addressof(view), len(received))])
    return received


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on all ranks of the set; it must be picklable (by cloudpickle).

    Ranks must agree on the name, if one is given; what they pass as ``obj`` elsewhere than on the root does not matter.
    Raises UsageError on all ranks when the root can't pickle its object.
    """
    root_rank = check_root(root_rank, members_of(set_id_of(process_set)), f"broadcast_object {name or ''}".rstrip())
    is_root = require_client().rank == root_rank
    pickled = _pickled(obj) if is_root else (b"", None)
    (received,) = _exchange(pickled, f"{name or 'any'}.object", root_rank, process_set)
    return obj if is_root else cloudpickle.loads(received)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in the order of ranks; they must be picklable (by cloudpickle).

    Raises UsageError on all ranks when one of them can't pickle its object.
    """
    payloads = _exchange(_pickled(obj), f"{name or 'any'}.objects", -1, process_set)
    return [cloudpickle.loads(payload) for payload in payloads]


# ---- parameters


def _named_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        entries: list[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (str, bytes, torch.Tensor)):
        entries = list(params)
    else:
        raise UsageError(f"invalid params of type: {type(params).__name__}. Give a state dict, or named parameters.")
    named = []
    for index, entry in enumerate(entries):
        name, tensor = entry if isinstance(entry, tuple) else (f"parameter.{index}", entry)
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise UsageError(f"invalid params of type: entry {name!r} is a {type(tensor).__name__}, not a tensor.")
        if tensor is not None:
            named.append((name, tensor))
    return named


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Copies the root's values into the tensors, on all ranks.

    ``params``: a state dict, ``model.named_parameters()``, or an iterable of tensors or (name, tensor).  Raises
    ValueError for anything else.
    """
    started = [broadcast_async_(tensor, root_rank, f"parameter.{name}") for name, tensor in _named_tensors(params)]
    for handle in started:
        synchronize(handle)


# ---- optimizer state


class _Hole:
    """Stands for a tensor that is sent by itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.on_host = tuple(tensor.shape), tensor.dtype, tensor.is_cpu

    def fill(self, local: Any, parameter: torch.Tensor) -> torch.Tensor:
        """The local tensor if it fits, so that references to it stay good, else a new one."""
        if isinstance(local, torch.Tensor) and local.shape == self.shape and local.dtype == self.dtype:
            return local
        if self.shape == parameter.shape and (parameter.is_cpu or not self.on_host):
            return torch.empty_like(parameter, dtype=self.dtype, requires_grad=False)
        return torch.empty(self.shape, dtype=self.dtype, device="cpu" if self.on_host else parameter.device)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _describe(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything but the parameters and the dense tensors of the state."""
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    state = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        if parameter in optimizer.state:
            entries = optimizer.state[parameter].items()
            state[index] = {key: _Hole(value) if _is_sent(value) else value for key, value in entries}
    return {"options": options, "state": state}


def _is_sent(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and can_be_sent(value.dtype)


def _adopt(optimizer: torch.optim.Optimizer, description: dict[str, Any]) -> None:
    """Makes the local state look like the root's; the values of tensors come later."""
    for group, options in zip(optimizer.param_groups, description["options"], strict=True):
        for key in [key for key in group if key != "params" and key not in options]:
            del group[key]
        group.update(options)
    for index, parameter in enumerate(_parameters(optimizer)):
        wanted = description["state"].get(index)
        if wanted is None:
            optimizer.state.pop(parameter, None)
            continue
        local = optimizer.state[parameter]
        filled = {
            key: value.fill(local.get(key), parameter) if isinstance(value, _Hole) else value
            for key, value in wanted.items()
        }
        local.clear()
        local.update(filled)


def _check_same_parameters(optimizer: torch.optim.Optimizer) -> None:
    """The same error on all ranks, before anything is changed."""
    mine = [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    everybody = allgather_object(mine, "optimizer_state.parameters")
    for rank, theirs in enumerate(everybody):
        if theirs != everybody[0]:
            raise UsageError(
                f"The optimizers of rank 0 and rank {rank} have different parameters, so state can't be broadcast: "
                f"shapes by group are {_shortened(everybody[0])} and {_shortened(theirs)}."
            )


def _shortened(shapes: object) -> str:
    text = str(shapes)
    return text if len(text) <= 500 else text[:500] + " …"


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Copies the root's optimizer state and options (learning rate, …) to all ranks.

    Nothing is stepped: where the root has no state yet, nobody has any afterwards.  ``model`` is accepted and not used.
    Raises ValueError for LBFGS, and when the ranks' optimizers have different parameters.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("cannot broadcast torch.optim.LBFGS state: use broadcast_object(optimizer.state_dict()).")
    _check_same_parameters(optimizer)
    is_root = require_client().rank == root_rank
    description = _describe(optimizer) if is_root else None
    description = broadcast_object(description, root_rank, "optimizer_state")
    if not is_root:
        _adopt(optimizer, description)
    started = []
    parameters = _parameters(optimizer)
    for index, entries in sorted(description["state"].items()):
        for key, value in entries.items():
            if isinstance(value, _Hole):
                name = f"optimizer_state.{key}.{index}"
                started.append(broadcast_async_(optimizer.state[parameters[index]][key], root_rank, name))
    for handle in started:
        synchronize(handle)
