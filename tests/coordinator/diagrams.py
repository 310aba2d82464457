"""Draws the state machines of the docs from the tables that coordinator and agent go by.

``python -m tests.coordinator.diagrams`` writes docs/state-machines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from horovod.agent.core import session
from horovod.coordinator.core import epoch, job, plans

PAGE = Path(__file__).parents[2] / "docs" / "state-machines.md"
TABLES: tuple[tuple[str, str, Mapping[Enum, Mapping[Enum, Enum]]], ...] = (
    ("A rank of a job", "`coordinator/core/job.py`", job.TRANSITIONS),
    ("An epoch", "`coordinator/core/epoch.py`", epoch.TRANSITIONS),
    ("A plan", "`coordinator/core/plans.py`", plans.TRANSITIONS),
    ("An agent's connection with its coordinator", "`agent/core/session.py`", session.TRANSITIONS),
)
HEAD = """# State machines

Drawn from the tables in the code by `python -m tests.coordinator.diagrams`; a test compares.
Change the tables, not this page.
"""


def diagram(table: Mapping[Enum, Mapping[Enum, Enum]]) -> str:
    """A Mermaid state diagram; the first state of the table is the initial one, states without a way out are final."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table)).value}"]
    for state, steps in table.items():
        lines += [f"    {state.value} --> {after.value}: {_label(cause)}" for cause, after in steps.items()]
        if not steps:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join(lines)


def _label(cause: Enum) -> str:
    # A colon would end a Mermaid label.
    return str(cause.value).replace(":", ",")


def page() -> str:
    """The whole text."""
    parts = [f"## {title}\n\nTable: {where}\n\n```mermaid\n{diagram(table)}\n```\n" for title, where, table in TABLES]
    return "\n".join([HEAD, *parts])


if __name__ == "__main__":
    PAGE.write_text(page())
