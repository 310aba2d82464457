"""Parameters that no rank had a gradient for: named once, where somebody asked for it."""

from __future__ import annotations

import warnings

from horovod.common import config

__all__ = ["UnusedParameters"]


class UnusedParameters:
    """Of one optimizer; each is reported in the first step in which it was unused."""

    __slots__ = ("_seen", "unreported")

    def __init__(self) -> None:
        self.unreported: list[str] = []
        self._seen: set[str] = set()

    def note(self, name: str) -> None:
        """No rank had a gradient for it in this step."""
        if name not in self._seen and config.reports_unused():
            self._seen.add(name)
            self.unreported.append(name)

    def report(self, speaks: bool) -> None:
        """At the end of a step; all ranks know the same, so one speaks for all."""
        names, self.unreported = self.unreported, []
        if speaks:
            warnings.warn(
                f"No rank had a gradient for {', '.join(names)} in this step. These parameters keep their values and .grad = None. "
                "If that is not meant, look for parts of the model that the loss does not depend on.",
                stacklevel=4,
            )
