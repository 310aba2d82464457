"""What has happened on this agent since it began: numbers that only rise, over epochs and jobs.

Nothing is decided by it: it is read by whoever observes the agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

LOCAL = "local"  # the algorithm of rounds that no net carries
LONGEST_STEP_S = 2.0  # between two looks; what is longer was a pause of this process


@dataclass(slots=True)
class Tally:
    """``rounds`` and ``payload_bytes`` go by (collective, plane); ``awaited_s`` by rank, ``output_bytes`` by stream,
    ``sent_bytes``, ``received_bytes`` and ``retransmits`` by the other agent, ``net`` by the names of hvd_net_info, ``stages`` by
    (algorithm, stage, bucket of hvd_net_times), ``stage_ns`` by (algorithm, stage); what no net carries has the algorithm LOCAL.
    """

    jobs: int = 0
    announcements: int = 0
    submissions: int = 0
    plans: int = 0
    rounds: Counter[tuple[str, str]] = field(default_factory=Counter)
    payload_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    awaited_s: dict[int, float] = field(default_factory=dict)
    output_bytes: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)
    retransmits: Counter[str] = field(default_factory=Counter)
    net: Counter[str] = field(default_factory=Counter)
    stages: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    stage_ns: Counter[tuple[str, str]] = field(default_factory=Counter)
    looked_at: float | None = None

    def ran(self, collective: str, plane: str, rounds: int, payload: int) -> None:
        """More rounds of a plan; ``payload`` bytes in each, 0 when only its ranks know."""
        self.rounds[collective, plane] += rounds
        if payload:
            self.payload_bytes[collective, plane] += rounds * payload

    def looked(self, missing: Iterable[int], now: float) -> None:
        """A look found rounds that wait for these ranks: they count as awaited since the last look."""
        step = min(now - self.looked_at, LONGEST_STEP_S) if self.looked_at is not None else 0.0
        self.looked_at = now
        for rank in missing:
            self.awaited_s[rank] = self.awaited_s.get(rank, 0.0) + step


__all__ = ["LOCAL", "Tally"]
