"""Writes docs/metrics.md from the tables in the code: ``python -m tests.observe.page``, with ``--check`` it only compares."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from horovod.agent import metrics as agent
from horovod.coordinator import metrics as coordinator
from horovod.observe import process
from horovod.observe.metrics import MOST_LABELS, Metric

__all__ = ["PAGE", "SERVICES", "main", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
SERVICES: dict[str, tuple[Metric, ...]] = {
    "Coordinator": coordinator.TABLE,
    "Agents": agent.TABLE,
    "Every daemon": process.TABLE,
}
HEAD = f"""# Metrics

Written from the tables in the code by `scripts/metrics-doc`; change them, not this page.

Coordinator and agents answer `GET` on their metrics port; nothing can be changed there, and nothing secret is shown:

| path | answers |
|---|---|
| `/metrics` | Prometheus text, or OpenMetrics for who asks for it |
| `/healthz` | 200 while the process lives |
| `/readyz` | 200 when agents can connect (coordinator) or the agent is registered; else 503 and why not |
| `/api/state` | JSON for people and scripts: ranks, epochs and why they ended, what waits for whom |

Values are read when somebody scrapes. A metric that a daemon has no value for is absent, not 0. Counters rise while the process
lives, over epochs and jobs. No label is the name of a tensor; a label has at most {MOST_LABELS:,} values, what is beyond is `other`
in counters and left out in gauges. Alert rules and a dashboard are in `docker/prometheus/` and `docker/grafana/`.
"""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |"


def page() -> str:
    """The whole text."""
    parts = [HEAD]
    for title, table in SERVICES.items():
        parts.append(
            "\n".join(
                [f"## {title}\n", "| name | type | labels | meaning |", "|---|---|---|---|", *map(_row, table), ""]
            )
        )
    return "\n".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Writes the page, or says whether it is current."""
    current = PAGE.exists() and PAGE.read_text() == page()
    if "--check" in arguments:
        print(f"{PAGE.name} is current" if current else f"{PAGE.name} is stale: run scripts/metrics-doc")
        return 0 if current else 1
    PAGE.write_text(page())
    print(f"{PAGE.name} was current" if current else f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
