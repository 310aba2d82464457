"""Medians and spread.  A repetition counts as long as its slowest rank took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Summary:
    """Seconds: median, quartiles, the fastest, and how many samples."""

    median_s: float
    q1_s: float
    q3_s: float
    best_s: float
    samples: int

    @property
    def spread(self) -> float:
        """Distance of the quartiles as a part of the median."""
        return (self.q3_s - self.q1_s) / self.median_s if self.median_s else 0.0


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """The samples of the slowest rank, one by one."""
    return [max(samples) for samples in zip(*ranks, strict=True)]


def summarize(samples: Sequence[float]) -> Summary:
    """Summary of at least one sample."""
    q1, _, q3 = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else (samples[0],) * 3
    return Summary(median(samples), q1, q3, min(samples), len(samples))
