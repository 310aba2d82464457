"""Questions of ranks that the coordinator answers when other ranks have asked the same: join, adding and removing sets.

The engine knows nothing of them, so this book says which ranks wait for an answer, for which one, and since when.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from horovod.agent.core import values as v
from horovod.agent.core.presentation import SetCallPresented

Question = v.Join | v.AddProcessSet | v.RemoveProcessSet


@dataclass(frozen=True, slots=True)
class Call:
    """One question of a rank."""

    rank: int
    request: int
    name: str
    since: float
    body: Question
    number: int = 0  # of a call about sets: all ranks count them


@dataclass(slots=True)
class Calls:
    """Questions without an answer, by rank and request."""

    open: dict[tuple[int, int], Call] = field(default_factory=dict)

    def asked(self, rank: int, body: Question, now: float, number: int = 0) -> object:
        """Books a question; what the coordinator is to hear."""
        self.open[rank, body.request] = Call(rank, body.request, name_of(body), now, body, number)
        if isinstance(body, v.Join):
            return v.JoinRequested(rank, body.request)
        if isinstance(body, v.AddProcessSet):
            return v.SetAddRequested(rank, body.request, body.ranks)
        return v.SetRemoveRequested(rank, body.request, body.id)

    def answered(self, requests: Iterable[v.RankRequest]) -> list[Call]:
        """These have their answer, and were open; requests that are no calls don't matter."""
        found = [self.open.pop((item.rank, item.request), None) for item in requests]
        return [call for call in found if call is not None]

    def joins(self) -> tuple[v.RankRequest, ...]:
        """Ranks inside join, in the order of their calls."""
        return tuple(
            v.RankRequest(call.rank, call.request) for call in self.open.values() if isinstance(call.body, v.Join)
        )

    def set_calls(self) -> tuple[SetCallPresented, ...]:
        """Open calls that add or remove process sets."""
        calls = []
        for call in self.open.values():
            if isinstance(call.body, v.AddProcessSet):
                calls.append(SetCallPresented(call.rank, call.request, call.number, call.body.ranks))
            elif isinstance(call.body, v.RemoveProcessSet):
                calls.append(SetCallPresented(call.rank, call.request, call.number, remove=call.body.id))
        return tuple(calls)

    def gone(self, rank: int) -> None:
        """Nobody waits there any more."""
        self.open = {key: call for key, call in self.open.items() if call.rank != rank}

    def added_to(self, state: v.RankState, now: float) -> v.RankState:
        """The state with threads that wait for an answer counted as blocked, the longest wait first."""
        mine = [call for call in self.open.values() if call.rank == state.rank]
        if not mine:
            return state
        oldest = min(mine, key=lambda call: call.since)
        blocked, since_s = state.blocked + len(mine), now - oldest.since
        if state.blocked and state.blocked_s > since_s:
            return replace(state, blocked=blocked)
        return replace(state, blocked=blocked, blocked_request=oldest.request, blocked_s=since_s)

    def blocked_on(self, state: v.RankState) -> v.BlockedOn | None:
        """What the rank waits for, if that is a call."""
        call = self.open.get((state.rank, state.blocked_request))
        return v.BlockedOn(call.rank, 0, 0, call.name, call.request) if call is not None else None


def name_of(body: Question) -> str:
    """The call in words, as reports show it."""
    if isinstance(body, v.Join):
        return "join"
    if isinstance(body, v.AddProcessSet):
        return f"add process set {sorted(body.ranks)}"
    return f"remove process set {body.id}"


__all__ = ["Call", "Calls", "Question", "name_of"]
