"""What a snapshot is made of: values that JSON has."""

from __future__ import annotations

__all__ = ["Json"]

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
