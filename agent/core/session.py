"""The agent's side of its session with the coordinator: when to dial, when to go on, when the session is over.

Owns the session's life, not its frames.  A broken stream is dialled again, after pauses that grow and vary, and the session
goes on if the coordinator still has it.  A coordinator that was started after the one of the session knows nothing: the agent
presents itself to it, and its ranks go on.  The session is over when its coordinator has given this agent up, or when none
was heard for the coordinator time-out: then ranks are ended, as nobody would ever tell them to stop.  An older coordinator than
the one that was last seen is not obeyed.  Clock and chance are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PROTOCOL = 1
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_GROWTH = 2.0
_ANSWER_S = 10.0  # a Hello must be answered in this time
_OWN_PAUSE_S = 2.0  # ticks come much more often: whoever ticks later was stopped
_LEEWAY_S = 5.0  # the coordinator time-out is at least so much longer than the one for peers
_SHARE = 0.25  # of the coordinator's time-out for agents: the longest pause while ranks wait


class Phase(Enum):
    """See TRANSITIONS."""

    PAUSING = "pausing"
    DIALLING = "dialling"
    UP = "up"
    REFUSED = "refused"


class Cause(Enum):
    """What moves the connection on."""

    DIAL = "time to dial"
    WELCOME = "SessionWelcome"
    REFUSAL = "SessionRefused at the first try"
    BREAK = "stream broken or given up"


TRANSITIONS: dict[Phase, dict[Cause, Phase]] = {
    Phase.PAUSING: {Cause.DIAL: Phase.DIALLING},
    Phase.DIALLING: {
        Cause.WELCOME: Phase.UP,
        Cause.REFUSAL: Phase.REFUSED,
        Cause.BREAK: Phase.PAUSING,
    },
    Phase.UP: {Cause.BREAK: Phase.PAUSING},
    Phase.REFUSED: {},
}


# ---- events


@dataclass(frozen=True, slots=True)
class Dialled:
    """The pause is over, a stream is being opened."""


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The coordinator's answer to a Hello."""

    incarnation: int
    resumed: bool
    peer_timeout_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The coordinator does not want this agent."""

    text: str
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class Heard:
    """A frame came."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream is over, or could not be opened; ``chance`` is a random number from 0 to 1.

    ``confused``: the two sides count differently, so the session can't go on either.  ``advice``: the reason says what people must
    do, so it is told also when another one was told before.
    """

    reason: str
    chance: float = 0.0
    confused: bool = False
    advice: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Dialled | Welcomed | Refused | Heard | Broken | Tick


# ---- commands


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a stream after this pause."""

    after_s: float


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the stream; Broken follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Begin:
    """A new session.  ``presents``: of a coordinator that must be told all that is here, else nothing older counts."""

    presents: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """The session goes on: what is not confirmed is sent again."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """The session is over: end its ranks."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Something for the log."""

    text: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This agent can't be used; the text says what to do."""

    text: str


Command = Dial | HangUp | Begin | Resume | Abandon | Tell | GiveUp


@dataclass(slots=True)
class Uplink:
    """``incarnation``: of the coordinator whose session this is, 0 without one; ``welcomed``: there has been one."""

    phase: Phase = Phase.PAUSING
    incarnation: int = 0
    welcomed: bool = False
    peer_timeout_s: float = 10.0
    coordinator_timeout_s: float = 300.0
    tries: int = 0
    heard_at: float = 0.0
    dialled_at: float = 0.0
    ticked_at: float | None = None
    advised: str = ""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Commands that follow from the event."""
        if isinstance(event, Dialled):
            self._move(Cause.DIAL)
            self.dialled_at = now
            return []
        if isinstance(event, Welcomed):
            return self._welcomed(event, now)
        if isinstance(event, Refused):
            return self._refused(event)
        if isinstance(event, Heard):
            self.heard_at, self.tries, self.advised = now, 0, ""
            return []
        if isinstance(event, Broken):
            over = self._abandon(event.reason) if event.confused else []
            is_news = event.advice and event.reason != self.advised
            self.advised = event.reason if event.advice else self.advised
            return [*over, *self._broken(event.reason, event.chance, is_news=is_news)]
        return self._tick(now)

    def _move(self, cause: Cause) -> bool:
        after = TRANSITIONS[self.phase].get(cause)
        self.phase = after or self.phase
        return after is not None

    def _welcomed(self, event: Welcomed, now: float) -> list[Command]:
        if self.phase is not Phase.DIALLING:
            return []
        if event.incarnation < self.incarnation:
            numbers = f"it has incarnation {event.incarnation}, this agent's has {self.incarnation}"
            return [HangUp(f"an older coordinator answered: {numbers}")]
        if event.resumed and event.incarnation != self.incarnation:
            return [HangUp("the coordinator wants to go on with a session that there is not")]
        self._move(Cause.WELCOME)
        self.heard_at, self.peer_timeout_s = now, event.peer_timeout_s
        if event.resumed:
            return [Tell("The session with the coordinator goes on."), Resume()]
        known, self.incarnation, self.welcomed = self.incarnation, event.incarnation, True
        if known == event.incarnation:
            return [Abandon("the coordinator has given this agent up"), Begin()]
        return [Begin(presents=known > 0)]

    def _refused(self, event: Refused) -> list[Command]:
        if not self.welcomed and self._move(Cause.REFUSAL):
            return [GiveUp(event.text)]
        said = [Tell(event.text)] if self.tries <= 1 else []
        return [*said, *self._broken("", event.chance, longest=True)]

    def _broken(self, reason: str, chance: float, longest: bool = False, is_news: bool = False) -> list[Command]:
        if not self._move(Cause.BREAK):
            return []
        # A coordinator that was started anew waits for its agents hardly longer than its time-out.
        most = (
            min(_LONGEST_PAUSE_S, self.peer_timeout_s * _SHARE)
            if self.incarnation and not longest
            else _LONGEST_PAUSE_S
        )
        pause = _LONGEST_PAUSE_S if longest else min(_FIRST_PAUSE_S * _GROWTH**self.tries, most)
        self.tries += 1
        is_news = is_news or (self.tries == 1 and reason != "")
        said = [Tell(f"The coordinator can't be reached: {reason}. Trying again.")] if is_news else []
        return [*said, Dial(pause * (0.5 + chance / 2))]

    def _tick(self, now: float) -> list[Command]:
        own_pause = now - self.ticked_at if self.ticked_at is not None else 0.0
        self.ticked_at = now
        if own_pause > _OWN_PAUSE_S:
            self.heard_at += own_pause
            self.dialled_at += own_pause
        silent_s = now - self.heard_at
        if self.phase is Phase.DIALLING and now - self.dialled_at > _ANSWER_S:
            return [HangUp(f"it did not answer for {_ANSWER_S:g} s"), *self._orphaned(silent_s)]
        if self.phase is Phase.UP and silent_s > self.peer_timeout_s:
            return [HangUp(f"it was silent for {self.peer_timeout_s:g} s"), *self._orphaned(silent_s)]
        return self._orphaned(silent_s)

    def _orphaned(self, silent_s: float) -> list[Command]:
        limit = max(self.coordinator_timeout_s, self.peer_timeout_s + _LEEWAY_S)
        if silent_s <= limit:
            return []
        return self._abandon(f"no coordinator was heard for {limit:g} s, see --coordinator-timeout")

    def _abandon(self, reason: str) -> list[Command]:
        known, self.incarnation = self.incarnation, 0
        return [Abandon(reason)] if known else []

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        assert self.welcomed or (self.incarnation == 0 and self.phase is not Phase.UP)


__all__ = [
    "PROTOCOL",
    "TRANSITIONS",
    "Abandon",
    "Begin",
    "Broken",
    "Cause",
    "Command",
    "Dial",
    "Dialled",
    "Event",
    "GiveUp",
    "HangUp",
    "Heard",
    "Phase",
    "Refused",
    "Resume",
    "Tell",
    "Tick",
    "Uplink",
    "Welcomed",
]
