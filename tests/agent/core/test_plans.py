"""What a plan's block says: the numbers of an agent and those of a rank that runs alone follow one rule."""

from __future__ import annotations

import pytest
from horovod.agent.core import values as v
from horovod.agent.core.plans import block, local_plan
from horovod.common.layout import kernel_arguments
from horovod.common.types import CollectiveKind, ReduceOp, Signature

FACTORS = (1.0, 10.0, 0.1, -3.7, 49.0, 1e300)
ROUNDED = [(10.0, 3), (-3.7, 5), (49.0, 49)]  # divided by the size, each would have other bits


def agents_postscale(op: ReduceOp, postscale: float, members: int) -> float:
    """What the agent writes into the plan's block."""
    signature = v.Signature(v.Kind.ALLREDUCE, "x", shapes=((3,),), op=int(op), postscale=postscale)
    plan = local_plan(v.PlanMade(1, signature, ()), tuple(range(members)), (0,))
    return block(plan, (0,), (0,) * members).postscale


def solo_postscale(op: ReduceOp, postscale: float, members: int) -> float:
    """What the kernel is called with in a world of size 1."""
    signature = Signature(CollectiveKind.ALLREDUCE, "x", False, 7, ((3,),), op=op, postscale=postscale)
    return kernel_arguments(signature, members)[1]


@pytest.mark.parametrize("members", [1, 2, 3, 5, 7, 49])
@pytest.mark.parametrize("postscale", FACTORS)
@pytest.mark.parametrize("op", [ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MAX])
def test_both_sides_scale_alike(op: ReduceOp, postscale: float, members: int) -> None:
    assert agents_postscale(op, postscale, members) == solo_postscale(op, postscale, members)


@pytest.mark.parametrize(("postscale", "members"), ROUNDED)
def test_an_average_multiplies_by_the_reciprocal(postscale: float, members: int) -> None:
    assert agents_postscale(ReduceOp.AVERAGE, postscale, members) == postscale * (1.0 / members)


@pytest.mark.parametrize(
    ("host_of", "count", "shift"),
    [
        ((0, 0, 0, 0), 3, 1.0),  # one host: fp32 all the way
        ((0, 1), 3, 1.0),
        ((0, 0, 1), 3, 2.0),
        ((0, 0, 0, 1, 1), 3, 4.0),
        ((0, 1, 2), 3, 1.0),
        ((0, 1, 2, 3), 3, 4.0),  # the engine may double
        ((0, 1, 2, 3), 1 << 16, 4.0),  # around the ring sums of up to three hosts are rounded
        ((0, 0, 1), 1 << 16, 2.0),
        (tuple(range(9)), 3, 8.0),
    ],
)
def test_16_bit_averages_are_made_smaller_where_they_are_rounded(
    host_of: tuple[int, ...], count: int, shift: float
) -> None:
    """P30: prescale and postscale together are what they were, to the last bit."""
    members = tuple(range(len(host_of)))
    for dtype in (6, 10):
        signature = v.Signature(
            v.Kind.ALLREDUCE, "x", dtype=dtype, shapes=((count,),), op=int(ReduceOp.AVERAGE), prescale=3.0
        )
        local = tuple(rank for rank in members if host_of[rank] == 0)
        added = block(local_plan(v.PlanMade(1, signature, ()), members, local), local, host_of)
        assert (added.prescale, added.postscale) == (3.0 / shift, shift / len(members))
    for dtype, op in ((7, ReduceOp.AVERAGE), (6, ReduceOp.SUM)):
        signature = v.Signature(v.Kind.ALLREDUCE, "x", dtype=dtype, shapes=((count,),), op=int(op))
        added = block(local_plan(v.PlanMade(1, signature, ()), members, (0,)), (0,), host_of)
        assert added.prescale == 1.0
