"""Agents' sessions: who may have one, whether it goes on after a break, and when an agent counts as lost.

Owns who speaks for an agent's name: one *instance*, a start of an agent process.  A session begins with a Hello and ends with
a goodbye, with silence for the time-out, or with another start of the agent on the same host; a stream that breaks does not
end it.  Streams are numbered by the caller: what comes on a stream that was replaced says nothing.  Silence counts only while
this process runs: after a pause of its own (a stopped process, a suspended machine) everybody gets the time again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PROTOCOL = 1
_LONGEST_NAME = 255
_MOST_SLOTS = 1 << 16
_PAUSE_S = 2.0  # ticks come much more often


@dataclass(frozen=True, slots=True)
class Hello:
    """How an agent introduces itself; ``incarnation`` is that of the coordinator with which it has a session.

    ``plane`` is what its data to other hosts go through: all agents must have the same.
    """

    protocol: int
    version: str
    name: str
    host: str
    slots: int
    instance: str
    incarnation: int
    plane: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The stream may go on; ``resumed``: with the numbers of the session that is there.  ``lost``: an older one is over."""

    resumed: bool
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """There is no session for this agent; the text says what to do."""

    text: str


@dataclass(slots=True)
class Session:
    """What is known of an agent; ``stream`` is the number of its stream, 0 while it has none."""

    host: str
    instance: str
    stream: int
    heard_at: float
    plane: str = ""


@dataclass(slots=True)
class SessionBook:
    """All sessions by agent name."""

    incarnation: int
    peer_timeout_s: float
    sessions: dict[str, Session] = field(default_factory=dict)
    looked_at: float | None = None
    served: bool = False

    def hello(self, hello: Hello, stream: int, now: float) -> Welcome | Refusal:
        """An agent wants a session, or to go on with it on this stream."""
        if not self.served:
            # Nobody has relied on this coordinator's number yet.  It is taken from the clock, which may have been set back.
            self.incarnation = max(self.incarnation, hello.incarnation + 1)
        reason = self._reason_against(hello)
        if reason:
            return Refusal(reason)
        self.served = True
        known = self.sessions.get(hello.name)
        resumed = known is not None and known.instance == hello.instance and hello.incarnation == self.incarnation
        self.sessions[hello.name] = Session(hello.host, hello.instance, stream, now, hello.plane)
        if known is None or resumed:
            return Welcome(resumed)
        return Welcome(False, "it has begun a new session")

    def _reason_against(self, hello: Hello) -> str:
        if hello.protocol != PROTOCOL:
            return (
                f"Agent {hello.name} (hvd {hello.version}) speaks protocol {hello.protocol}, the coordinator {PROTOCOL}: "
                "install the same version of hvd on both."
            )
        if not 0 < len(hello.name) <= _LONGEST_NAME or not hello.name.isprintable() or not hello.instance:
            return f"The name {hello.name[:_LONGEST_NAME]!r} can't be used: give the agent another one with --name."
        if not 0 < hello.slots <= _MOST_SLOTS:
            return f"Agent {hello.name} offers {hello.slots} slots: it must offer 1 to {_MOST_SLOTS}, see --slots."
        if reason := self._plane_mismatch(hello):
            return reason
        if hello.incarnation > self.incarnation:
            return (
                f"Agent {hello.name} has a session with a coordinator that was started later (incarnation {hello.incarnation}, "
                f"this one has {self.incarnation}): end one of the two."
            )
        known = self.sessions.get(hello.name)
        if known is None or known.instance == hello.instance or (known.host == hello.host and not known.stream):
            return ""
        return (
            f"An agent named {hello.name} on host {known.host} is there already. Give this one another name with --name, "
            f"or end the other one; it counts as lost after {self.peer_timeout_s:g} s of silence."
        )

    def _plane_mismatch(self, hello: Hello) -> str:
        """All that have a session agree: it is enough to ask one."""
        other = next((name for name in self.sessions if name != hello.name), None)
        if other is None or self.sessions[other].plane == hello.plane:
            return ""
        return (
            f"Agent {hello.name} moves data between hosts by the plane {hello.plane or 'none'}, agent {other} by "
            f"{self.sessions[other].plane or 'none'}: start all agents with the same --plane."
        )

    def heard(self, name: str, stream: int, now: float) -> bool:
        """A frame came on a stream; False when the stream speaks for nobody any more."""
        session = self.sessions.get(name)
        if session is None or session.stream != stream:
            return False
        session.heard_at = now
        return True

    def broken(self, name: str, stream: int) -> None:
        """A stream is over; its session waits for the next one."""
        session = self.sessions.get(name)
        if session is not None and session.stream == stream:
            session.stream = 0

    def end(self, name: str, stream: int) -> bool:
        """The agent of this stream has taken leave, or is cut off; False when the stream speaks for nobody."""
        session = self.sessions.get(name)
        if session is None or session.stream != stream:
            return False
        del self.sessions[name]
        return True

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """At least once a second: agents that are lost from now on, with the reason."""
        pause = now - self.looked_at if self.looked_at is not None else 0.0
        self.looked_at = now
        if pause > _PAUSE_S:
            for session in self.sessions.values():
                session.heard_at += pause
        late = {name: s for name, s in self.sessions.items() if now - s.heard_at > self.peer_timeout_s}
        for name in late:
            del self.sessions[name]
        return [(name, self._silence(session)) for name, session in late.items()]

    def _silence(self, session: Session) -> str:
        state = "its connection is open" if session.stream else "its connection is broken"
        return f"nothing was heard of it for {self.peer_timeout_s:g} s ({state})"

    def check_invariants(self) -> None:
        """Raises AssertionError when the book is wrong."""
        streams = [session.stream for session in self.sessions.values() if session.stream]
        assert len(streams) == len(set(streams))
        assert len({session.plane for session in self.sessions.values()}) <= 1


__all__ = ["PROTOCOL", "Hello", "Refusal", "Session", "SessionBook", "Welcome"]
