"""What ``hvd.elastic.run`` does after an attempt that did not return.

An attempt is one run of the user's function, from the synchronisation of the state on.  It may end because a collective
failed: then the state goes back to its last commit and all ranks synchronise.  Or because the hosts have changed: then
the state stays as it is, and ranks that lost others only need no synchronisation.  In both cases the ranks meet in a new
epoch first.  A failure that nothing can follow is given back to the user, as it was, with advice.

Nothing here resets, restores or waits; how often a failure may come is decided by what was committed meanwhile, not by a
clock.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIRST_ATTEMPT", "Attempt", "GiveUp", "Recovery", "objection_of_fixed_job"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """How the next attempt begins; ``cause`` is the failure that it follows, empty where it follows none."""

    resets: bool = True
    may_skip_sync: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """There is no next attempt; ``advice`` says why, and what the user can do."""

    advice: str


FIRST_ATTEMPT = Attempt(resets=False)

_ADVICE = (
    "hvd.elastic.run ends here. state.restore() brings back the last commit of this process; to go on, start the job again "
    "from your last checkpoint."
)


def objection_of_fixed_job(size: int, is_repeated: bool) -> str:
    """Why no attempt can follow a failure in a job that always has these ranks; empty for one that may.

    A rank that was lost is not replaced, and ranks that disagree would disagree again; who called shutdown may never
    call init again.  So several ranks can't go on.  One rank alone can, unless it fails twice without a commit between.
    """
    if size > 1:
        return f"The {size} ranks of this job are fixed, so nobody takes the place of one that failed: {_ADVICE}"
    if is_repeated:
        return f"It failed again without a commit since it failed last, so that it would fail for ever: {_ADVICE}"
    return ""


class Recovery:
    """Remembers what was committed when attempts failed."""

    def __init__(self) -> None:
        self._commits_at_failure = -1

    def is_repeated(self, commits: int) -> bool:
        """Whether nothing was committed since the last failure; ``commits`` counts those of the state so far."""
        return commits == self._commits_at_failure

    def after_failure(self, commits: int, objection: str, cause: str) -> Attempt | GiveUp:
        """A collective failed, and the state is to be restored; ``objection`` is the job's."""
        if objection:
            return GiveUp(objection)
        self._commits_at_failure = commits
        return Attempt(cause=cause)

    def after_update(self, skip_sync: bool) -> Attempt:
        """The hosts have changed; ``skip_sync``: some are gone, and none are new."""
        return Attempt(may_skip_sync=skip_sync)
