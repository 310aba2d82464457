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
