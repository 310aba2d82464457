"""What Prometheus is told of a coordinator.  Labels are agents and phases, never names of tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from horovod.coordinator.core.job import RankPhase
from horovod.coordinator.service import Service
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["CoordinatorMetrics"]


class CoordinatorMetrics:
    """Reads the service when it is asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        service, core = self._service, self._service.core
        yield GaugeMetricFamily("hvd_coordinator_agents", "Agents with a session.", len(core.agents))
        yield GaugeMetricFamily("hvd_coordinator_slots", "Slots of all agents.", service.slots())
        yield GaugeMetricFamily("hvd_coordinator_jobs_waiting", "Jobs in the queue.", service.desk.waiting)
        yield CounterMetricFamily("hvd_coordinator_jobs", "Jobs that were started.", core.jobs)
        yield CounterMetricFamily("hvd_coordinator_epochs", "Epochs that were begun.", core.epochs)
        yield CounterMetricFamily("hvd_coordinator_events", "Events that were handled.", core.handled)
        yield CounterMetricFamily("hvd_coordinator_stale_reports", "Reports of older epochs, dropped.", core.stale)
        yield self._ranks()
        yield self._silence()

    def _ranks(self) -> Metric:
        job = self._service.core.job
        counts = Counter(record.phase for record in (job.ranks if job is not None else ()))
        family = GaugeMetricFamily("hvd_coordinator_ranks", "Ranks of the running job.", labels=["phase"])
        for phase in RankPhase:
            family.add_metric([phase.value], counts[phase])
        return family

    def _silence(self) -> Metric:
        text = "Time since the agent was heard."
        family = GaugeMetricFamily("hvd_coordinator_agent_silence_seconds", text, labels=["agent"])
        for name, silent_s in self._service.agents.silence().items():
            family.add_metric([name], silent_s)
        return family
