"""Converts between messages and the frozen dataclasses of the cores, by equal names.

A core knows nothing of protobuf: its events and commands have the field names of the messages.  ``wrap`` puts a dataclass into the
oneof of an envelope (field name = snake case of the class name), ``unwrap`` takes it out.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

T = TypeVar("T")


def fill(message: Message, value: Any) -> None:
    """Copies every field of the dataclass that the message has; fields that it does not have stay behind."""
    names = _message_fields(type(message))
    for field in dataclasses.fields(value):
        if field.name in names:
            _set(message, field.name, getattr(value, field.name))


def read(kind: type[T], message: Message, **extra: Any) -> T:
    """A dataclass from a message; ``extra`` gives the fields that the message does not have."""
    names = _message_fields(type(message))
    hints = _hints(kind)
    values = {name: _get(hints[name], getattr(message, name)) for name in hints if name in names and name not in extra}
    return kind(**values, **extra)


def wrap(envelope: Message, value: Any) -> None:
    """Fills the member of the envelope's oneof that is named like the dataclass."""
    body = getattr(envelope, snake(type(value).__name__))
    body.SetInParent()
    fill(body, value)


def unwrap(envelope: Message, kinds: Mapping[str, type[Any]], **extra: Any) -> Any:
    """The dataclass in the envelope's oneof; KeyError when the body is missing or of no known kind."""
    name = envelope.WhichOneof("body")
    if name is None or name not in kinds:
        raise KeyError(f"{type(envelope).__name__} has no body that is known here: {name}")
    kind = kinds[name]
    known = {key: value for key, value in extra.items() if key in _hints(kind)}
    return read(kind, getattr(envelope, name), **known)


def by_field(*kinds: type[Any]) -> dict[str, type[Any]]:
    """Oneof field name -> dataclass."""
    return {snake(kind.__name__): kind for kind in kinds}


@cache
def snake(name: str) -> str:
    """``PlanReady`` -> ``plan_ready``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@cache
def _message_fields(kind: type[Message]) -> frozenset[str]:
    return frozenset(field.name for field in kind.DESCRIPTOR.fields)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _set(message: Message, name: str, value: Any) -> None:
    if value is None:
        return
    if dataclasses.is_dataclass(value):
        target = getattr(message, name)
        target.SetInParent()
        fill(target, value)
    elif isinstance(value, Mapping):
        getattr(message, name).update(value)
    elif isinstance(value, (tuple, list)):
        _extend(getattr(message, name), value)
    else:
        setattr(message, name, int(value) if isinstance(value, IntEnum) else value)


def _extend(target: Any, values: Any) -> None:
    if hasattr(target, "add"):
        for value in values:
            _fill_item(target.add(), value)
    else:
        target.extend(values)


def _fill_item(item: Message, value: Any) -> None:
    # A tuple of numbers stands for a message with one repeated field, e.g. Shape.
    if dataclasses.is_dataclass(value):
        fill(item, value)
    else:
        (name,) = _message_fields(type(item))
        getattr(item, name).extend(value)


def _get(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        hint = next(choice for choice in get_args(hint) if choice is not type(None))
        origin = get_origin(hint)
    if origin is tuple:
        inner = get_args(hint)[0]
        return tuple(_get(inner, item) for item in (value if not isinstance(value, Message) else _only(value)))
    if origin in (dict, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(hint):
        return read(hint, value)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return hint(value)
    return value


def _only(message: Message) -> Any:
    (name,) = _message_fields(type(message))
    return getattr(message, name)
