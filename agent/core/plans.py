"""The plans of an epoch as this agent keeps them: where their blocks are, who was told, who still refers to them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from horovod.agent.core.events import PlanAdd, RemotePart
from horovod.agent.core.presentation import PlanPresented
from horovod.agent.core.values import Kind, PlanMade, Signature

DTYPE_BYTES = (1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2)
SIXTEEN_BIT_FLOATS = (6, 10)  # places in DTYPE_BYTES
AVERAGE, SUM = 0, 1
NATIVE_OPS = {0: 1, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5}  # the users' constants to hvd_reduce_op; Average is a scaled Sum
COOPERATIVE, PULL = 0, 1
SEGMENT_ALIGN = 64
NAMED_DEPTH, UNNAMED_DEPTH = 2, 1024
MOST_ELEMENTS = 1 << 40
# Up to here the engine always lets hosts exchange directly; beyond, sums of some may be rounded before others are added.
MOST_DIRECT_BYTES, MOST_DIRECT_HOSTS = 64 << 10, 3


@dataclass(slots=True)
class LocalPlan:
    """One plan; ``waiting`` are the connections that have not acknowledged its retirement."""

    id: int
    signature: Signature
    members: tuple[int, ...]  # in set-rank order
    ranks: tuple[int, ...]  # the local ones of them
    requests: dict[int, list[int]]  # rank -> requests that waited
    offset: int = 0
    placed: bool = False
    told: set[int] = field(default_factory=set)
    retiring: bool = False
    limit: int = 0  # of a retiring plan
    acked: set[int] = field(default_factory=set)
    removing: bool = False
    held: bool = False
    contest: int = -1  # the lowest round at which a local rank has left it

    def contested(self, round_number: int) -> None:
        """A local rank uses the name for something else from this round on."""
        self.contest = round_number if self.contest < 0 else min(self.contest, round_number)

    def presented(self) -> PlanPresented:
        """For a coordinator that was started anew."""
        limit = self.limit if self.retiring else -1
        return PlanPresented(self.id, self.signature, self.members, self.held, limit, self.contest)


def local_plan(made: PlanMade, members: tuple[int, ...], local: tuple[int, ...]) -> LocalPlan:
    """The part of a new plan that concerns these local ranks."""
    requests: dict[int, list[int]] = {}
    for item in made.requests:
        requests.setdefault(item.rank, []).append(item.request)
    here = tuple(r for r in members if r in local)
    return LocalPlan(made.plan, made.signature, members, here, requests)


def block(plan: LocalPlan, local: tuple[int, ...], host_of: Sequence[int]) -> PlanAdd:
    """What the board must know; Average becomes Sum with the post-scale multiplied by 1/size.  ``host_of``: by rank.

    The same product, not a quotient, as in ``horovod.common.layout.kernel_arguments``: they differ in the last bit.
    """
    signature, size = plan.signature, len(plan.members)
    cooperative = signature.kind in (Kind.ALLREDUCE, Kind.BARRIER)
    average = signature.op == AVERAGE and signature.kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER)
    shift = _shift(plan, host_of) if average and cooperative else 1.0
    listed = plan.ranks if cooperative else plan.members
    return PlanAdd(
        plan=plan.id,
        kind=COOPERATIVE if cooperative else PULL,
        dtype=signature.dtype,
        op=NATIVE_OPS.get(signature.op, 1),
        prescale=signature.prescale / shift,
        postscale=signature.postscale * (shift / size) if average else signature.postscale,
        nbytes=payload_bytes(signature) if signature.kind is Kind.ALLREDUCE else 0,
        depth=UNNAMED_DEPTH if signature.unnamed else NAMED_DEPTH,
        members=tuple(local.index(rank) if rank in local else len(local) for rank in listed),
        remote=_remote_part(plan, cooperative, host_of) if len(plan.ranks) < size else None,
        collective=signature.kind.name.lower(),
        payload=known_bytes(signature),
    )


def _shift(plan: LocalPlan, host_of: Sequence[int]) -> float:
    """A power of two that 16-bit sums are divided by before they are rounded, where they travel, and multiplied by at the end.

    It keeps what is rounded below the largest input: the sum of a host's ranks and, around the ring and by doubling, of all
    hosts but the last, whose addition is followed by the postscale before anything is rounded.
    """
    if plan.signature.dtype not in SIXTEEN_BIT_FLOATS or len(plan.ranks) == len(plan.members):
        return 1.0
    ranks = Counter(host_of[rank] for rank in plan.members)
    travels = payload_bytes(plan.signature) > MOST_DIRECT_BYTES or len(ranks) > MOST_DIRECT_HOSTS
    return _power_of_two(max(ranks.values())) * (_power_of_two(len(ranks) - 1) if travels else 1.0)


def _power_of_two(count: int) -> float:
    """The smallest one that is not below the count."""
    return float(1 << (count - 1).bit_length())


def _remote_part(plan: LocalPlan, cooperative: bool, host_of: Sequence[int]) -> RemotePart:
    hosts = tuple(host_of[rank] for rank in plan.members)
    return RemotePart(tuple(sorted(set(hosts))), () if cooperative else hosts)


def payload_bytes(signature: Signature) -> int:
    """Bytes of every member's payload: tensors one behind the other, each start aligned."""
    at = 0
    for shape in signature.shapes:
        count = 1
        for dim in shape:
            count *= dim
        at = -(-at // SEGMENT_ALIGN) * SEGMENT_ALIGN + count * DTYPE_BYTES[signature.dtype]
    return at


def known_bytes(signature: Signature) -> int:
    """Bytes of a member's tensors; 0 when some size is told in each round only."""
    sizes = [math.prod(shape) for shape in signature.shapes if all(dim >= 0 for dim in shape)]
    return sum(sizes) * DTYPE_BYTES[signature.dtype] if len(sizes) == len(signature.shapes) else 0


def fault(signature: Signature) -> str:
    """What is wrong with a signature that a process sent, empty when nothing is."""
    if signature.dtype >= len(DTYPE_BYTES):
        return f"dtype {signature.dtype} is unknown"
    if signature.op not in NATIVE_OPS:
        return f"reduction {signature.op} is unknown"
    elements = 0
    for shape in signature.shapes:
        count = 1
        for dim in shape:
            if dim < 0 and signature.kind is Kind.ALLREDUCE:
                return "a dimension is negative"
            count *= max(dim, 1)
            if count > MOST_ELEMENTS:
                return "a tensor is too large"
        elements += count
    return "there are too many elements" if elements > MOST_ELEMENTS else ""
