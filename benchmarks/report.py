"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.cases import SEED
from benchmarks.group import Group
from benchmarks.machine import describe_machine
from benchmarks.measure import Outcome
from benchmarks.targets import Target, Verdict, judge_all


@dataclass(slots=True)
class Report:
    """Everything that one invocation found out; ``values`` are single numbers that are not series of samples."""

    command: Sequence[str]
    machine: Mapping[str, object] = field(default_factory=describe_machine)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    def add_groups(self, groups: Mapping[str, Group], skipped: Mapping[str, str]) -> None:
        """Remembers who takes part, and says who does not."""
        self.versions.update({name: group.versions for name, group in groups.items()})
        for name, reason in skipped.items():
            if self.skipped.setdefault(name, reason) == reason:
                print(f"skipped {name}: {reason}", flush=True)

    def add(self, case: str, outcome: Outcome) -> None:
        """Remembers a case and prints its line."""
        self.outcomes[case] = outcome
        print(_line(case, outcome), flush=True)
        for name, reason in outcome.skipped.items():
            print(f"{'':24}{name}: {reason}", flush=True)

    def judge(self, targets: Sequence[Target]) -> None:
        """Compares with the targets and prints a line for each."""
        self.verdicts = judge_all(targets, self._medians())
        print("\ntargets")
        print("\n".join(verdict.line() for verdict in self.verdicts), flush=True)

    def _medians(self) -> dict[str, dict[str, float]]:
        found = {
            case: {name: summary.median_s for name, summary in outcome.summaries.items()}
            for case, outcome in self.outcomes.items()
        }
        return found | self.values

    def write(self, path: Path) -> None:
        """Writes everything as JSON."""
        content = {
            "command": list(self.command),
            "seed": SEED,
            "python": sys.version,
            "machine": dict(self.machine),
            "versions": self.versions,
            "skipped": self.skipped,
            "cases": {case: _case_json(outcome) for case, outcome in self.outcomes.items()},
            "values": self.values,
            "targets": [asdict(verdict) for verdict in self.verdicts],
        }
        path.write_text(json.dumps(content, indent=1) + "\n")

    def conclude(self, path: Path | None, strict: bool) -> int:
        """Writes the file that was asked for; the exit code: 1 when a target was missed and that counts."""
        if path is not None:
            self.write(path)
        return exit_code(self.verdicts) if strict else 0


def _case_json(outcome: Outcome) -> dict[str, object]:
    ours = outcome.summaries.get("hvd")
    return {
        "series": {name: asdict(summary) for name, summary in outcome.summaries.items()},
        "turns": outcome.turns,
        "skipped": outcome.skipped,
        "times_slower_than_hvd": _ratios(outcome) if ours else {},
        "percent_of_floor": percent_of_floor(outcome),
    }


def _ratios(outcome: Outcome) -> dict[str, float]:
    ours = outcome.summaries["hvd"].median_s
    return {name: summary.median_s / ours for name, summary in outcome.summaries.items() if name != "hvd"}


def percent_of_floor(outcome: Outcome) -> dict[str, float]:
    """100 where a series is as fast as the kernel alone."""
    floor = outcome.summaries.get("floor")
    if floor is None:
        return {}
    return {name: 100 * floor.median_s / summary.median_s for name, summary in outcome.summaries.items()}


def format_s(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def _line(case: str, outcome: Outcome) -> str:
    cells = [_cell(name, outcome) for name in outcome.summaries]
    return f"{case:24}{'  '.join(cells)}"


def _cell(name: str, outcome: Outcome) -> str:
    summary = outcome.summaries[name]
    text = f"{name} {format_s(summary.median_s)} +-{50 * summary.spread:.0f}%"
    if name not in ("hvd", "hvd-arena", "floor") and "hvd" in outcome.summaries:
        text += f" ({summary.median_s / outcome.summaries['hvd'].median_s:.3g}x)"
    if name == "hvd-arena" and "floor" in outcome.summaries:
        text += f" ({percent_of_floor(outcome)[name]:.0f}% of floor)"
    return f"{text:28}"


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """1 when a target was measured and missed."""
    return int(any(verdict.is_met is False for verdict in verdicts))
