"""What Prometheus is told of an agent."""

from __future__ import annotations

from collections.abc import Iterator

from horovod.agent.daemon import Daemon
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["AgentMetrics"]


class AgentMetrics:
    """Reads the daemon when it is asked."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        state = self._daemon.state()
        yield GaugeMetricFamily("hvd_agent_slots", "Slots of this host.", state.slots)
        yield GaugeMetricFamily("hvd_agent_ranks", "Ranks that run here.", state.ranks)
        yield GaugeMetricFamily("hvd_agent_connected", "1 while the coordinator can be reached.", int(state.connected))
        yield CounterMetricFamily("hvd_agent_sessions", "Sessions with a coordinator that were begun.", state.sessions)
        yield CounterMetricFamily("hvd_agent_jobs", "Jobs that had ranks here.", state.jobs)
        family = GaugeMetricFamily("hvd_agent_unconfirmed_bytes", "Sent, but not confirmed yet.", labels=["kind"])
        family.add_metric(["reports"], state.unconfirmed_report_bytes)
        family.add_metric(["output"], state.unconfirmed_output_bytes)
        yield family
