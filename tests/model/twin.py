"""The dumb twin: from what every rank submitted it says what must have become of it, and compares."""

from __future__ import annotations

from collections import defaultdict

from horovod.agent.core import values as v
from horovod.common.core import ClientCore

from tests.model.board import ModelError
from tests.model.programs import Job
from tests.model.rank import Outcome
from tests.model.world import World

MISMATCH, NOT_WHILE_JOINED = int(v.ErrorKind.MISMATCH), int(v.ErrorKind.NOT_WHILE_JOINED)
ENDINGS = {int(v.ErrorKind.SHUT_DOWN), int(v.ErrorKind.LOST)}


def check(world: World, job: Job) -> None:
    """After the run."""
    uses: dict[tuple[object, int], list[Outcome]] = defaultdict(list)
    for outcome in world.outcomes():
        uses[outcome.key, outcome.use].append(outcome)
    met = {(p.rank, p.key, p.use) for match in world.matches for p in match.arrived.values() if p is not None}
    for (key, use), outcomes in uses.items():
        _check_use(f"{key!r} #{use}", outcomes, job)
        for outcome in outcomes:
            if outcome.error is None and (outcome.rank, key, use) not in met:
                raise ModelError(f"{key!r} #{use} has a result on rank {outcome.rank}, but there was no round")
    for what in met:
        rank, key, use = what
        if job.fate == "dies":
            continue
        if not any(o.rank == rank and o.error is None for o in uses[key, use]):
            raise ModelError(f"{key!r} #{use} had a round, but no result on rank {rank}")
    _check_joins(world, job)
    _check_end(world, job)


def _check_use(what: str, outcomes: list[Outcome], job: Job) -> None:
    kinds = {outcome.error[0] if outcome.error else None for outcome in outcomes}
    contents = {outcome.content for outcome in outcomes}
    allowed: set[int | None]
    if len(contents) > 1:
        allowed = {MISMATCH, *ENDINGS}
        texts = {outcome.error[1] for outcome in outcomes if outcome.error and outcome.error[0] == MISMATCH}
        if len(texts) > 1:
            raise ModelError(f"{what} was refused in different words: {texts}")
        if not job.fate and not texts:
            raise ModelError(f"{what} was not refused: {outcomes}")
    elif job.fate:
        allowed = {None, NOT_WHILE_JOINED, *ENDINGS}
        if None in kinds and len(kinds) > 1 and job.fate != "dies":
            raise ModelError(f"{what} ended well on some ranks only: {outcomes}")
    else:
        allowed = {None} if NOT_WHILE_JOINED not in kinds else {NOT_WHILE_JOINED}
    if not kinds <= allowed:
        raise ModelError(f"{what}: {outcomes}, allowed are {allowed}")


def _check_joins(world: World, job: Job) -> None:
    by_join: dict[int, list[int]] = defaultdict(list)
    for _, rank, last in world.join_results:
        by_join[rank].append(last)
    results = list(by_join.values())
    if not job.fate and any(other != results[0] for other in results):
        raise ModelError(f"join returned different ranks: {by_join}")


def _check_end(world: World, job: Job) -> None:
    ended = world.ended
    assert ended is not None
    if job.fate == "dies":
        named = f"Rank {job.fate_rank} "
        if world.dead.get(job.fate_rank) and (ended.code != 137 or named not in ended.text):
            raise ModelError(f"rank {job.fate_rank} was killed, the job ended with {ended}")
    elif ended.code:
        raise ModelError(f"nobody failed, the job ended with {ended}")
    if world.coordinator.epoch is not None or world.coordinator.job is not None:
        raise ModelError("the job has ended, the coordinator keeps it")
    for host in world.agents.values():
        if host.core.epoch is not None or host.core.slots or host.core.sessions:
            raise ModelError(f"the job has ended, agent {host.name} keeps it")


def check_silence(world: World) -> None:
    """At a checkpoint: nothing is on its way, so nothing may be half done."""
    epoch = world.coordinator.epoch
    assert epoch is not None
    if epoch.negotiation.entries:
        raise ModelError(f"names are still negotiated: {list(epoch.negotiation.entries)}")
    stuck = [plan for plan in epoch.plans.table.values() if plan.state.value != "live"]
    if stuck:
        raise ModelError(f"plans were given up and are still there: {stuck}")
    for host in world.agents.values():
        agent = host.core.epoch
        if agent is None:
            continue
        expected = {p.id for p in epoch.plans.table.values() if host.name in p.agents}
        if set(agent.plans) != expected or agent.names:
            raise ModelError(f"agent {host.name} has plans {sorted(agent.plans)} and names {agent.names}")
    for rank in world.ranks:
        assert rank.core is not None
        _check_silent_client(rank.number, rank.core, set(epoch.plans.table))


def _check_silent_client(number: int, core: ClientCore, plans: set[int]) -> None:
    if core.waiting or core.requests or core.retiring:
        raise ModelError(f"rank {number} keeps {core.waiting}, {core.requests}, {core.retiring}")
    if not set(core.plans) <= plans or any(plan.ops or plan.parked for plan in core.plans.values()):
        raise ModelError(f"rank {number} has plans {core.plans}")
