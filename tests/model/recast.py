"""The cores have dataclasses of the same names and fields; this turns one core's into another's."""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from types import ModuleType
from typing import Any

from horovod.agent.core import orders as agent_orders
from horovod.agent.core import values as agent_values
from horovod.common.core import Signature
from horovod.coordinator.core import commands as coordinator_commands
from horovod.coordinator.core import events as coordinator_events
from horovod.coordinator.core import values as coordinator_values

OTHER_NAMES = {"CollectiveKind": ("Kind",), "Config": ("JobLimits",), "JobLimits": ("Config",)}


def recast(value: Any, modules: tuple[ModuleType, ...]) -> Any:
    """The same value in the classes of these modules."""
    if isinstance(value, tuple):
        return tuple(recast(item, modules) for item in value)
    if isinstance(value, IntEnum):
        return _class(value, modules)(int(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = _class(value, modules)
        fields = {f.name for f in dataclasses.fields(kind) if f.init}
        return kind(**{name: recast(getattr(value, name), modules) for name in fields if hasattr(value, name)})
    return value


def _class(value: Any, modules: tuple[ModuleType, ...]) -> Any:
    names = (type(value).__name__, *OTHER_NAMES.get(type(value).__name__, ()))
    return next(getattr(module, name) for name in names for module in modules if hasattr(module, name))


_signatures: dict[Signature, agent_values.Signature] = {}


def to_agent(value: Any) -> Any:
    """Into the agent's classes."""
    if isinstance(value, Signature):
        if value not in _signatures:
            _signatures[value] = recast(value, (agent_values,))
        return _signatures[value]
    return recast(value, (agent_values, agent_orders))


def to_coordinator(value: Any) -> Any:
    """Into the coordinator's classes."""
    return recast(value, (coordinator_values, coordinator_events, coordinator_commands))
