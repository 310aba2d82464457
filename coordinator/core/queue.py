"""Which job runs, which ones wait, which are refused: one at a time, in the order in which they came.

Owns the order, not the jobs.  A job that may wait does so behind the others and until there are slots for it; one that may not
is refused with a text that names what is in its way.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that somebody wants to run; ``ticket`` is the caller's number for it."""

    ticket: int
    size: int
    command: tuple[str, ...]
    launcher: str = ""
    may_wait: bool = False

    def __str__(self) -> str:
        command = " ".join(" ".join(self.command).split())
        shown = command if len(command) <= 80 else f"{command[:77]}..."
        return f"{self.size} rank{'s' if self.size > 1 else ''} of {shown}" + (
            f" ({self.launcher})" * bool(self.launcher)
        )


@dataclass(frozen=True, slots=True)
class Start:
    """It runs now."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Wait:
    """It waits; the text says what for."""

    text: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """It can't run now."""

    text: str


@dataclass(slots=True)
class JobQueue:
    """``slots`` are all that the agents have now."""

    running: Wanted | None = None
    waiting: list[Wanted] = field(default_factory=list)

    def submit(self, job: Wanted, slots: int) -> Start | Wait | Refuse:
        """A job comes."""
        hindrance = self._hindrance(job, slots)
        if not hindrance:
            self.running = job
            return Start(job.ticket)
        if job.may_wait and job.size > 0:
            self.waiting.append(job)
            return Wait(f"Waiting: {hindrance}")
        advice = "Queue behind it with --wait, or try again later." if self.running else "Ask for fewer, or use --wait."
        return Refuse(f"{hindrance[0].upper()}{hindrance[1:]} {advice}")

    def _hindrance(self, job: Wanted, slots: int) -> str:
        if self.running is not None:
            behind = f", and {len(self.waiting)} more wait" if self.waiting else ""
            return f"a job runs already: {self.running}{behind}."
        if self.waiting:
            return f"{len(self.waiting)} job(s) wait already, the first one: {self.waiting[0]}."
        if job.size > slots:
            return f"{job.size} ranks were asked for, but the agents have {slots} slots."
        return ""

    def adopt(self, job: Wanted) -> None:
        """A job of an earlier coordinator runs."""
        self.running = job

    def over(self, ticket: int) -> bool:
        """A job has ended, or nobody waits for it any more; whether it was known."""
        known = len(self.waiting) + (self.running is not None)
        if self.running is not None and self.running.ticket == ticket:
            self.running = None
        self.waiting = [job for job in self.waiting if job.ticket != ticket]
        return len(self.waiting) + (self.running is not None) < known

    def next(self, slots: int) -> Start | None:
        """The job whose turn it is."""
        if self.running is not None or not self.waiting or self.waiting[0].size > slots:
            return None
        self.running = self.waiting.pop(0)
        return Start(self.running.ticket)

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        tickets = [job.ticket for job in [self.running, *self.waiting] if job is not None]
        assert len(tickets) == len(set(tickets))
        assert all(job.may_wait for job in self.waiting)


__all__ = ["JobQueue", "Refuse", "Start", "Wait", "Wanted"]
