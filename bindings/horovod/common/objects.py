"""Objects that all ranks shall have: pickled, sent in pieces, the same error everywhere when one can't be pickled.

The size is not part of the operation's signature, so a name can be used again with an object of another size.  Each piece is
a round of the same operation, as many as the largest object needs: shared memory and the memory of agents hold pieces only, so
an object may be larger than either, and than 2 GiB.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import cloudpickle

from horovod.common.calls import set_id_of
from horovod.common.checks import check_root
from horovod.common.exceptions import UsageError
from horovod.common.process_sets import ProcessSet
from horovod.common.types import Client, CollectiveKind, PullOp, Signature

__all__ = ["allgather_pickled", "broadcast_pickled"]

_UINT8 = 0
_PIECE_BYTES = 64 << 20
_Pickled = tuple[bytes, Exception | None]


def _pickled(obj: Any) -> _Pickled:
    """The bytes that stand for the object, or words that say why there are none, and the cause."""
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode("utf-8", "replace"), error


def _exchange(
    client: Client, pickled: _Pickled, name: str, root: int, process_set: ProcessSet
) -> list[bytes | bytearray]:
    """What each member published; with a root, what it alone published.  The same error on all if one had nothing to send."""
    set_id, word = set_id_of(process_set), f"allgather.{name}"
    signature = Signature(CollectiveKind.ALLGATHER, word, False, _UINT8, ((-1,),), root=root, process_set=set_id)
    payload, cause = pickled
    ranks = client.process_sets().get(set_id, ())
    members = range(len(ranks)) if root < 0 else [ranks.index(root)]
    mine = ranks.index(client.rank) if client.rank in ranks else -1
    received: dict[int, bytes | bytearray] = {}
    failed: set[int] = set()
    start = 0
    while start == 0 or start < max(map(len, received.values())):
        op = _publish(client, signature, payload, start, cause is not None)
        try:
            op.wait()
            for member in members:
                nbytes, has_failed = op.meta(member)
                failed.update([member] * has_failed)
                if member not in received:
                    received[member] = payload if member == mine else bytearray(nbytes)
                if member != mine:  # that is here already
                    _read_piece(op, member, received[member], start)
        finally:
            op.done()
        start += _PIECE_BYTES
    if failed:
        texts = {ranks[member]: received[member].decode(errors="replace") for member in sorted(failed)}
        raise UsageError(_not_pickled(name, texts)) from cause
    return list(received.values())


def _publish(client: Client, signature: Signature, payload: bytes, start: int, failed: bool) -> PullOp:
    """Starts a round with the next piece of the payload; it says how long all of it is."""
    address = ctypes.cast(ctypes.c_char_p(payload), ctypes.c_void_p).value or 0
    nbytes = max(0, min(len(payload) - start, _PIECE_BYTES))
    return client.gather(signature, [(address + start if nbytes else 0, nbytes)], (len(payload), failed), keep=payload)


def _read_piece(op: PullOp, member: int, received: bytes | bytearray, start: int) -> None:
    nbytes = min(len(received) - start, _PIECE_BYTES)
    if nbytes > 0:
        view = (ctypes.c_char * nbytes).from_buffer(received, start)
        op.copy([(member, 0, ctypes.addressof(view), nbytes)])


def _not_pickled(name: str, texts: Mapping[int, str]) -> str:
    hosts = "; ".join(f"rank {rank}: {text}" for rank, text in texts.items())
    return (
        f"{name!r} was not sent, and all ranks are told so: an object can't be pickled by cloudpickle on {hosts}. "
        "Send what it is made from instead; locks, files, generators and open connections stay where they are."
    )


def broadcast_pickled(client: Client, obj: Any, root_rank: Any, name: str | None, process_set: ProcessSet) -> Any:
    """The root's object, on all ranks of the set."""
    members = client.process_sets().get(set_id_of(process_set), ())
    root_rank = check_root(root_rank, members, f"broadcast_object {name or ''}".rstrip())
    is_root = client.rank == root_rank
    pickled = _pickled(obj) if is_root else (b"", None)
    (received,) = _exchange(client, pickled, f"{name or 'any'}.object", root_rank, process_set)
    return obj if is_root else cloudpickle.loads(received)


def allgather_pickled(client: Client, obj: Any, name: str | None, process_set: ProcessSet) -> list[Any]:
    """Every rank's object, in the order of ranks, but for ranks that have joined and take part with nothing."""
    payloads = _exchange(client, _pickled(obj), f"{name or 'any'}.objects", -1, process_set)
    payloads.reverse()
    objects = []
    while payloads:  # each is let go when its object is there: together they may be large
        payload = payloads.pop()
        if payload:
            objects.append(cloudpickle.loads(payload))
    return objects
