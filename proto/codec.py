"""Converts between messages and the frozen dataclasses of the cores, by equal names.

A core knows nothing of protobuf: its events and commands have the field names of the messages.  ``wrap`` puts a
dataclass into the oneof of an envelope (field name = snake case of the class name), ``unwrap`` takes it
out.  How a pair of classes is converted is worked out once and kept: a job announces thousands of tensors.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from horovod.proto import places

__all__ = ["by_field", "fill", "read", "snake", "to_bytes", "to_text", "unwrap", "wrap"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _memoized(function: F) -> F:
    # functools.cache alone would type every argument as Hashable, which mypy doesn't take classes for.
    return cast(F, cache(function))


_PLACES = "hvd.control.RankPlaces"  # a tuple of places, by columns
Writer = Callable[[Message, Any], None]
Reader = Callable[[Any], Any]


def fill(message: Message, value: Any) -> None:
    """Copies every field of the dataclass that the message has; fields that it does not have stay behind."""
    for name, write in _writers(type(value), type(message)):
        write(message, getattr(value, name))


def read(kind: type[T], message: Message, **extra: Any) -> T:
    """A dataclass from a message; ``extra`` gives the fields that the message does not have."""
    values = {name: convert(getattr(message, name)) for name, convert in _readers(kind, type(message))}
    values.update(extra)
    return kind(**values)


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


@_memoized
def snake(name: str) -> str:
    """``PlanReady`` -> ``plan_ready``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@_memoized
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def to_bytes(text: str) -> bytes:
    """Text of the operating system as it was; bytes that are no UTF-8 are surrogates in the text."""
    return text.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    """The other way round."""
    return data.decode("utf-8", "surrogateescape")


# ---- to messages


@_memoized
def _writers(kind: type[Any], message: type[Message]) -> tuple[tuple[str, Writer], ...]:
    fields = message.DESCRIPTOR.fields_by_name
    return tuple(
        (field.name, _writer(field.name, fields[field.name], _hints(kind)[field.name]))
        for field in dataclasses.fields(kind)
        if field.name in fields
    )


def _writer(name: str, field: Any, hint: Any) -> Writer:
    inner = _plain(hint)
    if _is_places(field):
        return lambda message, value: places.pack(getattr(message, name), value)
    if get_origin(inner) in (dict, Mapping) or inner in (dict, Mapping):
        return _map_writer(name, field.message_type.GetOptions().map_entry)
    if get_origin(inner) is tuple:
        return _list_writer(name, field)
    if field.message_type is not None:
        return lambda message, value: _write_message(getattr(message, name), value)
    if isinstance(inner, type) and issubclass(inner, IntEnum):
        return lambda message, value: setattr(message, name, int(value))
    if field.type == FieldDescriptor.TYPE_BYTES and inner is str:
        return lambda message, value: setattr(message, name, to_bytes(value))
    return lambda message, value: setattr(message, name, value)


def _map_writer(name: str, is_map: bool) -> Writer:
    """A mapping becomes a map, or pairs of name and value in bytes."""

    def write(message: Message, value: Any) -> None:
        for key, item in value.items():
            getattr(message, name).add(name=to_bytes(key), value=to_bytes(item))

    return (lambda message, value: getattr(message, name).update(value)) if is_map else write


def _list_writer(name: str, field: Any) -> Writer:
    of_bytes = field.type == FieldDescriptor.TYPE_BYTES

    def write(message: Message, values: Any) -> None:
        target = getattr(message, name)
        if field.message_type is None:
            target.extend(map(to_bytes, values) if of_bytes else values)
            return
        for value in values:
            _write_message(target.add(), value)

    return write


def _write_message(message: Any, value: Any) -> None:
    if value is None:
        return
    message.SetInParent()
    if dataclasses.is_dataclass(value):
        fill(message, value)
    else:  # a tuple of numbers stands for a message with one repeated field, e.g. Shape
        getattr(message, _only_field(type(message))).extend(value)


def _is_places(field: Any) -> bool:
    return field.message_type is not None and field.message_type.full_name == _PLACES


# ---- from messages


@_memoized
def _readers(kind: type[Any], message: type[Message]) -> tuple[tuple[str, Reader], ...]:
    fields = message.DESCRIPTOR.fields_by_name
    return tuple((name, _field_reader(fields[name], hint)) for name, hint in _hints(kind).items() if name in fields)


def _field_reader(field: Any, hint: Any) -> Reader:
    inner = _plain(hint)
    if _is_places(field):
        kind = get_args(inner)[0]
        return lambda value: places.unpack(kind, value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        if inner is str:
            return to_text
        if get_origin(inner) is tuple and get_args(inner)[0] is str:
            return lambda values: tuple(map(to_text, values))
    is_mapping = get_origin(inner) in (dict, Mapping)
    if is_mapping and not field.message_type.GetOptions().map_entry:
        return lambda values: {to_text(item.name): to_text(item.value) for item in values}
    return _reader(hint)


@_memoized
def _reader(hint: Any) -> Reader:
    inner = _plain(hint)
    origin = get_origin(inner)
    if origin is tuple:
        convert = _item_reader(get_args(inner)[0])
        return lambda values: tuple(map(convert, values)) if convert is not None else tuple(values)
    if origin in (dict, Mapping):
        return dict
    if dataclasses.is_dataclass(inner):
        return lambda value: read(inner, value)  # type: ignore[arg-type]
    if isinstance(inner, type) and issubclass(inner, IntEnum):
        return inner
    return _same


def _item_reader(hint: Any) -> Reader | None:
    if get_origin(hint) is tuple:
        return lambda value: tuple(getattr(value, _only_field(type(value))))
    convert = _reader(hint)
    return None if convert is _same else convert


def _same(value: Any) -> Any:
    return value


def _plain(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return next(choice for choice in get_args(hint) if choice is not type(None))
    return hint


@_memoized
def _only_field(message: type[Message]) -> str:
    (field,) = message.DESCRIPTOR.fields
    return str(field.name)
