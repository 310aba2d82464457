"""What a collector says, as a flat dictionary: ``hvd_agents{state="idle"}`` -> 1."""

from __future__ import annotations

from horovod.observe.metrics import StateCollector

__all__ = ["values_of"]


def values_of(collector: StateCollector) -> dict[str, float]:
    """All samples of one scrape; a sample that comes twice is an error."""
    found: dict[str, float] = {}
    for family in collector.collect():
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found, name
            found[name] = sample.value
    return found
