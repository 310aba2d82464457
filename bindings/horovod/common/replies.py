"""Questions to the agent that a thread waits for: join and process sets."""

from __future__ import annotations

import threading

__all__ = ["Replies", "Reply"]


class Reply:
    """One answer; only slow paths have one."""

    __slots__ = ("_answer", "_arrived", "_error")

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._answer = 0
        self._error: Exception | None = None

    def set(self, answer: int, error: Exception | None = None) -> None:
        """The answer, or why there is none."""
        self._answer, self._error = answer, error
        self._arrived.set()

    def wait(self) -> int:
        """The answer; raises the error.  The agent's loss is an answer too, so this ends."""
        while not self._arrived.wait(0.1):
            pass
        if self._error is not None:
            raise self._error
        return self._answer


class Replies:
    """Answers by request; used under the client's lock."""

    def __init__(self) -> None:
        self._expected: dict[int, Reply] = {}

    def expect(self, request: int) -> Reply:
        """The place where the answer will be."""
        reply = self._expected[request] = Reply()
        return reply

    def answer(self, request: int, answer: int) -> None:
        """An answer came; one that nobody expects is dropped."""
        reply = self._expected.pop(request, None)
        if reply is not None:
            reply.set(answer)

    def fail(self, request: int, error: Exception) -> bool:
        """A question was refused; False when the request is no question."""
        reply = self._expected.pop(request, None)
        if reply is None:
            return False
        reply.set(0, error)
        return True

    def fail_all(self, error: Exception) -> None:
        """Nothing will be answered any more."""
        for reply in self._expected.values():
            reply.set(0, error)
        self._expected.clear()
