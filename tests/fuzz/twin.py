"""The dumb twin: what a call must give, computed with NumPy from all ranks' inputs."""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt

from tests.fuzz.program import AVERAGE, MAX, MIN, PRODUCT, Call

Array = npt.NDArray[np.generic]


def input_of(seed: int, step: int, call: Call, rank: int, part: int = 0) -> Array:
    """The input of one rank: small integers, so that sums and products are exact in each dtype (shape (n,) or (n, 3))."""
    rng = np.random.default_rng((seed, step, call.index, rank, part))
    count = call.count + (1 if rank == call.odd_rank else 0)
    if call.kind in ("allgather", "reducescatter"):
        rows = (call.count // 3 + (rank * 2 if call.kind == "allgather" else 0)) % 5000
        return rng.integers(0, 3, (rows, 3)).astype(call.dtype)
    if call.kind == "alltoall":
        return rng.integers(0, 3, (sum(splits_of(seed, step, call, rank)), 2)).astype(call.dtype)
    return rng.integers(0, 3, count).astype(call.dtype)


def splits_of(seed: int, step: int, call: Call, rank: int) -> list[int]:
    """Rows that this rank sends to each member, zeros included."""
    rng = np.random.default_rng((seed, step, call.index, rank, 99))
    return [int(n) for n in rng.integers(0, 1 + call.count % 50, len(call.members))]


def expected(seed: int, step: int, call: Call, rank: int) -> list[Array]:
    """All outputs that ``rank`` must see, one per tensor."""
    if call.kind in ("allreduce", "grouped"):
        return [_reduced([input_of(seed, step, call, m, p) for m in call.members], call) for p in range(call.parts)]
    if call.kind == "allgather":
        return [np.concatenate([input_of(seed, step, call, m) for m in call.members])]
    if call.kind == "broadcast":
        return [input_of(seed, step, call, call.root)]
    if call.kind == "alltoall":
        return [np.concatenate([_sent(seed, step, call, m, rank) for m in call.members])]
    return [
        _part(_reduced([input_of(seed, step, call, m) for m in call.members], call), call.members.index(rank), call)
    ]


def _sent(seed: int, step: int, call: Call, sender: int, receiver: int) -> Array:
    splits = splits_of(seed, step, call, sender)
    at = call.members.index(receiver)
    start = sum(splits[:at])
    return input_of(seed, step, call, sender)[start : start + splits[at]]


def _part(whole: Array, member: int, call: Call) -> Array:
    base, extra = divmod(len(whole), len(call.members))
    start = member * base + min(member, extra)
    return whole[start : start + base + (1 if member < extra else 0)]


def _reduced(inputs: list[Array], call: Call) -> Array:
    post = call.postscale / len(call.members) if call.op == AVERAGE else call.postscale
    if call.dtype == "float16":
        wide = [x.astype(np.float32) * np.float32(call.prescale) for x in inputs]
        return (_combine(wide, call.op) * np.float32(post)).astype(np.float16)
    return _scaled(_combine([_scaled(x, call.prescale) for x in inputs], call.op), post)


def _scaled(x: Array, factor: float) -> Array:
    if factor == 1.0:
        return x
    if np.issubdtype(x.dtype, np.integer):
        # What does not fit is clamped, as the kernels document; casting it would be undefined.
        limits = np.iinfo(x.dtype)
        return np.clip(np.trunc(x.astype(np.float64) * factor), limits.min, limits.max).astype(x.dtype)
    return (x * x.dtype.type(factor)).astype(x.dtype)


def _combine(inputs: list[Array], op: int) -> Array:
    combine = {MIN: np.minimum, MAX: np.maximum, PRODUCT: np.multiply}.get(op, np.add)
    return reduce(lambda a, b: combine(a, b).astype(a.dtype), inputs)
