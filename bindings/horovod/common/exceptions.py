"""Every exception that user code can see, in one tree.

    RuntimeError
     +-- HorovodInternalError            a collective failed; elastic training may recover from it
     |    +-- MismatchError              a peer's: ranks disagree about one collective (same error on every member)
     |    +-- NotWhileJoinedError        a peer's: this collective can't run while a rank has joined
     |    +-- ShutDownError              a peer's: some rank called shutdown
     |    +-- RankLostError              a peer's: a rank or an agent died or became unreachable
     |    +-- StalledError               a peer's: ranks waited too long, or for each other
     |    +-- AgentLostError             the environment's: the local agent is gone
     |    +-- EngineError                the environment's: shared memory (a rank without room: same error on every
     |                                    member), or a broken rule inside the engine
     +-- HostsUpdatedInterrupt           elastic training: the set of hosts has changed
    ValueError
     +-- UsageError                      yours: this call is wrong, nothing was sent
     |    +-- NotInitializedError        yours: no init, or a forked child that may not use its parent's client
     |    +-- DuplicateNameError         yours: an operation of this name is in flight
     +-- StartError                      init could not bring this process into the job
    ImportError
     +-- HorovodVersionMismatchError     installed framework differs from the one that was built against

A message says what happened, which tensor and ranks, what differed, and what to do next.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "AgentLostError",
    "DuplicateNameError",
    "EngineError",
    "ErrorKind",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "MismatchError",
    "NotInitializedError",
    "NotWhileJoinedError",
    "RankLostError",
    "ShutDownError",
    "StalledError",
    "StartError",
    "UsageError",
    "error_of_kind",
    "get_version_mismatch_message",
]


class HorovodInternalError(RuntimeError):
    """A collective could not be completed."""


class MismatchError(HorovodInternalError):
    """Ranks submitted one name with different contents; every member gets the same text."""


class NotWhileJoinedError(HorovodInternalError):
    """A collective that needs everybody's data met a rank that has joined."""


class ShutDownError(HorovodInternalError):
    """A rank called shutdown while this operation was open."""


class RankLostError(HorovodInternalError):
    """A rank or an agent of this epoch was lost."""


class StalledError(HorovodInternalError):
    """Ranks waited beyond the limit, or each waited for something that another had not submitted."""


class AgentLostError(HorovodInternalError):
    """The agent of this host no longer answers."""


class EngineError(HorovodInternalError):
    """Shared memory ran out, or the engine reported something that must not happen."""


class HostsUpdatedInterrupt(RuntimeError):
    """Elastic training: hosts were added or removed.

    ``skip_sync`` is true when hosts were only removed, so that state need not be synchronised.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync


class UsageError(ValueError):
    """The call itself is wrong; nothing was sent to any other rank."""


class NotInitializedError(UsageError):
    """There is no running client in this process."""


class DuplicateNameError(UsageError):
    """An operation with this name is in flight in this process; it is not affected."""


class StartError(ValueError):
    """``init`` could not bring this process into the job."""


class HorovodVersionMismatchError(ImportError):
    """The installed framework differs from the version that a binding was built for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of a version mismatch."""
    return (
        f"Framework {name} has version {installed_version}, but version {version} is expected here. "
        f"Install {name}=={version}, or reinstall hvd beside the {name} that you have."
    )


class ErrorKind(IntEnum):
    """Kinds of failure as the agent names them (``ErrorKind`` in worker.proto)."""

    MISMATCH = 0
    INVALID = 1
    NOT_WHILE_JOINED = 2
    SHUT_DOWN = 3
    LOST = 4
    STALLED = 5
    NO_ROOM = 6


_CLASSES: dict[int, type[HorovodInternalError | UsageError]] = {
    ErrorKind.MISMATCH: MismatchError,
    ErrorKind.INVALID: UsageError,
    ErrorKind.NOT_WHILE_JOINED: NotWhileJoinedError,
    ErrorKind.SHUT_DOWN: ShutDownError,
    ErrorKind.LOST: RankLostError,
    ErrorKind.STALLED: StalledError,
    ErrorKind.NO_ROOM: EngineError,
}


def error_of_kind(kind: int, text: str) -> HorovodInternalError | UsageError:
    """The exception for a failure that the agent reported; an unknown kind is a HorovodInternalError."""
    return _CLASSES.get(kind, HorovodInternalError)(text)
